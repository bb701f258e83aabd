"""The differentiable confusion of single samples: the definition, and a faster form with its gradient written down.

One entry (a sample with label j) gives a row over predicted classes i, zero at i = j:

    s_i = gate_i * select_i,   gate_i = sigmoid(gamma + f_i - f_j),   select = softmax over the competitors of j.

Everything depends on differences f_i - f_j only, so the gradient of a row sums to zero over the classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .workspace import Scratch, take

COMPETITORS = ("all", "non-target")
SURROGATES = ("full", "no-gate", "no-softmax", "no-both")


@dataclass(frozen=True)
class Surrogate:
    """Which surrogate: the paper's, a variant of its text, or one of its ablations."""

    gamma: float = 0.0
    competitors: str = "all"
    gate_grad: bool = True
    form: str = "full"
    temperature: float = 1.0
    baseline_grad: bool = True

    def __post_init__(self) -> None:
        if self.competitors not in COMPETITORS:
            raise ValueError(f"competitors must be one of {', '.join(COMPETITORS)}; got {self.competitors!r}.")
        if self.form not in SURROGATES:
            raise ValueError(f"surrogate must be one of {', '.join(SURROGATES)}; got {self.form!r}.")
        if not 0 <= self.gamma < float("inf"):
            raise ValueError(f"gamma is a margin in logit units and must be 0 or more; got {self.gamma}.")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature divides the logits of the softmax and must be above 0; got {self.temperature}."
            )

    @property
    def plain(self) -> bool:
        """Whether it is the paper's, up to margin and competitors."""
        return self.form == "full" and self.gate_grad and self.temperature == 1

    @property
    def uses_softmax(self) -> bool:
        return self.form in ("full", "no-gate")

    @property
    def gate_learns(self) -> bool:
        """Whether a gradient flows through the gate."""
        return self.gate_grad and self.form in ("full", "no-softmax")


def soft_rows(logits: Tensor, label: Tensor, partner: Tensor | None, kind: Surrogate) -> Tensor:
    """Soft confusion of each entry, (E, K): the definition, for autograd.

    Args:
        logits: (E, K).
        label: (E,) true class, whose own row is 0.
        partner: (E,) a class left out because predicting it is no error, or None.
    """
    target = label[:, None]
    true = logits.gather(1, target)
    lead = logits - true
    if kind.uses_softmax:
        rivals = logits.scatter(1, target, -torch.inf) if kind.competitors == "non-target" else logits
        select = (rivals / kind.temperature).softmax(1)
    else:
        positive = (lead if kind.baseline_grad else logits - true.detach()).relu()
        select = positive / positive.sum(1, keepdim=True).clamp_min(torch.finfo(positive.dtype).tiny)
    if kind.form == "no-gate":
        rows = select
    else:
        gate = (kind.gamma + lead).relu() if kind.form == "no-both" else (kind.gamma + lead).sigmoid()
        rows = select * (gate if kind.gate_learns else gate.detach())
    rows = rows.scatter(1, target, 0)
    return rows if partner is None else rows.scatter(1, partner[:, None], 0)


class SoftRows(NamedTuple):
    """The same rows with the factors that their gradient needs; ``gate`` is None where the form has none."""

    rows: Tensor
    select: Tensor
    gate: Tensor | None
    target: Tensor
    """(E, 1) true class."""
    chance: Tensor | None = None
    """(E, 1) softmax of the true class, where the plain softmax was taken."""
    rest: Tensor | float = 1.0
    """(E, 1) what the plain softmax of the others was divided by."""
    partner: Tensor | None = None
    """(E, 1) a class whose row and gate are 0 because it is no error; the true class for those that have none."""


def fast_rows(
    logits: Tensor, label: Tensor, partner: Tensor | None, kind: Surrogate, scratch: Scratch | None = None
) -> SoftRows:
    """What :func:`soft_rows` gives, without autograd and with few passes over the logits.

    Args:
        scratch: where the results may lie; the next call overwrites them.
    """
    target, shape = label[:, None], (logits.shape[0], logits.shape[1])
    first, second = take(scratch, "select", shape, logits), take(scratch, "gate", shape, logits)
    gate: Tensor | None = None
    chance: Tensor | None = None
    rest: Tensor | float = 1.0
    if kind.form == "full" and kind.temperature == 1:
        # exp(f) is in the softmax already: sigmoid(gamma + f_i - f_j) = p_i / (p_i + p_j exp(-gamma))
        select = torch.softmax(logits, 1, out=first)
        chance = select.gather(1, target)
        select.scatter_(1, target, 0)
        gate = torch.add(select, lowered(chance, kind.gamma), out=second)
        torch.div(select, gate, out=gate)
        if kind.competitors == "non-target":
            rest = select.sum(1, keepdim=True).clamp_min_(torch.finfo(select.dtype).tiny)
            select.div_(rest)
    else:
        lead = logits - logits.gather(1, target)
        if kind.uses_softmax:
            rivals = logits.scatter(1, target, -torch.inf) if kind.competitors == "non-target" else logits
            select = torch.softmax(rivals / kind.temperature, 1, out=first).scatter_(1, target, 0)
        else:
            positive = lead.relu()  # already 0 at the label
            select = positive / positive.sum(1, keepdim=True).clamp_min(torch.finfo(positive.dtype).tiny)
        if kind.form != "no-gate":
            lead += kind.gamma
            gate = lead.relu_() if kind.form == "no-both" else lead.sigmoid_()
    other = None if partner is None else partner[:, None]
    held = select.clone() if gate is None else gate
    held = held if other is None else held.scatter_(1, other, 0)
    rows = held if gate is None else torch.mul(select, gate, out=take(scratch, "rows", shape, logits))
    return SoftRows(rows, select, gate, target, chance, rest, other)


def soft_gradient(
    soft: SoftRows, left: Tensor | None, scale: Tensor, logits: Tensor, kind: Surrogate, entropy: float = 0.0
) -> Tensor:
    """Gradient of ``sum_e scale_e * rows_e . left`` with respect to the logits of each entry, (E, K); uses up ``soft``.

    Without ``left`` it is all ones.

    For a softmax selection at temperature T, with a = rows * left and h = sum(a): (a - select * h) / T, plus
    a * (1 - gate) from the gate; the label's own entry is minus the sum of the others.

    ``entropy`` times that of the summed cross entropy comes with it, for the plain softmax: away from the label it is
    the softmax itself, so it only changes the factor of ``select``.
    """
    target, column = soft.target, scale[:, None]
    if left is None and kind.plain:
        return _error_gradient(soft, column, kind, entropy)
    gate = soft.gate if kind.gate_learns else None
    total = (soft.rows.sum(1) if left is None else torch.mv(soft.rows, left))[:, None]
    if kind.uses_softmax:
        cooled = 1 / kind.temperature
        times = cooled + 1 if gate is not None else cooled  # a / T and, from the gate, a once more
        # the first result is fresh memory, which outlives the step; more of it would cost more than the arithmetic
        gradient = soft.rows * column if gate is None else torch.addcmul(soft.rows, soft.rows, gate, value=-1 / times)
        if left is None:
            gradient.mul_(times if gate is None else column * times)
        else:
            gradient.mul_(left * times)
            if gate is not None:
                gradient.mul_(column)
        factor = total.mul_(column)
        if entropy:  # the temperature is 1
            factor.sub_(soft.rest, alpha=entropy)
        gradient.addcmul_(soft.select, factor, value=-cooled)
        return gradient.scatter_(1, target, -gradient.sum(1, keepdim=True))
    weighted = soft.rows if left is None else soft.rows.mul_(left)
    positive = soft.select > 0
    room = (logits - logits.gather(1, target)).relu().sum(1, keepdim=True)
    share = weighted / soft.select.where(positive, 1)  # left * gate, 0 where a partner is masked
    gradient = ((share - total) / room.where(room > 0, 1)).where(positive, 0)
    fixed = None if kind.baseline_grad else gradient.clone()
    if gate is not None:
        gradient.addcmul_(weighted, gate - 1, value=-1)
    moved = gradient if fixed is None else gradient - fixed  # what the true logit takes part in
    return gradient.scatter_(1, target, -moved.sum(1, keepdim=True)).mul_(column)


def _error_gradient(soft: SoftRows, column: Tensor, kind: Surrogate, entropy: float) -> Tensor:
    """The same for ``left`` of ones, where h is the error of the sample: select * (gate * (2 - gate) - h).

    For a sample far on the wrong side, h and gate are close to 1 and their difference would be rounding. There it is
    select * ((1 - h) - (1 - gate)^2), with 1 - h from a sum of its own: select * (1 - gate) is gate * odds / rest.
    """
    assert soft.gate is not None
    assert soft.chance is not None
    gate, error = soft.gate, soft.rows.sum(1, keepdim=True)
    right = gate.sum(1, keepdim=True).mul_(lowered(soft.chance, kind.gamma)).div_(soft.rest)
    if kind.competitors == "all":
        right += soft.chance
    if soft.partner is not None:
        right += soft.select.gather(1, soft.partner)
    wrong = error > 0.5
    base = right.where(wrong, -error).mul_(column)
    if entropy:
        base += entropy * soft.rest
    wrong = wrong.to(gate.dtype)
    gate -= wrong
    gradient = (2 - 2 * wrong) - gate  # times the gate as it now is: gate * (2 - gate), or -(1 - gate)^2
    gradient.mul_(gate).mul_(column).add_(base).mul_(soft.select)  # addcmul is slow at columns
    return gradient.scatter_(1, soft.target, -gradient.sum(1, keepdim=True))


def lowered(chance: Tensor, gamma: float) -> Tensor:
    """The softmax of the true class with its logit lowered by the margin; not quite 0, so that one can divide by it."""
    margin = math.exp(-min(gamma, 80))  # beyond that only p_i below 1e-34 would be seen to differ
    return chance.clamp_min(torch.finfo(chance.dtype).tiny / margin) * margin
