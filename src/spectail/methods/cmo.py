"""CMO (Park et al. 2022): patches of class-balanced images are pasted into images of the long-tailed stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from .._core.distributed import rank_and_world
from .._utils.checks import Limits, Natural, Positive, Proportion
from ..augment.mixing import Draws, paste
from ..models.classifier import Classifier
from ..targets import MixedTarget, class_indices
from .base import About, Batches, Outcome, Stage, Step, Stream
from .base_loss import BaseLossOptions, OnBaseLoss


@dataclass(frozen=True)
class CMOOptions(BaseLossOptions):
    probability: Proportion = 0.5
    """Share of the batches that are pasted into."""
    mix_alpha: Positive = 1.0
    """Parameter of the Beta distribution that the mixing ratio is drawn from."""
    foreground_exponent: Annotated[float, Limits(-10, 10)] = 1.0
    """Foreground images are drawn with weight n^-exponent: 1 makes classes equally likely (the code), 2 rare ones
    likelier (the paper's formula read literally)."""
    plain_first: Natural = 4
    """Epochs without pasting at the start."""
    plain_last: Natural = 3
    """Epochs without pasting at the end. Both shrink in runs of fewer than nine epochs."""
    weight_average: Literal["terms", "weights", "samples"] = "terms"  # type: ignore[assignment] # one choice more
    """How deferred class weights are averaged: background and foreground each divided by the sum of its own weights, as
    the authors do, so that areas stay the labels; both by one sum; or by the number of samples."""


class CMO(OnBaseLoss):
    about = About(
        "augmentation, sampler",
        "CVPR 2022",
        "class counts, a second sampler, images",
        "loads a second stream of images",
    )
    options = CMOOptions()
    takes_mixed = False
    needs_images = True

    def streams(self, stage: Stage) -> dict[str, Stream]:
        foreground = Stream("exponent", exponent=self.options.foreground_exponent)
        return super().streams(stage) | {"foreground": foreground}

    def active(self, step: Step) -> bool:
        first, last = window(step.epochs, self.options.plain_first, self.options.plain_last)
        return first <= step.epoch < last

    def streams_in_use(self, step: Step) -> set[str]:
        return {"foreground"} if self.active(step) else set()

    def phase(self, step: Step) -> str:
        usual = super().phase(step)
        pasted = "pasted" if self.active(step) else "plain"
        return pasted if usual == step.stage.name else f"{pasted}, {usual}"

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        options, batch = self.options, batches["main"]
        labels, size = class_indices(batch.labels, "cmo"), len(batch.labels)
        front = batches.get("foreground")
        pasted = None if front is None else class_indices(front.labels, "the foreground of cmo")[:size]
        draws = Draws(step.generator, rank_and_world()[0])
        if front is None or pasted is None or not draws.chance(options.probability):
            logits = model(batch.images)
            return Outcome(self.cost(logits, labels), logits, labels)
        box = draws.box(draws.lam(options.mix_alpha), *batch.images.shape[-2:])
        images = paste(batch.images, front.images[:size], box)
        target = MixedTarget(labels, pasted, images.new_full((), box.share))
        logits = model(images)
        return Outcome(self.cost(logits, target), logits, target)


def window(epochs: int, first: int, last: int) -> tuple[int, int]:
    """Epochs [start, end) with pasting; in short runs at least one, beside a plain one if there are two epochs.

    Example:
        >>> [window(epochs, 4, 3) for epochs in (200, 9, 5, 2, 1)]
        [(4, 197), (4, 6), (1, 4), (1, 2), (0, 1)]
    """
    if epochs >= first + last + 2:
        return first, epochs - last
    start = min(first, 1) if epochs > 1 else 0
    return start, epochs - (min(last, 1) if epochs > start + 1 else 0)
