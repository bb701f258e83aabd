"""A step of ``norm="worst"``: the running error of each class, and a soft maximum of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .history import other_classes
from .rates import Step


class WorstErrors(NamedTuple):
    """What ``norm="worst"`` found: ``value`` is the sum of ``shares * errors``. All tensors are detached."""

    value: Tensor
    errors: Tensor
    """(K,) running error of each class times Lambda."""
    shares: Tensor
    """(K,) how much each class counts; they sum to 1."""

    @property
    def left(self) -> None:
        """Every confusion of a class counts alike, whoever takes its points."""

    @property
    def right(self) -> Tensor:
        return self.shares


class ClassErrors(nn.Module):
    """The running soft error of each class, that is the column sums of the running confusion, without Lambda.

    K numbers in place of a matrix, which is all that a soft maximum of class errors needs.
    """

    errors: Tensor
    seen: Tensor
    steps: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.reset()

    @property
    def dtype(self) -> torch.dtype:
        return self.errors.dtype

    def reset(self, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> None:
        self.register_buffer("errors", torch.zeros(self.num_classes, dtype=dtype, device=device))
        self.register_buffer("seen", torch.zeros(self.num_classes, dtype=torch.bool, device=device))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))

    def convert(self, dtype: torch.dtype) -> None:
        if self.errors.dtype != dtype:
            self.errors = self.errors.to(dtype)

    def note(self, mass: Tensor, filled: Tensor | bool = True) -> None:
        """Count a step and remember which classes it showed, for a start from the first estimate."""
        self.steps.add_(filled)
        self.seen.logical_or_(mass > 0)

    def refusal(self, state: dict[str, Any], prefix: str) -> str | None:
        """Why a saved state cannot be taken, or None."""
        if prefix + "rows" in state:
            return "this history was saved with norm='spectral' and the regulariser has norm='worst': both must agree."
        return other_classes(state.get(prefix + "seen"), self.num_classes)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        problem, errors = self.refusal(state_dict, prefix), args[-1]
        if problem is not None:
            errors.append(problem)
            return
        saved = state_dict.get(prefix + "errors")
        if saved is not None:
            self.convert(saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)


def soft_maximum(errors: Tensor, sharpness: float) -> WorstErrors:
    """The mean of the errors with shares softmax(sharpness * errors / largest), from their plain mean to the largest.

    Example:
        >>> soft_maximum(torch.tensor([1.0, 2.0, 4.0]), 20.0).shares.round(decimals=3)
        tensor([0., 0., 1.])
    """
    top = errors.max()
    lag = errors / top.where(top > 0, 1) - 1  # 0 at the largest, so nothing overflows; without any error all are alike
    shares = (sharpness * lag).softmax(0)
    return WorstErrors((shares * errors).sum(), errors, shares)


def worst_step(history: ClassErrors, step: Step, weights: Tensor, sharpness: float) -> tuple[WorstErrors, Tensor]:
    """The soft maximum after a batch, and by entry how much of the batch carries gradient."""
    batch, mass, filled = step.batch, step.batch.mass, step.filled
    rate, enters, learned = step.rates(torch.ones_like(mass), history.seen, history.steps)
    errors = history.errors.to(mass.dtype) * step.kept(rate, filled)
    if step.group is None:
        errors.index_add_(0, batch.items.label, batch.errors() * enters)
    else:
        errors.addcmul_(step.ranks.errors(batch, step.group), enters)
    if step.commit:
        history.convert(mass.dtype)
        history.errors.copy_(errors)
        if step.seeds:
            history.note(mass, True if filled is None else filled)
    found = soft_maximum(errors * weights, sharpness)
    if filled is not None:
        found = found._replace(value=found.value * filled)
    return found, learned * weights.index_select(0, batch.items.label)
