"""ReMix (Chou et al. 2020): mixup or CutMix whose label goes to the rarer class when that is clear enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .._core import waits
from .._core.distributed import rank_and_world
from .._utils.checks import Limits, Positive, Proportion
from ..augment.mixing import Draws, mixup, paste
from ..augment.remix import remix_share
from ..models.classifier import Classifier
from ..targets import MixedTarget, class_indices
from .base import About, Batches, Outcome, Step
from .base_loss import BaseLossOptions, OnBaseLoss


@dataclass(frozen=True)
class ReMixOptions(BaseLossOptions):
    mix: Literal["mixup", "cutmix"] = "mixup"
    """How images are mixed."""
    mix_alpha: Positive = 1.0
    """Parameter of the Beta distribution that the mixing ratio is drawn from; 0.4 for iNaturalist."""
    kappa: Annotated[float, Limits(1)] = 3.0
    """How many times larger a class must be for its label to give way."""
    tau: Proportion = 0.5
    """The rarer image must make up more than 1 - tau of the mix; 0 is plain mixup or CutMix."""
    weight_average: Literal["weights", "samples"] = "samples"


class ReMix(OnBaseLoss):
    about = About("augmentation", "ECCV 2020 workshops", "class counts")
    options = ReMixOptions()
    takes_mixed = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.needs_images = self.options.mix == "cutmix"

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        options, batch = self.options, batches["main"]
        labels = class_indices(batch.labels, "remix")
        draws = Draws(step.generator, rank_and_world()[0])
        partners, share = draws.partners(len(labels), labels.device), draws.lam(options.mix_alpha)
        if options.mix == "cutmix":
            box = draws.box(share, *batch.images.shape[-2:])
            images, share = paste(batch.images, batch.images[partners], box), box.share
        else:
            images = mixup(batch.images, batch.images[partners], share)
        other, counts = labels[partners], waits.sent(self.counts.counts, labels.device)
        target = MixedTarget(labels, other, remix_share(counts, labels, other, share, options.kappa, options.tau))
        logits = model(images)
        return Outcome(self.cost(logits, target), logits, target)
