"""ConCutMix (Pan et al. 2024): balanced contrastive learning, and CutMix labels rectified in the contrastive space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._core.distributed import rank_and_world
from .._utils.checks import AtLeastOne, NotNegative, Positive, Proportion
from ..augment.balanced_contrastive import balanced_contrastive
from ..augment.mixing import Draws, paste
from ..augment.rectify import rectify
from ..data.transforms import Preset, contrastive_views
from ..losses import BalancedSoftmaxLoss, CrossEntropyLoss
from ..models.classifier import Classifier
from ..targets import MixedTarget, class_indices
from .base import About, Batches, Method, Options, Outcome, Stage, Step, Stream
from .deferred import switch_epoch

CONTRASTIVE = ("class_weight", "contrast_weight", "temperature", "width", "projection_norm")
"""Options without a meaning in the lite mode."""


@dataclass(frozen=True)
class ConCutMixOptions(Options):
    mode: Literal["full", "lite"] = "full"
    """full has three views, a contrastive loss and logit adjustment. lite has one view, pasting and rectified labels,
    and measures distances between features and class vectors."""
    tau: NotNegative | None = None
    """Strength of the class prior in the loss; 1 is Balanced Softmax (default: 0.9 in full, 0, which is plain cross
    entropy, in lite)."""
    probability: Proportion = 0.5
    """Share of the batches that are pasted into."""
    mix_alpha: Positive = 1.0
    """Parameter of the Beta distribution that the mixing ratio is drawn from."""
    class_weight: NotNegative = 2.0
    """Weight of the classification loss in the full mode."""
    contrast_weight: NotNegative = 0.6
    """Weight of the contrastive loss, which belongs to the full mode, as does every option of it."""
    temperature: Positive = 0.1
    """Temperature of the contrastive loss."""
    width: AtLeastOne = 128
    """Number of dimensions of the contrastive space."""
    rectify_from: Proportion = 0.5
    """Share of the epochs after which labels are rectified."""
    omega: NotNegative | None = None
    """Strength of the rectification (default: number of classes / 5 / 255, as the authors')."""
    top: AtLeastOne | None = None
    """Classes that a rectified label may lean to (default: 3 of up to 10 classes, 30 of more, as the authors')."""
    projection_norm: Literal["batch", "layer"] = "batch"
    """Normalisation in the projection heads; choose layer for fewer than 32 images a process."""

    def check(self) -> None:
        super().check()
        if self.mode == "lite":
            for field in fields(self):
                if field.name in CONTRASTIVE and getattr(self, field.name) != field.default:
                    flag = field.name.replace("_", "-")
                    raise ValueError(f"--{flag} belongs to --mode full, as the recipes do; leave it out in lite.")


class ConCutMix(Method):
    about = About(
        "augmentation, contrastive, head",
        "IEEE TIP 2024",
        "class counts, three views, a second sampler, images",
        "a step takes about three times as long; --mode lite costs nothing",
        "embeds the K class vectors, as the paper says; the shapes in the authors' CIFAR script are wrong",
    )
    options = ConCutMixOptions()
    takes_mixed = False
    usual_head = "cosine"  # the authors' runs on CIFAR had a linear one: see the recipe
    needs_images = True

    def make_criterion(self) -> nn.Module:
        return BalancedSoftmaxLoss(self.counts, self.tau) if self.tau else CrossEntropyLoss()

    @property
    def tau(self) -> float:
        default = 0.9 if self.full else 0.0
        return default if self.options.tau is None else self.options.tau

    @property
    def full(self) -> bool:
        return self.options.mode == "full"

    def build(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        if self.full:
            inside = int(head.in_features)  # type: ignore[arg-type]
            self.project = projection(inside, self.options.width, self.options.projection_norm)
            self.embed = projection(inside, self.options.width, self.options.projection_norm)
        return Classifier(backbone, head)

    def streams(self, stage: Stage) -> dict[str, Stream]:
        return {"main": Stream(), "foreground": Stream("class-balanced")}

    def views(self, preset: Preset, stream: str) -> list[Callable[[Any], Tensor]] | None:
        if not self.full:
            return None
        views = contrastive_views(preset)
        return views if stream == "main" else views[:1]

    def rectifies(self, step: Step) -> bool:
        return step.epoch >= switch_epoch(self.options.rectify_from, step.epochs)

    def phase(self, step: Step) -> str:
        return "rectified" if self.rectifies(step) else step.stage.name

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        options, batch = self.options, batches["main"]
        labels, front = class_indices(batch.labels, "concutmix"), batches["foreground"]
        pasted = class_indices(front.labels, "the foreground of concutmix")
        draws = Draws(step.generator, rank_and_world()[0])
        first, *others = batch.images if isinstance(batch.images, tuple) else (batch.images,)
        target: Tensor | MixedTarget = labels
        if draws.chance(options.probability):
            size, patches = len(first), front.images[0] if isinstance(front.images, tuple) else front.images
            box = draws.box(draws.lam(options.mix_alpha), *first.shape[-2:])
            first = paste(first, patches[:size], box)
            target = MixedTarget(labels, pasted[:size], first.new_full((), box.share))
        features = model.backbone(torch.cat([first, *others]))
        logits = model.head(features[: len(first)])
        space, classes = self._space(features, model.head.weight)  # type: ignore[arg-type]
        label: Tensor | MixedTarget = target
        if isinstance(target, MixedTarget) and self.rectifies(step):
            distances = torch.cdist(space[: len(first)].detach().float(), classes.detach().float())
            number = len(self.counts)
            omega = number / 5 / 255 if options.omega is None else options.omega
            top = (3 if number <= 10 else 30) if options.top is None else options.top
            label = rectify(target.dense(number), distances, self.counts.counts, omega, top)
        loss = self.criterion(logits, label)
        step.log("classification", loss)
        if self.full:
            unit = F.normalize(space[len(first) :].float(), dim=1)
            contrast = balanced_contrastive(
                unit, labels.repeat(2), F.normalize(classes.float(), dim=1), options.temperature
            )
            step.log("contrastive", contrast)
            loss = options.class_weight * loss + options.contrast_weight * contrast
        return Outcome(loss, logits, target)

    def _space(self, features: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Images and classes where distances are measured."""
        if self.full:
            return self.project(features), self.embed(vectors)
        return F.normalize(features, dim=1), F.normalize(vectors, dim=1)


def projection(inside: int, outside: int, norm: str) -> nn.Sequential:
    """Linear, norm, ReLU, linear; the hidden layer is at least 512 wide."""
    hidden = max(inside, 512)
    middle = nn.BatchNorm1d(hidden) if norm == "batch" else nn.LayerNorm(hidden)
    return nn.Sequential(nn.Linear(inside, hidden), middle, nn.ReLU(), nn.Linear(hidden, outside))
