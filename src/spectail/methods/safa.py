"""SAFA-R: a reconstruction of SAFA (Hong et al. 2022). Features of rare classes are moved along directions that two
small networks read from frequent ones; late in training the classifier learns from them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._core import waits
from .._core.distributed import rank_and_world
from .._utils.checks import AtLeastOne, NotNegative, Positive, Proportion
from ..augment.safa import DirectionNets, Pairs, augment, draw_pairs, head_classes
from ..losses import LDAMLoss
from ..models.classifier import Classifier
from ..targets import class_indices
from .base import About, Batches, Outcome, Step
from .base_loss import BaseLossOptions, OnBaseLoss
from .deferred import switch_epoch


@dataclass(frozen=True)
class SAFAOptions(BaseLossOptions):
    base_loss: Literal["ce", "balanced-softmax", "ldam"] = "ce"
    """Loss of real and of moved features; ldam brings the cosine head."""
    max_margin: float = 0.5
    """Margin of the rarest class in ldam."""
    head_share: float = 0.2
    """Share of the classes, largest first, that directions are taken from; the others are the tail."""
    start: Proportion = 0.8
    """Share of the epochs after which the classifier learns from moved features; the networks learn from the first."""
    copies: AtLeastOne = 1
    """Moved features for each tail sample of a batch."""
    code_size: AtLeastOne | None = None
    """Width of a direction (default: that of the features, 128 at most)."""
    augmented_weight: NotNegative = 1.0
    """Factor of the loss of moved features."""
    recycle_weight: NotNegative = 0.1
    """Factor of the recycling loss."""
    contrastive_weight: NotNegative = 0.1
    """Factor of the contrastive loss."""
    mode_weight: NotNegative = 0.01
    """Factor of the mode-seeking loss."""
    temperature: Positive = 0.1
    """Temperature of the contrastive loss."""
    mode_clamp: Positive = 10.0
    """Largest ratio in the mode-seeking loss."""
    car_rows: Literal["real", "all"] = "real"
    """What CAR looks at: real samples, or moved features too."""
    defer: Literal["none", "reweight", "resample"] = "reweight"


class SAFA(OnBaseLoss):
    about = About(
        "feature augmentation, schedule",
        "ECCV 2022, reconstructed",
        "class counts",
        "less than 1 % of a ResNet-32 step",
        "a reconstruction, as no code was released: the networks, the weights of the losses and the schedule are ours",
    )
    options = SAFAOptions()
    takes_mixed = False

    nets: DirectionNets

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_head = head_classes(self.counts, self.options.head_share)  # not a buffer: pairs are drawn on the host

    def make_criterion(self) -> nn.Module:
        if self.options.base_loss == "ldam":
            return LDAMLoss(self.counts, self.options.max_margin)
        return super().make_criterion()

    def build(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        width: Any = head.in_features
        self.nets = DirectionNets(width, self.options.code_size)
        return super().build(backbone, head)

    def disclosures(self) -> dict[str, str]:
        return {
            "reconstruction": "SAFA-R is a reconstruction of SAFA, which has no public code; do not report it as SAFA"
        }

    def augments(self, step: Step) -> bool:
        """Whether the classifier learns from moved features."""
        return step.epoch >= switch_epoch(self.options.start, step.epochs)

    def phase(self, step: Step) -> str:
        return "augmented" if self.augments(step) else super().phase(step)

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        own, labels = self.options, class_indices(batches["main"].labels, "safa-r")
        features, logits = model(batches["main"].images, features=True)
        pairs = Pairs(*(waits.sent(rows, labels.device) for rows in self.pairs(step.known(batches["main"]), step)))
        found = augment(self.nets, features, pairs, temperature=own.temperature, clamp=own.mode_clamp)
        real = self.cost(logits, labels)
        total = real + own.recycle_weight * found.recycle + own.contrastive_weight * found.contrastive
        total = total + own.mode_weight * found.mode_seeking
        said = {"real": real, "recycle": found.recycle, "contrastive": found.contrastive}
        said |= {"mode_seeking": found.mode_seeking, "shift": found.shift, "pairs": real.new_full((), len(pairs.tail))}
        target = labels
        if self.augments(step):
            # also without pairs: with class weights the ranks add up their sums here
            said["augmented"] = self.cost(model.head(found.moved), labels[pairs.tail])
            total = total + own.augmented_weight * said["augmented"]
            if own.car_rows == "all":  # the networks must not learn to please CAR
                logits = torch.cat([logits, model.head(found.moved.detach())])
                target = torch.cat([labels, labels[pairs.tail]])
        for name, value in said.items():
            step.log(f"safa_{name}", value.detach())
        return Outcome(total, logits, target)

    def pairs(self, labels: Tensor, step: Step) -> Pairs:
        """Which tail samples are moved by which head samples; on the host, as the labels. A step takes one number from
        the run's generator however many pairs there are, so ranks with different batches stay together."""
        seed = int(torch.randint(2**62, (1,), generator=step.generator)) + rank_and_world()[0]
        return draw_pairs(self.is_head[labels], self.options.copies, torch.Generator().manual_seed(seed))
