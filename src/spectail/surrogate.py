"""The differentiable confusion of single samples, and its gradient in closed form.

One entry (a sample with label j) gives a row over predicted classes i, zero at i = j:

    s_i = gate_i * select_i,   gate_i = sigmoid(gamma + f_i - f_j),   select = softmax over the competitors of j.

Everything depends on differences f_i - f_j only, so the gradient of a row sums to zero over the classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .scratch import Scratch, take

COMPETITORS = ("all", "non-target")
SURROGATES = ("full", "no-gate", "no-softmax", "no-both")


@dataclass(frozen=True)
class Surrogate:
    """Which surrogate: the paper's, a variant of its text, or one of its ablations."""

    gamma: float = 0.0
    competitors: str = "all"
    gate_grad: bool = True
    form: str = "full"

    def __post_init__(self) -> None:
        if self.competitors not in COMPETITORS:
            raise ValueError(f"competitors must be one of {', '.join(COMPETITORS)}; got {self.competitors!r}.")
        if self.form not in SURROGATES:
            raise ValueError(f"surrogate must be one of {', '.join(SURROGATES)}; got {self.form!r}.")
        if not 0 <= self.gamma < float("inf"):
            raise ValueError(f"gamma is a margin in logit units and must be 0 or more; got {self.gamma}.")

    @property
    def uses_softmax(self) -> bool:
        return self.form in ("full", "no-gate")


class SoftRows(NamedTuple):
    """Row e is the soft confusion of entry e; ``gate`` is None where the form has none."""

    rows: Tensor
    select: Tensor
    gate: Tensor | None


def soft_rows(
    logits: Tensor, label: Tensor, partner: Tensor | None, kind: Surrogate, scratch: Scratch | None = None
) -> SoftRows:
    """Soft confusion of each entry; differentiable unless it is computed in ``scratch``.

    Args:
        logits: (E, K).
        label: (E,) true class, whose own row is 0.
        partner: (E,) a class left out because predicting it is no error, or None.
        scratch: where the results may lie; the next call overwrites them.
    """
    target, shape = label[:, None], (logits.shape[0], logits.shape[1])
    difference = torch.sub(logits, logits.gather(1, target), out=take(scratch, "difference", shape, logits))
    select = _select(logits, difference, target, kind, scratch)
    gate: Tensor | None
    if kind.form == "no-gate":
        gate, rows = None, select.clone()
    else:
        if kind.gamma:
            difference += kind.gamma
        gate = difference.relu_() if kind.form == "no-both" else difference.sigmoid_()
        if kind.form == "no-both" or not kind.gate_grad:
            gate = gate.detach()
        rows = torch.mul(select, gate, out=take(scratch, "rows", shape, logits))
    if partner is not None:
        rows = _zero_at(rows, partner[:, None])
    return SoftRows(rows, select, gate)


def _select(logits: Tensor, difference: Tensor, target: Tensor, kind: Surrogate, scratch: Scratch | None) -> Tensor:
    shape = (logits.shape[0], logits.shape[1])
    room = take(scratch, "select", shape, logits)
    if not kind.uses_softmax:
        positive = difference.relu()  # already 0 at the label
        return positive / positive.sum(1, keepdim=True).clamp_min(torch.finfo(positive.dtype).tiny)
    if kind.competitors == "non-target":
        others = torch.scatter(logits, 1, target, -torch.inf, out=take(scratch, "rows", shape, logits))
        return torch.softmax(others, 1, out=room)
    return _zero_at(torch.softmax(logits, 1, out=room), target)


def _zero_at(values: Tensor, position: Tensor) -> Tensor:
    return values.scatter(1, position, 0) if values.requires_grad else values.scatter_(1, position, 0)


def soft_gradient(
    soft: SoftRows, left: Tensor, scale: Tensor, logits: Tensor, label: Tensor, kind: Surrogate
) -> Tensor:
    """Gradient of ``sum_e scale_e * rows_e . left`` with respect to the logits of each entry, (E, K); uses up ``soft``.

    For a softmax selection, with a = rows * left and h = sum(a): a - select * h, plus a * (1 - gate) from the
    gate; the label's own entry is minus the sum of the others.
    """
    weighted = soft.rows.mul_(left)  # in place throughout: fresh memory of this size costs more than the arithmetic
    total = weighted.sum(1, keepdim=True)
    if kind.uses_softmax:
        gradient = soft.select.mul_(-total)
    else:
        positive = soft.select > 0
        room = (logits - logits.gather(1, label[:, None])).relu().sum(1, keepdim=True)
        share = weighted / soft.select.where(positive, 1)  # left * gate, 0 where a partner is masked
        gradient = ((share - total) / room.where(room > 0, 1)).where(positive, 0).sub_(weighted)
    if kind.gate_grad and soft.gate is not None and kind.form != "no-both":
        gradient.addcmul_(weighted, soft.gate.sub_(2), value=-1)  # selection 1, gate 1 - g
    else:
        gradient.add_(weighted)
    gradient = gradient * scale[:, None]  # fresh memory at last: this outlives the step
    return gradient.scatter_(1, label[:, None], -gradient.sum(1, keepdim=True))
