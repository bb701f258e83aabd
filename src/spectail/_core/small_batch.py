"""A small batch on a CPU, where the number of calls is the cost: the surrogate in numpy, whose calls are cheaper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..targets import Entries
from .batch_confusion import FAINT, BatchConfusion
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

    _parts: tuple[Any, ...] | None = None

    def add_to(self, columns: Tensor, at: Tensor, weight: Tensor) -> None:
        self._parts = self._soft()
        columns.index_add_(0, at, torch.from_numpy(self._parts[0] * weight.numpy()[:, None]))

    def entropy(self) -> Tensor | None:
        assert self._parts is not None
        chance = self._parts[4]
        if chance.min() < FAINT:
            return F.cross_entropy(self.scores, self.items.label)
        return torch.from_numpy(np.asarray(-np.log(chance).mean()))

    def gradient(self, left: Tensor, scale: Tensor, entropy: float = 0.0) -> Tensor:
        (rows, select, gate, own, _, rest), self._parts = self._parts or self._soft(), None  # used up
        factor = rows.dot(left.numpy())
        factor *= scale.numpy()
        if entropy:
            factor -= entropy * rest
        gradient = np.subtract(2, gate, out=gate)
        gradient *= rows
        gradient *= left.numpy()
        gradient *= scale.numpy()[:, None]
        select *= factor[:, None]
        gradient -= select
        gradient.reshape(-1)[own] = -gradient.sum(1)
        return torch.from_numpy(gradient)

    def _soft(self) -> tuple[Any, ...]:
        """Rows, selection and gate; where the entry of each sample's own class is, counted through all rows; the
        softmax there; and what that of the others was divided by.
        """
        tiny, (count, classes) = torch.finfo(self.scores.dtype).tiny, self.scores.shape
        select = torch.softmax(self.scores, 1).numpy()
        own = np.arange(0, count * classes, classes) + self.items.label.numpy()
        chance = select.reshape(-1)[own]
        select.reshape(-1)[own] = 0
        odds = chance * math.exp(-self.kind.gamma) if self.kind.gamma else chance
        gate = select + np.maximum(odds, tiny)[:, None]
        np.divide(select, gate, out=gate)
        rest: NDArray[Any] | float = 1.0
        if self.kind.competitors == "non-target":
            rest = np.maximum(select.sum(1), tiny)
            select /= rest[:, None]
        return select * gate, select, gate, own, chance, rest
