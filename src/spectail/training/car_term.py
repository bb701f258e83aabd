"""CAR as the loop attaches it: to whatever a method returns, with a weight that may start late and rise."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor, nn

from ..car import CAR, PRESETS
from ..counts import ClassCounts
from ..methods.base import Outcome, Stage, Step
from ..methods.registry import Entry
from .config import CARConfig, TrainConfig

OWN = {"enabled", "preset", "alpha", "start_epoch", "warmup_epochs", "stages"}


class CARTerm(nn.Module):
    """alpha(step) * CAR(logits, target). The history moves from the first step on, also before alpha does."""

    def __init__(self, counts: ClassCounts, config: CARConfig, prior_shift: float = 0.0) -> None:
        super().__init__()
        preset = PRESETS[config.preset]
        given = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in OWN}
        options = preset.options | {name: value for name, value in given.items() if value is not None}
        if options.get("weighting") == "none":
            options["weighting"] = None
        self.car = CAR(counts, prior_shift=prior_shift, **options)
        self.alpha = preset.alpha if config.alpha is None else config.alpha
        self.config = config

    def runs_in(self, stage: Stage) -> bool:
        return self.config.stages is None or stage.name in self.config.stages

    def weight(self, step: Step) -> float:
        per_epoch = step.steps / step.epochs
        done = step.index - self.config.start_epoch * per_epoch
        if done < 0:
            return 0.0
        rise = self.config.warmup_epochs * per_epoch
        return self.alpha * min((done + 1) / rise, 1.0) if rise > 0 else self.alpha

    def forward(self, outcome: Outcome, step: Step) -> Tensor | None:
        if outcome.logits is None or outcome.target is None:
            return None
        weight = self.weight(step)
        if weight == 0.0:  # the history moves, the weights do not
            with torch.enable_grad():
                self.car(outcome.logits.detach(), outcome.target)
            return None
        term: Tensor = weight * self.car(outcome.logits, outcome.target)
        return term


def make_car_term(config: TrainConfig, counts: ClassCounts, entry: Entry) -> CARTerm | None:
    """CAR if the method includes it or ``--car`` asks for it."""
    if not (config.car.enabled or entry.car):
        return None
    shift = float(getattr(config.options, "tau", 1.0)) if entry.prior_shift else 0.0
    return CARTerm(counts, config.car, shift)
