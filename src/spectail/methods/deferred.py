"""What may change late in training: classes weigh by effective number (DRW), or are sampled equally often (DRS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .._utils.checks import Proportion
from ..losses import effective_number_weights
from ..losses.base import LabelLoss
from .base import Method, Options, Stage, Step, Stream


@dataclass(frozen=True)
class DeferOptions(Options):
    """What changes late in training, and when."""

    defer: Literal["none", "reweight", "resample"] = "none"
    """What changes late in training: classes are weighted by effective number (DRW), or sampled equally often (DRS)."""
    defer_at: Proportion = 0.8
    """Share of the epochs after which this begins; 0 is from the first epoch on."""
    defer_beta: Proportion = 0.9999
    """Beta of the effective number."""


@dataclass(frozen=True)
class LossOptions(DeferOptions):
    """Options of every method that is a loss without class weights of its own."""

    weight_average: Literal["weights", "samples"] = "weights"
    """How deferred class weights are averaged: divided by their sum in the batch, or by the number of samples."""


class Deferrable(Method):
    """A method with one loss, which may be re-weighted or given other batches late in training."""

    options: DeferOptions = LossOptions()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if isinstance(self.options, LossOptions) and isinstance(self.criterion, LabelLoss):
            self.criterion.average = self.options.weight_average

    def deferred(self, step: Step) -> bool:
        """Whether the late part of training has begun."""
        return self.options.defer != "none" and step.epoch >= self._late_from(step.epochs)

    def _late_from(self, epochs: int) -> int:
        return switch_epoch(self.options.defer_at, epochs) if self.options.defer_at else 0

    def streams(self, stage: Stage) -> dict[str, Stream]:
        if self.options.defer != "resample":
            return super().streams(stage)
        return {"main": Stream(then="class-balanced", switch=self._late_from(self.epochs))}

    def begin_epoch(self, step: Step) -> None:
        if self.options.defer == "reweight":
            late = self.deferred(step)
            weight = effective_number_weights(self.counts, self.options.defer_beta) if late else None
            self.criterion.set_weight(weight)  # type: ignore[operator]

    def phase(self, step: Step) -> str:
        names = {"reweight": "reweighted", "resample": "resampled"}
        return names[self.options.defer] if self.deferred(step) else super().phase(step)


def switch_epoch(share: float, epochs: int) -> int:
    """The epoch, counted from 0, at which a schedule switches. With two epochs or more both parts run.

    Example:
        >>> [switch_epoch(0.8, epochs) for epochs in (200, 12, 2, 1)]
        [160, 10, 1, 1]
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a switch must lie between 0 and 1, as a share of the epochs; got {share}.")
    return min(max(round(share * epochs), 1), max(epochs - 1, 1))
