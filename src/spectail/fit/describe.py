"""Figures of logits on labelled images, as the table of an adjustment shows them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts import ClassCounts, CountsLike, as_counts
from .figures import class_accuracies, score_hits
from .goals import Goal
from .temperature import class_weights, likelihood_and_error


def describe(
    logits: NDArray[Any], labels: NDArray[np.int64], class_counts: CountsLike | None, goal: Goal
) -> dict[str, float | None]:
    """Figures of logits on labelled images, in percent; None where there is nothing to measure.

    ``worst class`` and ``lowest 10 %`` are plain shares; the estimates that a choice goes by are there as well if the
    goal or a floor asks for them. The calibration figures count classes alike, unless the goal counts images.
    """
    size = logits.shape[1]
    counts = None if class_counts is None else as_counts(class_counts, on_empty="ignore")
    hits, totals = class_accuracies(logits.argmax(1) == labels, labels, size)
    shares = np.sort((hits / np.maximum(totals, 1))[totals > 0])
    found: dict[str, float | None] = {
        "overall": 100 * float(hits.sum() / totals.sum()),
        "balanced": 100 * float(shares.mean()),
    }
    if counts is not None:
        for group, members in counts.groups().items():
            there = [label for label in members if totals[label]]
            found[group] = 100 * float((hits[there] / totals[there]).mean()) if there else None
    found["lowest 10 %"] = 100 * float(shares[: -(-len(shares) // 10)].mean())
    found["worst class"] = 100 * float(shares[0])
    stand_in = counts if counts is not None else ClassCounts(np.ones(size, dtype=np.int64))
    asked = {goal.name, *(name for name, _ in goal.keep)}
    for name, title in (("lowest10", "lowest 10 %, estimated"), ("worst", "worst classes, estimated")):
        if name in asked:
            found[title] = float(score_hits(name, hits, totals, stand_in))
    if "tail" in asked and found.get("tail") is None:
        found["rarest third"] = float(score_hits("tail", hits, totals, stand_in))
    weights = class_weights(labels, size, alike=goal.name != "overall")
    found["log loss"], found["calibration error"] = likelihood_and_error(logits, labels, weights)
    return found
