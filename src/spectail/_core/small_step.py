"""A step of few classes on a CPU, where the number of calls is the cost: in numpy, whose calls are cheaper.

For the usual case only: hard labels that all count, one process, the paper's surrogate. The formulas are those of
``surrogate``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..spectral import Triplet, filtered
from ..targets import Entries, Target
from .autograd import Weight, attach
from .batch_confusion import FAINT, BatchConfusion
from .history import History
from .surrogate import Surrogate

Array: TypeAlias = NDArray[Any]

SMALL = 1 << 16  # logits; larger tensors do not stay with the allocator, and numpy is no faster at them


def is_small(logits: object, target: Target, kind: Surrogate) -> bool:
    """Whether logits and labels are such a batch. The labels are known to be in order, the logits not yet."""
    return kind.plain and isinstance(logits, Tensor) and len(logits) == len(target) and logits.numel() <= SMALL


class Soft(NamedTuple):
    """The soft confusion of each sample, with the factors of its gradient."""

    rows: Array
    select: Array
    gate: Array
    own: Array
    """Where the entry of each sample's own class is, counted through all rows."""
    chance: Array
    """The softmax there."""
    rest: Array | float
    """What the softmax of the others was divided by."""


def small_step(
    scores: Tensor,
    target: Target,
    counts: Array,
    kind: Surrogate,
    history: History,
    weights: Array,
    beta: float,
    by_class: bool,
    commit: bool,
    alpha: Weight | None,
) -> tuple[Triplet, Tensor, Tensor | None]:
    """Move the history by a batch: the triplet of the new matrix, its norm as a function of the logits, and None.

    With ``alpha``: the mean cross entropy plus this times the norm, and, detached, the cross entropy.
    """
    assert isinstance(target, Tensor)
    label = target
    with torch.no_grad():
        inputs, labels = scores.detach(), label.numpy()
        soft = _soft(inputs, labels, kind)
        by_sample = weights.take(labels)
        by_sample *= 1 - beta
        by_sample /= counts.take(labels)
        if commit:
            history.convert(scores.dtype)
            history.settle()
        matrix = history.rows if commit else history.dense().to(scores.dtype)
        columns = matrix.numpy()
        if by_class:
            columns *= np.where(counts, beta, 1).astype(columns.dtype)[:, None]
        else:
            columns *= beta
        matrix.index_add_(0, label, torch.from_numpy(soft.rows * by_sample[:, None]))
        leading = history.basis[0]
        triplet = filtered(matrix, label, leading.to(scores.dtype))
        if commit:
            leading.copy_(triplet.left)
        sigma, base, entropy = triplet.spectral_norm, None, 0.0
        scale = by_sample * triplet.right.numpy().take(labels)
        if alpha is None:
            value = sigma.clone()
        else:
            weight, mean = float(alpha(sigma)), _entropy(inputs, label, soft.chance)
            scale *= weight
            entropy = 1 / len(labels)
            base, value = (
                torch.from_numpy(np.array(part, columns.dtype)) for part in (mean, mean + weight * float(sigma))
            )
        gradient = None
        if scores.requires_grad:
            gradient = torch.from_numpy(_gradient(soft, triplet.left.numpy(), scale, entropy))
    del soft  # or autograd would find the gradient shared, and copy it
    return triplet, attach(scores, value, gradient, Again(inputs, label, kind, triplet.left, scale, entropy)), base


class Again(NamedTuple):
    """What was differentiated, for a second time and for derivatives of the gradient."""

    scores: Tensor
    label: Tensor
    kind: Surrogate
    left: Tensor
    scale: Array
    entropy: float

    def gradient(self) -> Tensor:
        soft = _soft(self.scores, self.label.numpy(), self.kind)
        return torch.from_numpy(_gradient(soft, self.left.numpy(), self.scale, self.entropy))

    def of(self, scores: Tensor) -> Tensor:
        scale = torch.from_numpy(self.scale)
        items = Entries(None, self.label, torch.ones_like(scale), whole=True)
        return BatchConfusion(self.scores, items, scale, self.kind).objective(scores, self.left, scale, self.entropy)


def _soft(scores: Tensor, labels: Array, kind: Surrogate) -> Soft:
    tiny, (count, classes) = torch.finfo(scores.dtype).tiny, scores.shape
    select = torch.softmax(scores, 1).numpy()
    own, flat = np.arange(0, count * classes, classes) + labels, select.reshape(-1)
    chance = flat[own]
    flat[own] = 0
    odds = chance * math.exp(-kind.gamma) if kind.gamma else chance
    gate = select + np.maximum(odds, tiny)[:, None]
    np.divide(select, gate, out=gate)
    if kind.competitors == "all":
        return Soft(select * gate, select, gate, own, chance, 1.0)
    rest = np.maximum(select.sum(1), tiny)
    select /= rest[:, None]
    return Soft(select * gate, select, gate, own, chance, rest)


def _entropy(scores: Tensor, label: Tensor, chance: Array) -> float:
    """The mean cross entropy."""
    if chance.min() < FAINT:
        return float(F.cross_entropy(scores, label))
    return -float(np.log(chance).sum()) / len(chance)


def _gradient(soft: Soft, left: Array, scale: Array, entropy: float) -> Array:
    """As ``soft_gradient``; uses up ``soft``."""
    factor = soft.rows.dot(left)
    factor *= scale
    if entropy:
        factor -= entropy * soft.rest
    gradient: Array = np.subtract(2, soft.gate, out=soft.gate)
    gradient *= soft.rows
    gradient *= left
    gradient *= scale[:, None]
    select = soft.select
    select *= factor[:, None]
    gradient -= select
    gradient.reshape(-1)[soft.own] = -gradient.sum(1)
    return gradient
