"""What a method is: an object with hooks that have defaults. docs/architecture.md shows how every method fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .._utils.checks import check_limits
from ..counts import ClassCounts
from ..data.batch import Batch
from ..losses import CrossEntropyLoss
from ..models.classifier import Classifier
from ..models.heads import make_head
from ..targets import MixedTarget

if TYPE_CHECKING:
    from ..data.transforms import Preset

Batches = Mapping[str, Batch]
MOST_EPOCHS = 120
"""Where ``least_steps`` of a stage ends: 2,000 steps of 512 are 96 to 112 epochs of CIFAR-100-LT."""


@dataclass(frozen=True)
class About:
    """What helps a person choose a method."""

    kind: str = "loss"
    venue: str = "-"
    needs: str = "nothing"
    cost: str = "none"
    """What it costs over plain training."""
    deviations: str = "none"
    """How it differs from the paper or the authors' code, unless an option says otherwise."""


@dataclass(frozen=True)
class Options:
    """A method's own options; they become flags of the command line."""

    def check(self) -> None:
        """Raise a ValueError that explains what is wrong if a value cannot work, such as one outside its limits."""
        check_limits(self)


@dataclass(frozen=True)
class Stage:
    """A part of training with its own optimiser and schedule."""

    name: str = "train"
    epochs: int | None = None
    """None: the epochs of the run."""
    least_steps: int = 0
    """Optimiser steps that the stage should have: a shorter one gets more epochs, ``MOST_EPOCHS`` at most."""
    train: Literal["all", "head"] = "all"
    fresh_head: bool = False
    norm: Literal["frozen", "drift"] = "frozen"
    """Whether the running statistics of a frozen backbone are kept, or updated by the batches."""
    optim: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the optimisation settings of the run."""


@dataclass(frozen=True)
class Stream:
    """Where a named stream of batches comes from."""

    kind: str = "instance"
    """A sampler's name."""
    then: str | None = None
    """Sampler from the epoch ``switch`` on."""
    switch: int = 0
    exponent: float = 1.0
    """Power of the class size in the exponent sampler."""
    split: Literal["train", "val"] = "train"
    batch_size: int | None = None
    """Over all processes; None for that of the main stream."""
    drop_last: bool = False
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
    generator: torch.Generator = field(default_factory=torch.Generator)
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
    """Base class of every method. By itself it is cross entropy without options.

    Modules, parameters and buffers of a method are trained and saved with the model.
    """

    about: ClassVar[About] = About()
    options: Options = Options()
    """On the class the defaults, whose fields become flags; on an object the options of the run."""
    head: str | None = None
    """The kind of head that it needs; None for any. An object may set it by its options."""
    usual_head: ClassVar[str] = "linear"
    """The kind of head that it has if it takes any and the run asks for none."""
    needs_images: bool = False
    """True for methods that cannot work on frozen features. An object may set it by its options."""
    takes_mixed: ClassVar[bool] = True
    """False for methods that mix images themselves, or need every image to have one class."""
    compiles: bool = True
    """False for methods that differentiate through their own step, which torch.compile cannot. An object may set it."""
    loss_spans_ranks: bool = False
    """True while the loss is one of the global batch: it has no value per sample, and adds up over ranks by itself."""
    adjusts_at_inference: ClassVar[bool] = False
    """True if inference uses the class counts, by design."""
    required_settings: ClassVar[Mapping[str, Any]] = {}
    """Settings without which the method would not be itself. They replace those of a preset; flags replace them."""

    def __init__(self, counts: ClassCounts, options: Options, *, epochs: int) -> None:
        super().__init__()
        options.check()
        self.counts, self.options, self.epochs = counts, options, epochs
        self.criterion = self.make_criterion()
        if hasattr(self.criterion, "sync"):
            self.criterion.sync = True  # type: ignore[assignment] # in the engine every rank calls it

    # -- what it is made of --

    def make_criterion(self) -> nn.Module:
        return CrossEntropyLoss()

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        return make_head(kind, in_features, len(self.counts))

    def build(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        return Classifier(backbone, head)

    def undecayed(self, model: Classifier) -> list[nn.Parameter]:
        """Parameters that are not decayed."""
        return []

    def stages(self) -> list[Stage]:
        return [Stage()]

    def streams(self, stage: Stage) -> dict[str, Stream]:
        """Batches by name. ``main`` sets the pace: an epoch ends with it."""
        return {"main": Stream()}

    def streams_in_use(self, step: Step) -> set[str] | None:
        """Streams that this epoch needs beside the main one; None for all. Nothing is read from the others."""
        return None

    def views(self, preset: Preset, stream: str) -> list[Callable[[Any], Tensor]] | None:
        """Training transforms of several views in a stream, or None for the preset's one."""
        return None

    def disclosures(self) -> dict[str, str]:
        """What a reader of the results must know, such as extra data that was used."""
        return {}

    # -- what it does --

    def begin_stage(self, model: Classifier, step: Step, *, resumed: bool) -> None:
        """Set what depends on the stage. Values are restored afterwards if the run resumes inside the stage."""

    def begin_epoch(self, step: Step) -> None:
        """Set what depends on the epoch."""

    def phase(self, step: Step) -> str:
        """What the steps of this epoch are counted as in results.json."""
        return step.stage.name

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        batch = batches["main"]
        logits = model(batch.images)
        return Outcome(self.criterion(logits, batch.labels), logits, batch.labels)

    def after_step(self, model: Classifier, step: Step) -> None:
        """Change weights after the optimiser's step."""

    def inference(self, model: Classifier) -> nn.Module:
        """What evaluation, prediction and export use."""
        return model
