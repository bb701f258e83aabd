"""BALMS (Ren et al. 2020): a fresh head with Balanced Softmax on batches whose class rates are learned (Meta Sampler).

Each step of the second stage looks one step ahead: how would the head do on a class-balanced meta batch after an SGD
step on the drawn batch? The gradient of that, with respect to the sampling rates, moves the rates. Then the head makes
its ordinary step on the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.loader import Batch
from ..losses import BalancedSoftmaxLoss
from ..models.classifier import Classifier
from .base import About, Outcome, Stage, Step, Stream
from .meta_sampler import MetaSampler, summed
from .two_stage import TwoStage, TwoStageOptions


@dataclass(frozen=True)
class BALMSOptions(TwoStageOptions):
    sampling: Literal["meta", "instance"] = "meta"
    """Of the second stage: learned rates, or plain shuffling (decoupled Balanced Softmax)."""
    meta_data: Literal["train", "val"] = "train"
    """Where class-balanced meta batches come from."""
    meta_batch_size: int | None = None
    """Default: the batch size of the stage."""
    meta_lr: float = 0.01
    """Learning rate of the sampling rates (Adam)."""
    meta_power: float = 0.0
    """Rates begin at (class frequency)^-power; 0 makes them equal."""
    meta_draw: Literal["class", "item"] = "class"
    """Draw a class and then an image, or among all images as the authors do (slow: batch size x images)."""
    stage2_batch_size: int | None = 512
    stage2_norm: Literal["frozen", "drift"] = "drift"


class BALMS(TwoStage):
    about = About(
        "loss, sampler, two stages",
        "NeurIPS 2020",
        "counts, class-balanced meta data (drawn from train)",
        "second stage: about twice a head step",
        "draws a class, then an image (--meta-draw item is the authors')",
    )
    options_type = BALMSOptions
    head = "linear"
    length = (2000, 13000)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = self.options
        assert isinstance(own, BALMSOptions)
        self.sampler = MetaSampler(self.counts, own.meta_power, own.meta_lr, own.meta_draw)

    def make_criterion(self) -> nn.Module:
        return BalancedSoftmaxLoss(self.counts)

    def streams(self, stage: Stage) -> dict[str, Stream]:
        own = self.options
        assert isinstance(own, BALMSOptions)
        if stage.name == "stage1" or own.sampling == "instance":
            return {"main": Stream()}
        meta = Stream("class-balanced", split=own.meta_data, batch_size=own.meta_batch_size, even=True)
        return {"main": Stream(even=True, images=False), "meta": meta}

    def disclosures(self) -> dict[str, str]:
        own = self.options
        assert isinstance(own, BALMSOptions)
        if own.sampling != "meta":
            return {}
        source = {"train": "the training set", "val": "validation data"}[own.meta_data]
        return {"meta_data": f"class-balanced draws from {source}"}

    def loss(self, model: Classifier, batches: Mapping[str, Batch], step: Step) -> Outcome:
        if "meta" not in batches:
            return super().loss(model, batches, step)
        assert step.fetch is not None
        assert step.labels is not None
        assert step.generator is not None
        rank, world = _place()
        rows, noise = self.sampler.draw(len(batches["main"].labels) * world, step.labels, step.generator)
        batch = step.fetch(rows[rank::world])
        with torch.no_grad():
            features = model.backbone(batch.images)
            meta = model.backbone(batches["meta"].images)
        logits = model.head(features)
        # the gradient with respect to the head is needed for the look ahead, so it is computed once and used twice
        free = logits.detach().float().requires_grad_()
        with torch.enable_grad():
            costs = self.criterion.costs(free).gather(1, batch.labels[:, None]).squeeze(1)  # type: ignore[operator]
            slope = torch.autograd.grad(costs.sum(), free)[0] / len(rows)
        inner = [slope.T @ features.float(), slope.sum(0)]
        held_out = (meta.float(), batches["meta"].labels)
        self._move_rates(model.head, batch, noise[rank::world], features.float(), slope, inner, held_out, step)
        loss = with_gradient(costs.detach().mean(), [model.head.weight, model.head.bias], [world * g for g in inner])  # type: ignore[list-item]
        return Outcome(loss, logits, batch.labels)

    def _move_rates(
        self, head: Any, batch: Batch, noise: Tensor, features: Tensor, slope: Tensor, inner: list[Tensor],
        meta: tuple[Tensor, Tensor], step: Step,
    ) -> None:  # fmt: skip
        """The bilevel step. The virtual weights depend on psi through the inner gradient g alone, and linearly:
        theta' = theta - lr (momentum buffer + g(psi) + decay). So d meta / d psi = -lr * d<g(psi), d meta / d theta'>
        / d psi, and <g, v> is the inner loss's derivative along v: no second backward pass."""
        assert step.labels is not None
        assert step.optimizer is not None
        ahead = [
            _sgd_step(step.optimizer, weight, g).requires_grad_()
            for weight, g in zip([head.weight, head.bias], summed(inner), strict=True)
        ]
        with torch.enable_grad():
            meta_loss = F.cross_entropy(F.linear(meta[0], *ahead), meta[1])
        outer = summed([g / _place()[1] for g in torch.autograd.grad(meta_loss, ahead)])
        along = (slope * F.linear(features, -step.lr * outer[0], -step.lr * outer[1])).sum(1)
        with torch.enable_grad():
            psi = self.sampler.psi.clone().requires_grad_()
            weight = self.sampler.straight_through(batch.indices, noise, step.labels, psi)
            gradient = torch.autograd.grad((weight * along).sum(), psi)[0]
        self.sampler.move(summed([gradient])[0])
        step.log("meta_loss", meta_loss.detach())


def with_gradient(value: Tensor, weights: list[Tensor], gradients: list[Tensor]) -> Tensor:
    """``value``, with gradients that are already known."""
    for weight, gradient in zip(weights, gradients, strict=True):
        product = (weight * gradient).sum()
        value = value + (product - product.detach())
    return value


def _sgd_step(optimizer: torch.optim.Optimizer, weight: Tensor, gradient: Tensor) -> Tensor:
    """Where plain SGD would put a weight: decay, momentum, step."""
    group = optimizer.param_groups[0]
    moved = gradient + group["weight_decay"] * weight.detach()
    buffer = optimizer.state.get(weight, {}).get("momentum_buffer")
    if buffer is not None:
        moved = group["momentum"] * buffer + moved
    stepped: Tensor = weight.detach() - group["lr"] * moved
    return stepped


def _place() -> tuple[int, int]:
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if running else (0, 1)
