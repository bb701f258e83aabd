"""The Method interface. Plain cross entropy overrides nothing; docs/architecture.md shows how every method fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .._utils.checks import within
from ..counts import ClassCounts
from ..data.loader import Batch
from ..data.transforms import Preset
from ..losses import CrossEntropyLoss, effective_number_weights
from ..losses.base import LabelLoss
from ..models.classifier import Classifier
from ..models.heads import make_head
from ..targets import MixedTarget


@dataclass(frozen=True)
class About:
    """What a person chooses a method by."""

    kind: str = "loss"
    venue: str = "-"
    needs: str = "nothing"
    cost: str = "none"
    """Over plain training."""
    deviations: str = "none"
    """From the paper or the authors' code, unless an option says otherwise."""


@dataclass(frozen=True)
class Options:
    """A method's own options; they become flags of the command line."""

    def check(self) -> None:
        """Raise ValueError, with a sentence, for values that cannot work."""


@dataclass(frozen=True)
class LateOptions(Options):
    """What may change late in training."""

    defer: Literal["none", "reweight", "resample"] = "none"
    """Late in training: weigh classes by effective number (DRW), or sample them equally often (DRS)."""
    defer_at: float = 0.8
    """Share of the epochs after which that begins."""
    defer_beta: float = 0.9999
    """Beta of the effective number."""

    def check(self) -> None:
        within("defer-at", self.defer_at, 0, 1)
        within("defer-beta", self.defer_beta, 0, 1)


@dataclass(frozen=True)
class LossOptions(LateOptions):
    """Options of every method that is a loss without class weights of its own."""

    weight_average: Literal["weights", "samples"] = "weights"
    """How deferred class weights are averaged: divided by their sum in the batch, or by the number of samples."""


@dataclass(frozen=True)
class Stage:
    """A part of training with its own optimiser and schedule."""

    name: str = "train"
    epochs: int | None = None
    """None: the epochs of the run."""
    train: Literal["all", "head"] = "all"
    fresh_head: bool = False
    norm: Literal["frozen", "drift"] = "frozen"
    """Whether the running statistics of a frozen backbone go on following the batches."""
    optim: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the optimisation settings of the run."""


@dataclass(frozen=True)
class Stream:
    """Where a named stream of batches comes from."""

    how: str = "instance"
    """A sampler's name."""
    then: str | None = None
    """Sampler from the epoch ``switch`` on."""
    switch: int = 0
    exponent: float = 1.0
    """Of the exponent sampler."""
    split: Literal["train", "val"] = "train"
    batch_size: int | None = None
    """Over all processes; None for that of the main stream."""
    even: bool = False
    """Leave out a last, smaller batch."""
    images: bool = True
    """False for labels and indices only."""


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
    labels: Tensor | None = None
    """Labels of all training images."""
    fetch: Callable[[Tensor], Batch] | None = None
    """A batch of the training images with these indices, transformed as in training."""
    log: Callable[[str, Tensor], None] = lambda name, value: None
    """Takes a number that belongs in metrics.jsonl, as the mean over the images of the epoch."""

    @property
    def lr(self) -> float:
        assert self.optimizer is not None
        return float(self.optimizer.param_groups[0]["lr"])

    def known(self, batch: Batch) -> Tensor:
        """Labels of a batch of the main stream, on the host: reading them there waits for no device."""
        return (batch.labels.cpu() if self.labels is None else self.labels[batch.indices]).long()


class Method(nn.Module):
    """Cross entropy, and the base of every other method.

    Modules, parameters and buffers of a method are trained and saved with the model.
    """

    about: ClassVar[About] = About()
    options: Options = LossOptions()
    """On the class the defaults, whose fields become flags; on an object the options of the run."""
    head: ClassVar[str | None] = None
    """The kind of head it needs; None for any."""
    needs_images: bool = False
    """True for methods that cannot work on frozen features; may follow the options."""
    whole_batch: bool = False
    """True for a loss of the global batch that cannot be split into samples; the loss then sees to the ranks itself."""
    adjusts: ClassVar[bool] = False
    """True if inference uses the class counts, by design."""
    essentials: ClassVar[Mapping[str, Any]] = {}
    """Settings without which the method would not be itself. They replace those of a preset; flags replace them."""

    def __init__(self, counts: ClassCounts, options: Options, *, epochs: int) -> None:
        super().__init__()
        options.check()
        self.counts, self.options, self.epochs = counts, options, epochs
        self.criterion = self.make_criterion()
        if isinstance(options, LossOptions) and isinstance(self.criterion, LabelLoss):
            self.criterion.average = options.weight_average
        if hasattr(self.criterion, "sync"):
            self.criterion.sync = True  # type: ignore[assignment] # in the engine every rank calls it

    # -- what it is made of --

    def make_criterion(self) -> nn.Module:
        return CrossEntropyLoss()

    def needed_head(self) -> str | None:
        """The kind of head that it needs with these options; None for any."""
        return type(self).head

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        return make_head(kind, in_features, len(self.counts))

    def build(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        return Classifier(backbone, head)

    def balances(self) -> bool:
        """Whether the head that it trains is made for equally frequent classes, whatever the training set has."""
        return isinstance(self.options, LateOptions) and self.options.defer != "none"

    def undecayed(self, model: Classifier) -> list[nn.Parameter]:
        """Parameters that weight decay must leave alone."""
        return []

    def stages(self) -> list[Stage]:
        return [Stage()]

    def streams(self, stage: Stage) -> dict[str, Stream]:
        """Batches by name. ``main`` sets the pace: an epoch ends with it."""
        options = self.options
        if isinstance(options, LateOptions) and options.defer == "resample":
            late = switch_epoch(options.defer_at, self.epochs)
            return {"main": Stream("instance", then="class-balanced", switch=late)}
        return {"main": Stream()}

    def used(self, step: Step) -> set[str] | None:
        """Streams that this epoch needs beside the main one; None for all. Nothing is read from the others."""
        return None

    def views(self, preset: Preset, stream: str) -> list[Callable[[Any], Tensor]] | None:
        """Training transforms of several views in a stream, or None for the preset's one."""
        return None

    def disclosures(self) -> dict[str, str]:
        """What a reader of the results must know, such as extra data that was used."""
        return {}

    # -- what it does --

    def begin_from(self, model: Classifier, first: Method) -> None:
        """Set what follows from the method of the run that ``--stage1`` has loaded into the model."""

    def begin_stage(self, model: Classifier, step: Step, *, resumed: bool) -> None:
        """Set what follows the stage. Values are restored afterwards if the run goes on inside the stage."""

    def begin_epoch(self, step: Step) -> None:
        """Set what follows the epoch."""
        options = self.options
        if isinstance(options, LateOptions) and options.defer == "reweight":
            late = self.deferred(step)
            weight = effective_number_weights(self.counts, options.defer_beta) if late else None
            self.criterion.set_weight(weight)  # type: ignore[operator]

    def phase(self, step: Step) -> str:
        """What the steps of this epoch are counted as in results.json."""
        names = {"reweight": "reweighted", "resample": "resampled"}
        return names[self.options.defer] if self.deferred(step) else step.stage.name  # type: ignore[attr-defined]

    def deferred(self, step: Step) -> bool:
        """Whether the late part of training has begun."""
        options = self.options
        if not isinstance(options, LateOptions) or options.defer == "none":
            return False
        return step.epoch >= switch_epoch(options.defer_at, step.epochs)

    def loss(self, model: Classifier, batches: Mapping[str, Batch], step: Step) -> Outcome:
        batch = batches["main"]
        logits = model(batch.images)
        return Outcome(self.criterion(logits, batch.labels), logits, batch.labels)

    def after_step(self, model: Classifier, step: Step) -> None:
        """Change weights after the optimiser's step."""

    def inference(self, model: Classifier) -> nn.Module:
        """What evaluation, prediction and export use."""
        return model


def switch_epoch(share: float, epochs: int) -> int:
    """The epoch, counted from 0, at which a schedule switches. With two epochs or more both parts run.

    Example:
        >>> [switch_epoch(0.8, epochs) for epochs in (200, 12, 2, 1)]
        [160, 10, 1, 1]
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a switch must lie between 0 and 1, as a share of the epochs; got {share}.")
    return min(max(round(share * epochs), 1), max(epochs - 1, 1))
