"""One SGD step ahead: how the loss on a meta batch depends on the covariances that the step was made with."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..._core.distributed import summed
from ..._core.dtypes import at_least_single
from ...augment.isda import cov_slope_along, forms_along, quadratic_forms, weight_slope

PIECE = 64
"""Images that a thread takes through a frozen backbone at once. Smaller maps are cheaper to allocate in a fresh process
(a sixth of the pass for a ResNet-20 at batch 128), and cost nothing in one that has trained before."""


class Backbone:
    """A backbone in the step ahead. It gives the ``features`` of the batch, may make the step too, and gives the
    features of the meta batch after it. A slope in the features is ``slope @ weight`` of the head.

    It runs without a trace: with other weights if asked, and on copies of its running statistics.
    """

    features: Tensor
    logits: Tensor | None = None
    """Of the batch, if they are known."""

    def __init__(self, backbone: nn.Module, device: str) -> None:
        self.backbone = backbone
        self.autocast = torch.autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))

    def run(self, images: Any, weights: dict[str, Tensor] | None = None) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}
        with self.autocast:
            features: Tensor = functional_call(self.backbone, {**buffers, **(weights or {})}, (images,))
        return at_least_single(features)

    def step(self, slope: Tensor, weight: Tensor, lr: float) -> None:
        """Make the step, given the slope of the augmented loss in the logits; as it stands, nothing moves."""

    def meta(self, images: Any) -> Tensor:
        """Features after the step."""
        raise NotImplementedError

    def turned(self, slope: Tensor, weight: Tensor) -> Tensor | None:
        """Derivative of the features of the batch along v, given the slope of the meta loss in its logits; None for a
        backbone that stays."""
        return None


class Still(Backbone):
    """A backbone that the step ahead leaves where it is. Features and logits of the batch are those of the real
    pass, unless these were rounded."""

    def __init__(self, backbone: nn.Module, features: Tensor, logits: Tensor) -> None:
        super().__init__(backbone, features.device.type)
        self.features = at_least_single(features.detach())
        self.logits = logits.detach() if logits.dtype == self.features.dtype else None

    @torch.no_grad()
    def meta(self, images: Any) -> Tensor:
        if any(module.training for module in self.backbone.modules()):
            return self.run(images)  # batch norm needs the images together, and its statistics must not notice
        size = PIECE * torch.get_num_threads() if images.device.type == "cpu" else len(images)
        with self.autocast:
            features = torch.cat([self.backbone(part) for part in images.split(size)])
        return at_least_single(features)


class Moving(Backbone):
    """A backbone that makes the step ahead too: two more passes forward, two backward and one of second order."""

    def __init__(self, backbone: nn.Module, images: Any) -> None:
        super().__init__(backbone, images.device.type)
        named = backbone.named_parameters()
        self.weights = {name: value.detach().requires_grad_() for name, value in named if value.requires_grad}
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            self.graph = self.run(images, self.weights)
        self.features = self.graph.detach()

    def step(self, slope: Tensor, weight: Tensor, lr: float) -> None:
        # the gradient is linear in this slope, and differentiating along v by it gives the derivative of the features
        self.slope = (slope @ weight).requires_grad_()
        values = list(self.weights.values())
        self.gradients = torch.autograd.grad(
            self.graph, values, self.slope, create_graph=True, allow_unused=True, materialize_grads=True
        )
        moves = summed(*self.gradients)
        self.ahead = {
            name: (value.detach() - lr * move.detach()).requires_grad_()
            for (name, value), move in zip(self.weights.items(), moves, strict=True)
        }

    def meta(self, images: Any) -> Tensor:
        with torch.enable_grad():
            self.graph = self.run(images, self.ahead)
        return self.graph.detach()

    def turned(self, slope: Tensor, weight: Tensor) -> Tensor | None:
        values = list(self.ahead.values())
        v = torch.autograd.grad(self.graph, values, slope @ weight, allow_unused=True, materialize_grads=True)
        pairs = [(g, along) for g, along in zip(self.gradients, summed(*v), strict=True) if g.requires_grad]
        if not pairs:
            return None
        gradients, along = zip(*pairs, strict=True)
        return torch.autograd.grad(gradients, self.slope, along)[0]


class Augmented(NamedTuple):
    """What the augmented loss of a batch is made of, beside the features."""

    labels: Tensor
    """(N,)"""
    shares: Tensor
    """(N,) factors of the samples' losses: class weight over what the loss is divided by on all ranks."""
    margin: Tensor
    """(K,) subtracted from the logit of the label."""
    cov: Tensor
    """(U, A, A) or (U, A), symmetric, of the ``classes``."""
    classes: Tensor
    """(U,) classes of the batch."""
    slot: Tensor
    """(N,) where among them each label is."""
    strength: float


@torch.no_grad()
def covariance_gradient(
    head: nn.Linear, backbone: Backbone, batch: Augmented, lr: float, images: Any, labels: Tensor, total: Tensor | float
) -> tuple[Tensor, Tensor]:
    """How the loss on a meta batch, one SGD step ahead on the augmented loss, depends on the covariances: its gradient
    with respect to ``batch.cov``, and the loss (of this rank).

    With theta' = theta - lr * g(S), where g is the gradient of the augmented loss, d meta / dS = -lr * d<g(S), v> / dS
    for v = d meta / d theta'. And <g(S), v> is the derivative of the augmented loss along v: the sum over the batch of
    the slopes in the logits times the derivatives of the augmented logits along v. For a linear head both are written
    out, so it needs no second backward pass; ranks exchange g, v and the result, which is that of one process. A
    backbone that moves too enters by the derivative of its features along v.

    Args:
        head: of the model.
        backbone: gives the features of the batch and of the meta batch.
        batch: that the step is made on.
        lr: of the step ahead.
        images: of the meta batch.
        labels: of these.
        total: how many they are on all ranks.
    """
    features, classes, slot, half = backbone.features, batch.classes, batch.slot, batch.strength / 2
    weight, bias = head.weight.detach().to(features), head.bias.detach().to(features)
    chosen, shares = batch.labels[:, None], batch.shares[:, None]
    # the step ahead
    logits = F.linear(features, weight, bias) if backbone.logits is None else backbone.logits
    logits = logits + half * quadratic_forms(weight, classes, batch.cov)[slot]
    p = logits.scatter_add_(1, chosen, -batch.margin.to(logits)[chosen]).softmax(1)
    slope = (shares * p).scatter_add_(1, chosen, -shares)
    by_class = slope.new_zeros(len(classes), len(weight)).index_add_(0, slot, slope)
    move, move_bias = summed(
        slope.T @ features + half * weight_slope(weight, classes, batch.cov, by_class), slope.sum(0)
    )
    with torch.enable_grad():
        backbone.step(slope, weight, lr)
    # the meta loss there, and v
    after, weight_after = backbone.meta(images), weight - lr * move
    log_p = F.linear(after, weight_after, bias - lr * move_bias).log_softmax(1)
    meta_loss = F.nll_loss(log_p, labels)
    meta_slope = log_p.exp_().scatter_add_(1, labels[:, None], -torch.ones_like(log_p[:, :1])) / total
    turn, turn_bias = summed(meta_slope.T @ after, meta_slope.sum(0))
    with torch.enable_grad():
        turned = backbone.turned(meta_slope, weight_after)
    # along v: of the augmented logits, of the softmax, of the gradient with respect to the covariances
    along = F.linear(features, turn, turn_bias) + half * forms_along(weight, turn, classes, batch.cov)[slot]
    if turned is not None:
        along += F.linear(turned, weight)
    bend = shares * p * (along - (p * along).sum(1, keepdim=True))
    bend = torch.zeros_like(by_class).index_add_(0, slot, bend)
    slope_along = cov_slope_along(weight, turn, classes, by_class, bend, batch.cov.ndim == 3)
    [gradient] = summed(-lr * batch.strength / 2 * slope_along)
    return gradient, meta_loss


def smallest_eigenvalue(cov: Tensor) -> Tensor:
    """Of several symmetric matrices. Waits for the device, which must tell whether the decomposition has worked."""
    values: Tensor = torch.linalg.eigvalsh(cov)
    return values.min()


def cut_off(cov: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric matrices without their negative eigenvalues, and the smallest eigenvalue there was. Waits, too."""
    values, vectors = torch.linalg.eigh(cov)
    return (vectors * values.clamp_min(0)[:, None]) @ vectors.transpose(1, 2), values.min()
