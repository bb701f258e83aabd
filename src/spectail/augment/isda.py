"""Implicit semantic data augmentation (ISDA, Wang et al. 2019): features spread by the covariance of their class.

A feature of class y is moved by N(0, strength * Sigma_y) without drawing: the expected cross entropy is at most that of
shifted logits, whose shift is a quadratic form of differences of class vectors,

    z~_c = z_c + strength / 2 * (w_c - w_y)^T Sigma_y (w_c - w_y).

The shift depends on the label and not on the feature, so everything here is (labels present) x K. Covariances are full
(.., A, A) or diagonal (.., A).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core.distributed import summed
from ..targets import class_indices

MOST = 2**19
"""Numbers of one piece of the K x A differences of several classes: full covariances are worked off in such pieces."""


def isda_logits(logits: Tensor, weight: Tensor, labels: Tensor, cov: Tensor, strength: float) -> Tensor:
    """(N, K) logits z~ whose cross entropy bounds the expected one under augmentation; that of the label stays.

    Args:
        logits: (N, K), of a linear head.
        weight: (K, A) of that head; the gradient flows through it.
        labels: (N,) class indices.
        cov: (K, A, A) covariances of the classes, or (K, A) diagonals; symmetric, but not necessarily positive.
        strength: lambda; 0 gives the logits.

    No tensor of N x K x A or N x K x K numbers is made, forward or backward. Computed in float32 at least; float64 is
    kept.

    Example:
        >>> weight, cov = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 1.0], [0.0, 0.0]])
        >>> isda_logits(torch.tensor([[1.0, 2.0]]), weight, torch.tensor([0]), cov, strength=0.5)
        tensor([[1.0000, 2.7500]])
    """
    labels = class_indices(labels, "isda_logits")
    if weight.ndim != 2 or logits.ndim != 2 or logits.shape[1] != len(weight):
        raise ValueError(
            f"logits must be (N, K) and weight (K, A); got {tuple(logits.shape)} and {tuple(weight.shape)}."
        )
    classes, features = weight.shape
    if cov.shape not in ((classes, features, features), (classes, features)):
        raise ValueError(
            f"cov must be ({classes}, {features}, {features}) or ({classes}, {features}) for a weight of shape "
            f"{tuple(weight.shape)}; got {tuple(cov.shape)}."
        )
    with torch.autocast(logits.device.type, enabled=False):
        dtype = torch.promote_types(torch.promote_types(logits.dtype, cov.dtype), torch.float32)
        present, place = torch.unique(labels, return_inverse=True)
        forms = quadratic_forms(weight.to(dtype), present, cov[present].to(dtype))
        return logits.to(dtype) + strength / 2 * forms[place]


def quadratic_forms(weight: Tensor, classes: Tensor, cov: Tensor) -> Tensor:
    """(U, K): (w_c - w_u)^T Sigma_u (w_c - w_u) for U classes u, whose covariances are ``cov``; differentiable, twice
    too."""
    found: Tensor = _Forms.apply(weight, cov, classes)  # type: ignore[no-untyped-call]
    return found


class _Forms(torch.autograd.Function):
    """Keeps the inputs only: what autograd would keep of a full form is K x A numbers for each class."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, cov: Tensor, classes: Tensor) -> Tensor:
        ctx.save_for_backward(weight, cov, classes)
        return forms_along(weight, None, classes, cov)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weight, cov, classes = ctx.saved_tensors
        of_weight = weight_slope(weight, classes, cov, slope) if ctx.needs_input_grad[0] else None
        of_cov = cov_slope(weight, classes, slope, cov.ndim == 3) if ctx.needs_input_grad[1] else None
        return of_weight, of_cov, None


def forms_along(weight: Tensor, direction: Tensor | None, classes: Tensor, cov: Tensor) -> Tensor:
    """The quadratic forms, or with a (K, A) ``direction`` of the weight their derivative along it (for symmetric
    covariances): 2 (w_c - w_u)^T Sigma_u (v_c - v_u)."""
    own = weight[classes]
    if cov.ndim == 2:
        if direction is None:
            spread = cov * own
            found = cov @ (weight * weight).T - 2 * spread @ weight.T + (spread * own).sum(1, keepdim=True)
        else:
            turn = direction[classes]
            found = cov @ (weight * direction).T - (cov * own) @ direction.T - (cov * turn) @ weight.T
            found = 2 * (found + (cov * own * turn).sum(1, keepdim=True))
        return found.scatter(1, classes[:, None], 0.0)  # exactly, in spite of rounding
    parts = []
    for part in _parts(classes, weight):
        away = weight - own[part, None]
        other = away if direction is None else direction - direction[classes[part], None]
        parts.append(((away @ cov[part]) * other).sum(2) * (1 if direction is None else 2))
    return torch.cat(parts)


def weight_slope(weight: Tensor, classes: Tensor, cov: Tensor, slope: Tensor) -> Tensor:
    """(K, A): gradient of sum(slope * forms) with respect to the weight."""
    if cov.ndim == 2:
        own = weight[classes]
        found = weight * (slope.T @ cov) - slope.T @ (cov * own)
        back = cov * (slope @ weight - slope.sum(1, keepdim=True) * own)
        return 2 * found.index_add(0, classes, -back)
    found = torch.zeros_like(weight)
    for part in _parts(classes, weight):
        both = cov[part] + cov[part].transpose(1, 2)
        moved = slope[part, :, None] * ((weight - weight[classes[part], None]) @ both)
        found = (found + moved.sum(0)).index_add(0, classes[part], -moved.sum(1))
    return found


def cov_slope(
    weight: Tensor, classes: Tensor, slope: Tensor, full: bool,
    direction: Tensor | None = None, along: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(U, A, A) or (U, A): gradient of sum(slope * forms) with respect to the covariances, sum_c slope_uc d d^T with
    d = w_c - w_u. With ``direction`` v of the weight and ``along`` (U, K), the derivative of that gradient when the
    weight moves along v and a slope of ``along`` moves by ``slope``: sum_c slope d d^T + along (d e^T + e d^T)."""
    own = weight[classes]
    if not full:
        found = slope @ (weight * weight) - 2 * own * (slope @ weight) + own * own * slope.sum(1, keepdim=True)
        if direction is None or along is None:
            return found
        turn = direction[classes]
        mixed = along @ (weight * direction) - turn * (along @ weight) - own * (along @ direction)
        return found + 2 * (mixed + own * turn * along.sum(1, keepdim=True))
    parts = []
    for part in _parts(classes, weight):
        away = weight - own[part, None]
        other = slope[part, :, None] * away
        if direction is not None and along is not None:
            other = other + 2 * along[part, :, None] * (direction - direction[classes[part], None])
        parts.append(away.transpose(1, 2) @ other)
    found = torch.cat(parts)
    return found if direction is None else (found + found.transpose(1, 2)) / 2


class Virtual(Protocol):
    """A backbone in the step ahead. It gives the ``features`` of the batch, may make the step too, and gives the
    features of the meta batch after it. A slope in the features is ``slope @ weight`` of the head."""

    features: Tensor
    logits: Tensor | None
    """Of the batch, if they are known."""

    def step(self, slope: Tensor, weight: Tensor, lr: float) -> None:
        """Make the step, given the slope of the augmented loss in the logits."""

    def meta(self, images: Any) -> Tensor:
        """Features after the step."""

    def turned(self, slope: Tensor, weight: Tensor) -> Tensor | None:
        """Derivative of the features of the batch along v, given the slope of the meta loss in its logits; None for a
        backbone that stays."""


@torch.no_grad()
def covariance_gradient(
    head: Any, backbone: Virtual, labels: Tensor, shares: Tensor, margin: Tensor, cov: Tensor, classes: Tensor,
    place: Tensor, strength: float, lr: float, images: Any, meta_labels: Tensor, meta_total: Tensor | float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How the loss on a meta batch, one SGD step ahead on the augmented loss, depends on the covariances: its gradient
    with respect to ``cov``, and the loss (of this rank).

    With theta' = theta - lr * g(S), where g is the gradient of the augmented loss, d meta / dS = -lr * d<g(S), v> / dS
    for v = d meta / d theta'. And <g(S), v> is the derivative of the augmented loss along v: the sum over the batch of
    the slopes in the logits times the derivatives of the augmented logits along v. For a linear head both are written
    out, so it needs no second backward pass; ranks exchange g, v and the result, which is that of one process. A
    backbone that moves too enters by the derivative of its features along v.

    Args:
        head: linear, with ``weight`` and ``bias``.
        backbone: gives the features of the batch and of the meta batch.
        labels: (N,).
        shares: (N,) factors of the samples' losses: class weight over what the loss is divided by on all ranks.
        margin: (K,) subtracted from the logit of the label.
        cov: (U, A, A) or (U, A), symmetric, of the ``classes`` (U,).
        place: (N,) where each label is among them.
        strength: of the augmentation.
        lr: of the step ahead.
        images: of the meta batch.
        meta_labels: of these.
        meta_total: images of the meta batch on all ranks.
    """
    features = backbone.features
    weight, bias = head.weight.detach().to(features), head.bias.detach().to(features)
    chosen = labels[:, None]
    # the step ahead
    logits = F.linear(features, weight, bias) if backbone.logits is None else backbone.logits
    logits = logits + strength / 2 * forms_along(weight, None, classes, cov)[place]
    shares = shares[:, None]
    p = logits.scatter_add_(1, chosen, -margin.to(logits)[chosen]).softmax(1)
    slope = (shares * p).scatter_add_(1, chosen, -shares)
    by_class = slope.new_zeros(len(classes), len(weight)).index_add_(0, place, slope)
    move = slope.T @ features + strength / 2 * weight_slope(weight, classes, cov, by_class)
    move, move_bias = summed(move, slope.sum(0))
    with torch.enable_grad():
        backbone.step(slope, weight, lr)
    # the meta loss there, and v
    after, meta_weight = backbone.meta(images), weight - lr * move
    log_p = F.linear(after, meta_weight, bias - lr * move_bias).log_softmax(1)
    meta_loss = F.nll_loss(log_p, meta_labels)
    meta_slope = log_p.exp_().scatter_add_(1, meta_labels[:, None], -torch.ones_like(log_p[:, :1])) / meta_total
    turn, turn_bias = summed(meta_slope.T @ after, meta_slope.sum(0))
    with torch.enable_grad():
        turned = backbone.turned(meta_slope, meta_weight)
    # along v: of the augmented logits, of the softmax, of the gradient with respect to the covariances
    along = F.linear(features, turn, turn_bias) + strength / 2 * forms_along(weight, turn, classes, cov)[place]
    if turned is not None:
        along += F.linear(turned, weight)
    bend = shares * p * (along - (p * along).sum(1, keepdim=True))
    bend = torch.zeros_like(by_class).index_add_(0, place, bend)
    found = cov_slope(weight, classes, bend, cov.ndim == 3, turn, by_class)
    [gradient] = summed(-lr * strength / 2 * found)
    return gradient, meta_loss


def _parts(classes: Tensor, weight: Tensor) -> Iterator[slice]:
    """So many classes at a time that their differences of class vectors stay small; one at least."""
    size = max(1, MOST // weight.numel())
    return (slice(start, start + size) for start in range(0, len(classes), size))
