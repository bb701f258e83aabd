"""Implicit semantic data augmentation (ISDA, Wang et al. 2019): features spread by the covariance of their class.

A feature of class y is moved by N(0, strength * Sigma_y) without drawing: the expected cross entropy is at most that of
shifted logits, whose shift is a quadratic form of differences of class vectors,

    z~_c = z_c + strength / 2 * (w_c - w_y)^T Sigma_y (w_c - w_y).

The shift depends on the label and not on the feature, so everything here is (labels present) x K. Covariances are full
(.., A, A) or diagonal (.., A).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

MOST = 2**19
"""Numbers of one piece of the K x A differences of several classes: full covariances are worked off in such pieces."""


def quadratic_forms(weight: Tensor, classes: Tensor, cov: Tensor) -> Tensor:
    """(U, K): (w_c - w_u)^T Sigma_u (w_c - w_u) for U classes u, whose covariances are ``cov``; differentiable, twice
    too."""
    forms: Tensor = _Forms.apply(weight, cov, classes)  # type: ignore[no-untyped-call]
    return forms


class _Forms(torch.autograd.Function):
    """Keeps the inputs only: what autograd would keep of a full form is K x A numbers for each class."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, cov: Tensor, classes: Tensor) -> Tensor:
        ctx.save_for_backward(weight, cov, classes)
        own = weight[classes]
        if cov.ndim == 2:
            spread = cov * own
            forms = cov @ (weight * weight).T - 2 * spread @ weight.T + (spread * own).sum(1, keepdim=True)
            return forms.scatter(1, classes[:, None], 0.0)  # exactly, in spite of rounding
        parts = []
        for part in _parts(classes, weight):
            away = weight - own[part, None]
            parts.append(((away @ cov[part]) * away).sum(2))
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weight, cov, classes = ctx.saved_tensors
        of_weight = weight_slope(weight, classes, cov, slope) if ctx.needs_input_grad[0] else None
        of_cov = cov_slope(weight, classes, slope, cov.ndim == 3) if ctx.needs_input_grad[1] else None
        return of_weight, of_cov, None


def forms_along(weight: Tensor, direction: Tensor, classes: Tensor, cov: Tensor) -> Tensor:
    """(U, K): derivative of the quadratic forms when the weight moves along the (K, A) ``direction`` v, for symmetric
    covariances: 2 (w_c - w_u)^T Sigma_u (v_c - v_u)."""
    own, turn = weight[classes], direction[classes]
    if cov.ndim == 2:
        forms = cov @ (weight * direction).T - (cov * own) @ direction.T - (cov * turn) @ weight.T
        forms = 2 * (forms + (cov * own * turn).sum(1, keepdim=True))
        return forms.scatter(1, classes[:, None], 0.0)
    parts = []
    for part in _parts(classes, weight):
        away, turned = weight - own[part, None], direction - turn[part, None]
        parts.append(((away @ cov[part]) * turned).sum(2) * 2)
    return torch.cat(parts)


def weight_slope(weight: Tensor, classes: Tensor, cov: Tensor, slope: Tensor) -> Tensor:
    """(K, A): gradient of sum(slope * forms) with respect to the weight."""
    if cov.ndim == 2:
        own = weight[classes]
        direct = weight * (slope.T @ cov) - slope.T @ (cov * own)
        back = cov * (slope @ weight - slope.sum(1, keepdim=True) * own)
        return 2 * direct.index_add(0, classes, -back)
    total = torch.zeros_like(weight)
    for part in _parts(classes, weight):
        both = cov[part] + cov[part].transpose(1, 2)
        moved = slope[part, :, None] * ((weight - weight[classes[part], None]) @ both)
        total = (total + moved.sum(0)).index_add(0, classes[part], -moved.sum(1))
    return total


def cov_slope(weight: Tensor, classes: Tensor, slope: Tensor, full: bool) -> Tensor:
    """(U, A, A) or (U, A): gradient of sum(slope * forms) with respect to the covariances, sum_c slope_uc d d^T with
    d = w_c - w_u."""
    own = weight[classes]
    if not full:
        return slope @ (weight * weight) - 2 * own * (slope @ weight) + own * own * slope.sum(1, keepdim=True)
    parts = []
    for part in _parts(classes, weight):
        away = weight - own[part, None]
        parts.append(away.transpose(1, 2) @ (slope[part, :, None] * away))
    return torch.cat(parts)


def cov_slope_along(
    weight: Tensor, direction: Tensor, classes: Tensor, slope: Tensor, bend: Tensor, full: bool
) -> Tensor:
    """Derivative of :func:`cov_slope` when the weight moves along ``direction`` v and the slope by ``bend``:
    sum_c bend d d^T + slope (d e^T + e d^T), with e = v_c - v_u."""
    own, turn = weight[classes], direction[classes]
    if not full:
        mixed = slope @ (weight * direction) - turn * (slope @ weight) - own * (slope @ direction)
        return cov_slope(weight, classes, bend, full) + 2 * (mixed + own * turn * slope.sum(1, keepdim=True))
    parts = []
    for part in _parts(classes, weight):
        away, turned = weight - own[part, None], direction - turn[part, None]
        parts.append(away.transpose(1, 2) @ (bend[part, :, None] * away + 2 * slope[part, :, None] * turned))
    products = torch.cat(parts)
    return (products + products.transpose(1, 2)) / 2


def _parts(classes: Tensor, weight: Tensor) -> Iterator[slice]:
    """So many classes at a time that their differences of class vectors stay small; one at least."""
    size = max(1, MOST // weight.numel())
    return (slice(start, start + size) for start in range(0, len(classes), size))
