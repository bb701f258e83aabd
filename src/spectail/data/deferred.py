"""DeferredSampler: one sampler at first, another from an epoch on (deferred re-sampling)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .samplers import LongTailSampler


class DeferredSampler:
    """``first`` before the epoch ``switch``, ``then`` from it on. Which one follows from the epoch alone.

    Example:
        >>> labels = [0, 0, 0, 1]
        >>> both = DeferredSampler(LongTailSampler(labels), LongTailSampler(labels, "class-balanced"), switch=1)
        >>> sorted(both.order(0).tolist())
        [0, 1, 2, 3]
    """

    def __init__(self, first: LongTailSampler, then: LongTailSampler, switch: int) -> None:
        if first.length != then.length:
            raise ValueError(f"both samplers must have one length; got {first.length} and {then.length}.")
        self.first, self.then, self.switch = first, then, switch
        self.length, self.class_counts, self.world_size = first.length, first.class_counts, first.world_size

    def order(self, epoch: int) -> NDArray[np.int64]:
        return (self.first if epoch < self.switch else self.then).order(epoch)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        state = self.first.state_dict(consumed=consumed)
        then = self.then.state_dict(consumed=consumed)["settings"]
        return state | {"settings": state["settings"] | {"then": then, "switch": self.switch}}
