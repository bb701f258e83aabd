"""A loss that is not a number, noticed without waiting for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from .._core import waits
from ..data.batch import Batch

EVERY = 20
"""Steps between losses that are looked at where a look means waiting."""


class Look(NamedTuple):
    """A loss, and where it comes from."""

    loss: Tensor
    step: int
    epoch: int
    indices: dict[str, Tensor]
    """Images of the batch, by stream."""


class Watch:
    """On a CPU every loss is looked at. On an accelerator every ``EVERY``-th one sets out for the host, and is looked
    at ``EVERY`` steps later, when it has arrived."""

    def __init__(self) -> None:
        self._coming: Look | None = None

    def look(self, loss: Tensor, step: int, epoch: int, batches: Mapping[str, Batch]) -> Look | None:
        """Takes the loss of a micro-batch; gives one that is not a finite number, if it sees any."""
        place = step, epoch, {name: batch.indices for name, batch in batches.items()}
        if waits.reads_are_free(loss.device):
            seen: Look | None = Look(loss, *place)
        elif step % EVERY or (self._coming is not None and self._coming.step == step):
            return None
        else:
            seen, self._coming = self._coming, Look(waits.on_its_way(loss), *place)
        return None if seen is None or math.isfinite(seen.loss.item()) else seen
