"""BALMS (Ren et al. 2020): a fresh head with Balanced Softmax on batches whose class rates are learned (Meta Sampler).

Each step of the second stage looks one step ahead: how would the head do on a class-balanced meta batch after an SGD
step on the drawn batch? The gradient of that, with respect to the sampling rates, moves the rates. Then the head makes
its ordinary step on the same batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._core import waits
from .._core.distributed import rank_and_world, summed
from .._utils.checks import AtLeastOne, Limits, NotNegative
from ..data.batch import Batch
from ..losses import BalancedSoftmaxLoss
from ..models.classifier import Classifier
from .base import About, Batches, Outcome, Stage, Step, Stream
from .meta_sampler import MetaSampler
from .two_stage import TwoStage, TwoStageOptions


@dataclass(frozen=True)
class BALMSOptions(TwoStageOptions):
    sampling: Literal["meta", "instance"] = "meta"
    """Batches of the second stage: drawn by learned rates, or plainly shuffled (decoupled Balanced Softmax)."""
    meta_data: Literal["train", "val"] = "train"
    """Where class-balanced meta batches come from."""
    meta_batch_size: AtLeastOne | None = None
    """Images in a meta batch (default: the batch size of the stage)."""
    meta_lr: NotNegative = 0.01
    """Learning rate of Adam, which moves the sampling rates."""
    meta_power: Annotated[float, Limits(0, 2)] = 0.0
    """Rates begin at (class frequency)^-power; 0 makes them equal."""
    meta_draw: Literal["class", "item"] = "class"
    """Draw a class and then an image, or among all images as the authors do (slow: batch size x images)."""
    stage2_batch_size: AtLeastOne | None = 512
    stage2_norm: Literal["frozen", "drift"] = "drift"


class BALMS(TwoStage):
    about = About(
        "loss, sampler, two stages",
        "NeurIPS 2020",
        "class counts, class-balanced meta batches (from the training set), linear head",
        "a step of the second stage takes about 2.5 times that of a plain head",
        "draws a class and then an image; the authors draw among all images (--meta-draw item)",
    )
    options = BALMSOptions()
    head = "linear"
    length = (2000, 13000)
    least_steps = 2000  # the authors' number, whatever the length of the first stage

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = self.options
        self.sampler = MetaSampler(self.counts, own.meta_power, own.meta_lr, own.meta_draw)

    def make_criterion(self) -> nn.Module:
        return BalancedSoftmaxLoss(self.counts)

    def streams(self, stage: Stage) -> dict[str, Stream]:
        own = self.options
        if stage.name == "stage1" or own.sampling == "instance":
            return {"main": Stream()}
        meta = Stream("class-balanced", split=own.meta_data, batch_size=own.meta_batch_size, drop_last=True)
        return {"main": Stream(drop_last=True, images=False), "meta": meta}

    def disclosures(self) -> dict[str, str]:
        if self.options.sampling != "meta":
            return {}
        source = {"train": "the training set", "val": "validation data"}[self.options.meta_data]
        return {"meta_data": f"class-balanced draws from {source}"}

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        if "meta" not in batches:
            return super().loss(model, batches, step)
        assert step.fetch is not None
        assert step.labels is not None
        rank, world = rank_and_world()
        rows, noise = self.sampler.draw(len(batches["main"].labels) * world, step.labels, step.generator)
        batch = step.fetch(rows[rank::world])
        with torch.no_grad():
            features = model.backbone(batch.images).float()
            meta = model.backbone(batches["meta"].images).float()
        with torch.autocast(features.device.type, enabled=False):  # the look ahead is all small differences
            logits = model.head(features)
            with torch.no_grad():
                cost, slope = cross_entropy(logits + self.criterion.log_prior.to(logits), batch.labels)
                slope /= len(rows)
                inner = [slope.T @ features, slope.sum(0)]
                self._move_rates(
                    model.head, batch, noise[rank::world], features, slope, inner, meta, batches["meta"].labels, step
                )
            # the gradient of the head is already known from looking ahead
            known = inner if world == 1 else [world * g for g in inner]
            loss = with_gradient(cost, [model.head.weight, model.head.bias], known)  # type: ignore[list-item]
        return Outcome(loss, logits, batch.labels)

    def _move_rates(
        self, head: Any, batch: Batch, noise: Tensor, features: Tensor, slope: Tensor, inner: list[Tensor],
        meta: Tensor, meta_labels: Tensor, step: Step,
    ) -> None:  # fmt: skip
        """The bilevel step. The virtual weights depend on psi through the inner gradient g alone, and linearly:
        theta' = theta - lr (momentum buffer + g(psi) + decay). So d meta / d psi = -lr * d<g(psi), d meta / d theta'>
        / d psi, and <g, v> is the sum over the batch of the derivatives of the samples' losses along v."""
        assert step.labels is not None
        assert step.optimizer is not None
        ahead = [
            _sgd_step(step.optimizer, weight, g)
            for weight, g in zip([head.weight, head.bias], summed(*inner), strict=True)
        ]
        cost, meta_slope = cross_entropy(F.linear(meta, *ahead), meta_labels)
        outer = summed(meta_slope.T @ meta, meta_slope.sum(0))  # of the summed meta loss: the mean's share comes last
        along = F.linear(features, *outer).mul_(slope).sum(1).mul_(-step.lr / (len(meta) * rank_and_world()[1]))
        [gradient] = summed(self.sampler.gradient(along, batch.indices, noise, step.labels))
        self.sampler.move(gradient)
        step.log("meta_loss", cost)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy, and the (N, K) gradient of the sum with respect to the logits."""
    p, places = logits.softmax(1), labels[:, None]
    chosen = p.gather(1, places)
    enough = chosen.min() > 1e-30  # for a logarithm, which spares a second pass over all logits
    if not waits.reads_are_free(logits.device):
        cost = torch.where(enough, chosen.log().mean().neg(), F.cross_entropy(logits, labels))
    else:
        cost = chosen.log().mean().neg() if enough else F.cross_entropy(logits, labels)
    return cost, p.scatter_add_(1, places, p.new_full((1, 1), -1.0).expand(places.shape))


def with_gradient(value: Tensor, weights: list[Tensor], gradients: list[Tensor]) -> Tensor:
    """``value``, with gradients that are already known."""
    first, *others = (torch.dot(w.flatten(), g.flatten()) for w, g in zip(weights, gradients, strict=True))
    product = sum(others, first)
    return value + (product - product.detach())


def _sgd_step(optimizer: torch.optim.Optimizer, weight: Tensor, gradient: Tensor) -> Tensor:
    """Where plain SGD would put a weight: decay, momentum, step."""
    group = optimizer.param_groups[0]
    moved = torch.add(gradient, weight.detach(), alpha=group["weight_decay"])
    buffer = optimizer.state.get(weight, {}).get("momentum_buffer")
    if buffer is not None:
        moved.add_(buffer, alpha=group["momentum"])
    return torch.add(weight.detach(), moved, alpha=-group["lr"])
