"""A small batch on a CPU, where the number of calls is the cost: the surrogate in numpy, whose calls are cheaper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..targets import Entries
from .batch_confusion import BatchConfusion
from .surrogate import Surrogate
from .workspace import Scratch

SMALL = 1 << 16  # logits; larger tensors do not stay with the allocator, and numpy is no faster at them


def read_batch(
    scores: Tensor, items: Entries, mass: Tensor, kind: Surrogate, scratch: Scratch | None
) -> BatchConfusion:
    """The batch in the form that is fastest; ``scratch`` is None where no value may decide anything."""
    large = scores.numel() > SMALL
    plain = kind.form == "full" and kind.gate_grad and kind.temperature == 1 and items.whole
    if scratch is None or large or not plain:
        return BatchConfusion(scores, items, mass, kind, scratch if large else None)
    return SmallBatch(scores, items, mass, kind)


class SmallBatch(BatchConfusion):
    """The same for the paper's surrogate and hard labels that all count; the formulas are those of ``surrogate``."""

    _parts: tuple[NDArray[Any], ...] | None = None

    def add_to(self, columns: Tensor, at: Tensor, weight: Tensor) -> None:
        self._parts = self._soft()
        columns.index_add_(0, at, torch.from_numpy(self._parts[0] * weight.numpy()[:, None]))

    def gradient(self, left: Tensor, scale: Tensor) -> Tensor:
        (rows, select, gate, own), self._parts = self._parts or self._soft(), None  # used up
        total = rows.dot(left.numpy())
        rows *= left.numpy()
        gradient = np.subtract(2, gate, out=gate)
        gradient *= rows
        select *= total[:, None]
        gradient -= select
        gradient.reshape(-1)[own] = -gradient.sum(1)
        gradient *= scale.numpy()[:, None]
        return torch.from_numpy(gradient)

    def _soft(self) -> tuple[NDArray[Any], ...]:
        """Rows, selection and gate, and where the entry of each sample's own class is, counted through all rows."""
        tiny, (count, classes) = torch.finfo(self.scores.dtype).tiny, self.scores.shape
        select = torch.softmax(self.scores, 1).numpy()
        own = np.arange(0, count * classes, classes) + self.items.label.numpy()
        odds = select.reshape(-1)[own]
        select.reshape(-1)[own] = 0
        if self.kind.gamma:
            odds *= math.exp(-self.kind.gamma)
        gate = select + np.maximum(odds, tiny)[:, None]
        np.divide(select, gate, out=gate)
        if self.kind.competitors == "non-target":
            select /= np.maximum(select.sum(1), tiny)[:, None]
        return select * gate, select, gate, own
