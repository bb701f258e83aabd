"""A value with a gradient that was computed beside it: how CAR meets autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from .batch_confusion import BatchConfusion

Weight: TypeAlias = Callable[[Tensor], "Tensor | float"]


class Differentiable(Protocol):
    """What a value is as a function of the logits, once more; ``entropy`` above 0 says that it is a whole loss."""

    @property
    def entropy(self) -> float: ...
    def gradient(self) -> Tensor: ...
    def of(self, scores: Tensor) -> Tensor: ...


class Found(Protocol):
    """A norm of the history, whose derivative by column j of the matrix is ``right[j] * left``; None is all ones."""

    @property
    def value(self) -> Tensor: ...
    @property
    def left(self) -> Tensor | None: ...
    @property
    def right(self) -> Tensor: ...


class Objective(NamedTuple):
    """The sum over a batch's entries of ``scale * rows . left``, plus ``entropy`` times the summed cross entropy."""

    batch: BatchConfusion
    left: Tensor | None
    scale: Tensor
    entropy: float = 0.0

    def gradient(self) -> Tensor:
        return self.batch.gradient(self.left, self.scale, self.entropy)

    def of(self, scores: Tensor) -> Tensor:
        return self.batch.objective(scores, self.left, self.scale, self.entropy)


def joined(
    scores: Tensor, batch: BatchConfusion, found: Found, learned: Tensor, alpha: Weight | None
) -> tuple[Tensor, Tensor | None]:
    """The norm that was found as a function of the logits.

    With ``alpha``, and where one softmax serves both: the mean cross entropy plus this times the norm; and, detached,
    the cross entropy.
    """
    with torch.no_grad():
        scale = learned * found.right.index_select(0, batch.items.label)
        base, entropy, value = None if alpha is None else batch.entropy(), 0.0, found.value.clone()
        if alpha is not None and base is not None:
            weight = alpha(value)
            scale, value, entropy = scale * weight, base + weight * value, 1 / len(scores)
        objective = Objective(batch, found.left, scale, entropy)
        gradient = objective.gradient() if scores.requires_grad else None
    return attach(scores, value, gradient, objective), base


def attach(scores: Tensor, value: Tensor, gradient: Tensor | None, objective: Differentiable) -> Tensor:
    """``value``, which nobody else holds, as a function of the logits with this gradient, that of ``objective``."""
    if gradient is None:
        return value
    if torch.compiler.is_compiling():
        return cast(Callable[..., Tensor], Attach.apply)(scores, value, gradient)
    return cast(Callable[..., Tensor], AttachOnce.apply)(scores, [value, gradient, objective])


class Attach(torch.autograd.Function):
    """Gives a value the gradient that was computed beside it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None, None


class AttachOnce(torch.autograd.Function):
    """The same for eager mode: hands its gradient over without a copy, and can be differentiated again.

    All but the logits comes in a list, which autograd does not look into.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, rest: list[Any]) -> Tensor:
        ctx.save_for_backward(scores)
        value, ctx.gradient, ctx.objective = rest
        return cast(Tensor, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # backward(create_graph=True)
            (scores,) = ctx.saved_tensors
            (gradient,) = torch.autograd.grad(ctx.objective.of(scores), scores, create_graph=True)
            return grad * gradient, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # a second time through a retained graph
            gradient = ctx.objective.gradient()
        if ctx.objective.entropy and float(grad) == 1:  # a whole loss, on a CPU, is mostly differentiated as it is
            return gradient, None
        return gradient.mul_(grad), None
