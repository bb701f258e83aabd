"""The Method interface. Plain cross entropy overrides nothing; docs/architecture.md shows how every method fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..counts import ClassCounts
from ..data.loader import Batch
from ..losses import CrossEntropyLoss
from ..models.classifier import Classifier
from ..targets import MixedTarget


@dataclass(frozen=True)
class Options:
    """A method's own options; they become flags of the command line."""


@dataclass(frozen=True)
class Stage:
    """A part of training with its own optimiser and schedule."""

    name: str = "train"
    epochs: int | None = None
    """None: the epochs of the run."""
    train: Literal["all", "head"] = "all"
    fresh_head: bool = False
    optim: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the optimisation settings of the run."""


class Outcome(NamedTuple):
    """What one step gives the loop."""

    loss: Tensor
    logits: Tensor | None
    """As inference uses them; None if CAR has nothing to look at in this step."""
    target: Tensor | MixedTarget | None


@dataclass
class Step:
    """Where training is. The loop keeps it up to date."""

    stage: Stage
    epoch: int = 0
    epochs: int = 1
    index: int = 0
    """Optimiser steps made in this stage."""
    steps: int = 1
    """Optimiser steps of the whole stage."""
    optimizer: torch.optim.Optimizer | None = None
    generator: torch.Generator | None = None
    """For a method's own random draws; saved with the run, the same on every rank."""


class Method(nn.Module):
    """Cross entropy, and the base of every other method.

    Modules, parameters and buffers of a method are trained and saved with the model.
    """

    options_type: ClassVar[type[Options]] = Options
    head: ClassVar[str] = "linear"
    needs_images: ClassVar[bool] = False
    """True for methods that cannot work on frozen features."""

    def __init__(self, counts: ClassCounts, options: Options, *, epochs: int) -> None:
        super().__init__()
        self.counts, self.options, self.epochs = counts, options, epochs
        self.criterion = self.make_criterion()

    def make_criterion(self) -> nn.Module:
        return CrossEntropyLoss()

    def stages(self) -> list[Stage]:
        return [Stage()]

    def build(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        return Classifier(backbone, head)

    def streams(self, stage: Stage) -> dict[str, str]:
        """Samplers by name. ``main`` sets the pace: an epoch ends with it."""
        return {"main": "instance"}

    def views(self, preset: Any) -> list[Any] | None:
        """Training transforms of several views, or None for the preset's one."""
        return None

    def begin_epoch(self, step: Step) -> None:
        """Set what follows the epoch."""

    def loss(self, model: Classifier, batches: Mapping[str, Batch], step: Step) -> Outcome:
        batch = batches["main"]
        logits = model(batch.images)
        return Outcome(self.criterion(logits, batch.labels), logits, batch.labels)

    def after_step(self, model: Classifier, step: Step) -> None:
        """Change weights after the optimiser's step."""

    def inference(self, model: Classifier) -> nn.Module:
        """What evaluation, prediction and export use."""
        return model
