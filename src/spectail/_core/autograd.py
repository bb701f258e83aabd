"""A value with a gradient that was computed beside it: how CAR meets autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from .batch_confusion import BatchConfusion


def attach(
    scores: Tensor, value: Tensor, gradient: Tensor | None, batch: BatchConfusion, left: Tensor, scale: Tensor
) -> Tensor:
    """``value`` as a function of ``scores`` with this gradient, that of ``batch.objective(scores, left, scale)``."""
    if gradient is None:
        return value
    if torch.compiler.is_compiling():
        return cast(Callable[..., Tensor], Attach.apply)(scores, value, gradient)
    return cast(Callable[..., Tensor], AttachOnce.apply)(scores, value, gradient, batch, left, scale)


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
    """The same for eager mode: hands its gradient over without a copy, and can be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, value: Tensor, gradient: Tensor, batch: BatchConfusion, left: Tensor, scale: Tensor
    ) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.gradient, ctx.batch, ctx.left, ctx.scale = gradient, batch, left, scale
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # backward(create_graph=True)
            (scores,) = ctx.saved_tensors
            objective = ctx.batch.objective(scores, ctx.left, ctx.scale)
            (gradient,) = torch.autograd.grad(objective, scores, create_graph=True)
            return grad * gradient, None, None, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # a second time through a retained graph
            gradient = ctx.batch.gradient(ctx.left, ctx.scale)
        return gradient.mul_(grad), None, None, None, None, None
