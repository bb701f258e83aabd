"""A step of few classes on a CPU, where the number of calls is the cost: in numpy, whose calls are cheaper.

For the usual case only: hard labels that all count, one process, the paper's surrogate. The formulas are those of
``surrogate``.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..spectral import Triplet, filtered
from ..targets import Entries, Target
from .autograd import Found, Weight, attach
from .batch_confusion import FAINT, BatchConfusion
from .history import History
from .surrogate import Surrogate
from .worst_step import ClassErrors, WorstErrors

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
    odds: Array
    """The same with the own logit lowered by the margin."""
    rest: Array | float = 1.0
    """What the softmax of the others was divided by."""


class Setting(NamedTuple):
    """What decides how such a batch moves the history, and what is found then."""

    kind: Surrogate
    history: History | ClassErrors
    weights: Array
    beta: float
    by_class: bool
    seeds: bool
    """Whether the first estimate of a column seeds it; the spectral norm leaves that to others."""
    sharpness: float
    commit: bool


def small_step(
    scores: Tensor, target: Target, counts: Array, setting: Setting, alpha: Weight | None
) -> tuple[Found, Tensor, Tensor | None]:
    """Move the history by a batch: the norm found, the same as a function of the logits, and None.

    With ``alpha``: the mean cross entropy plus this times the norm, and, detached, the cross entropy.
    """
    assert isinstance(target, Tensor)
    label, kind = target, setting.kind
    with torch.no_grad():
        inputs, labels = scores.detach(), label.numpy()
        soft = _soft(inputs, labels, kind)
        if setting.commit:
            setting.history.convert(scores.dtype)
        found: Found
        if isinstance(setting.history, ClassErrors):
            found, by_sample = _worst(setting.history, setting, soft.rows, labels, counts)
        else:
            found, by_sample = _spectral(setting.history, setting, soft.rows, label, counts)
        norm, base, entropy = found.value, None, 0.0
        scale = by_sample * found.right.numpy().take(labels)
        if alpha is None:
            value = norm.clone()
        else:
            weight, mean = float(alpha(norm)), _entropy(inputs, label, soft.chance)
            scale *= weight
            entropy = 1 / len(labels)
            base, value = (
                torch.from_numpy(np.array(part, soft.rows.dtype)) for part in (mean, mean + weight * float(norm))
            )
        gradient = None
        if scores.requires_grad:
            gradient = torch.from_numpy(_gradient(soft, found.left, scale, entropy))
    del soft  # or autograd would find the gradient shared, and copy it
    return found, attach(scores, value, gradient, Again(inputs, label, kind, found.left, scale, entropy)), base


def _spectral(history: History, setting: Setting, rows: Array, label: Tensor, counts: Array) -> tuple[Triplet, Array]:
    """The triplet of the new matrix, and by sample how much of it carries gradient."""
    labels, beta = label.numpy(), setting.beta
    by_sample: Array = setting.weights.take(labels)
    by_sample *= 1 - beta
    by_sample /= counts.take(labels)
    change = torch.from_numpy(rows * by_sample[:, None])
    if setting.commit:
        history.settle()
    matrix = history.rows if setting.commit else history.dense().to(change.dtype)
    columns = matrix.numpy()
    if setting.by_class:
        columns *= np.where(counts, beta, 1).astype(columns.dtype)[:, None]
    else:
        columns *= beta
    matrix.index_add_(0, label, change)
    leading = history.basis[0]
    triplet = filtered(matrix, label, leading.to(change.dtype))
    if setting.commit:
        leading.copy_(triplet.left)
    return triplet, by_sample


def _worst(
    history: ClassErrors, setting: Setting, rows: Array, labels: Array, counts: Array
) -> tuple[WorstErrors, Array]:
    """The soft maximum of the new errors, and by sample how much of them carries gradient."""
    rate: Array | float = 1 - setting.beta
    learned, kind = rate, rows.dtype
    if setting.seeds:
        known = history.seen.numpy() if setting.by_class else history.steps.numpy() > 0
        rate, learned = np.where(known, rate, 1), np.where(known, rate, 0)
    share: Array = 1 / np.maximum(counts, 1)  # of a sample in the error of its class
    entered: Array = np.bincount(labels, _sums(rows), len(counts))
    entered *= share
    entered *= rate
    entered += history.errors.numpy() * (np.where(counts, 1 - rate, 1) if setting.by_class else setting.beta)
    running = entered.astype(kind)
    if setting.commit:
        history.errors.numpy()[:] = running
        if setting.seeds:
            history.seen.numpy()[labels] = True
            history.steps.add_(1)
    errors = running * setting.weights
    shares = np.exp(setting.sharpness * (errors / (np.maximum.reduce(errors) or 1) - 1))  # as soft_maximum
    shares /= shares.sum()
    value = np.array(shares.dot(errors), kind)
    share *= learned
    share *= setting.weights
    by_sample: Array = share.astype(kind).take(labels)
    return WorstErrors(*map(torch.from_numpy, (value, errors, shares))), by_sample


class Again(NamedTuple):
    """What was differentiated, for a second time and for derivatives of the gradient."""

    scores: Tensor
    label: Tensor
    kind: Surrogate
    left: Tensor | None
    scale: Array
    entropy: float

    def gradient(self) -> Tensor:
        soft = _soft(self.scores, self.label.numpy(), self.kind)
        return torch.from_numpy(_gradient(soft, self.left, self.scale, self.entropy))

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
    odds = np.maximum(chance * math.exp(-kind.gamma) if kind.gamma else chance, tiny)
    gate = select + odds[:, None]
    np.divide(select, gate, out=gate)
    if kind.competitors == "all":
        return Soft(select * gate, select, gate, own, chance, odds)
    rest = np.maximum(_sums(select), tiny)
    select /= rest[:, None]
    return Soft(select * gate, select, gate, own, chance, odds, rest)


def _entropy(scores: Tensor, label: Tensor, chance: Array) -> float:
    """The mean cross entropy."""
    if chance.min() < FAINT:
        return float(F.cross_entropy(scores, label))
    return -float(np.log(chance).sum()) / len(chance)


def _gradient(soft: Soft, left: Tensor | None, scale: Array, entropy: float) -> Array:
    """As ``soft_gradient``; uses up ``soft``."""
    if left is None:
        return _error_gradient(soft, scale, entropy)
    factor = soft.rows.dot(left.numpy())
    factor *= scale
    if entropy:
        factor -= entropy * soft.rest
    gradient: Array = np.subtract(2, soft.gate, out=soft.gate)
    gradient *= soft.rows
    gradient *= left.numpy()
    gradient *= scale[:, None]
    select = soft.select
    select *= factor[:, None]
    gradient -= select
    gradient.reshape(-1)[soft.own] = -_sums(gradient)
    return gradient


def _error_gradient(soft: Soft, scale: Array, entropy: float) -> Array:
    """As that of ``surrogate``; uses up ``soft``."""
    gate, error, right = soft.gate, _sums(soft.rows), _sums(soft.gate)
    right *= soft.odds / soft.rest
    if isinstance(soft.rest, float):  # the own class is among the competitors
        right += soft.chance
    wrong = error > 0.5
    base = np.where(wrong, right, -error)
    base *= scale
    if entropy:
        base += entropy * soft.rest
    less = wrong.astype(gate.dtype)[:, None]
    gate -= less
    gradient: Array = 2 - 2 * less - gate
    gradient *= gate
    gradient *= scale[:, None]
    gradient += base[:, None]
    gradient *= soft.select
    gradient.reshape(-1)[soft.own] = -_sums(gradient)
    return gradient


def _sums(rows: Array) -> Array:
    """The sum of each row, in a fraction of the time of ``rows.sum(1)``."""
    sums: Array = rows.dot(_ones(rows.shape[1], rows.dtype))
    return sums


@functools.cache
def _ones(size: int, dtype: Any) -> Array:
    return np.ones(size, dtype)
