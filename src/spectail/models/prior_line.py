"""The line that one trained classifier draws: its logits shifted by ``-delta log(n_j / N)``, for many delta.

Delta 0 is the classifier as it is; more of it gives rare classes more room. A head trained with tau 1 and shifted by
0.5 does what one trained with tau 1.5 does, so that a single training shows the whole trade-off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..counts import ClassCounts
from ..metrics import LOWEST, class_figures

SHIFTS = tuple(round(-1.5 + 0.1 * step, 1) for step in range(41))
"""From -1.5 to 2.5: from cross entropy and beyond to tau 2.5 and beyond, whichever of the two was trained."""
ALONG = ("overall", "balanced", "head", "medium", "tail", "worst_test", *LOWEST)
BLOCK = 1 << 22  # logits looked at together


def prior_shift(class_counts: ClassCounts) -> NDArray[np.float64]:
    """``-log(n_j / N)``: what delta 1 adds. A class without training images gets as much as the rarest with some."""
    counts = class_counts.counts.numpy().astype(np.float64)
    return np.asarray(-np.log(np.maximum(counts, counts[counts > 0].min()) / counts.sum()), dtype=np.float64)


def blocks(logits: NDArray[Any]) -> Iterator[slice]:
    rows = max(BLOCK // max(logits.shape[1], 1), 1)
    return (slice(start, min(start + rows, len(logits))) for start in range(0, len(logits), rows))


def figures_along(
    logits: NDArray[np.float32], labels: NDArray[np.int64], class_counts: ClassCounts, convention: str = "count"
) -> dict[str, list[float | None]]:
    """The figures of :data:`ALONG` at each of ``shifts``, in percent; None for a group without test images.

    Args:
        logits: (N, K), as they are used at inference.
        labels: (N,).
        class_counts: training images per class, for shift and groups.
        convention: of head, medium and tail.

    Example:
        >>> logits = np.array([[2.0, 0.0], [2.0, 0.0]], dtype=np.float32)  # delta log 10 passes 2 at 0.87
        >>> line = figures_along(logits, np.array([0, 1]), ClassCounts([100, 10]))
        >>> [line["tail"][line["shifts"].index(shift)] for shift in (0.0, 0.8, 0.9)]
        [0.0, 0.0, 100.0]
    """
    size, shift = len(class_counts), prior_shift(class_counts)
    right = np.zeros((len(SHIFTS), size), dtype=np.int64)
    for part in blocks(logits):
        block, own = logits[part], labels[part]
        for at, delta in enumerate(SHIFTS):  # in the precision that a shifted model has, so that ties are its ties
            hit = (block + (delta * shift).astype(block.dtype)).argmax(1) == own
            right[at] += np.bincount(own[hit], minlength=size)
    total, groups = torch.from_numpy(np.bincount(labels, minlength=size)), class_counts.groups(convention)
    found = [class_figures(torch.from_numpy(row), total, groups) for row in right]
    return {"shifts": list(SHIFTS)} | {name: [figures[name] for figures in found] for name in ALONG}
