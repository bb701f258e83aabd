"""What methods with a second stage on a frozen backbone share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from .._utils.checks import AtLeastOne, NotNegative, Positive
from ..losses import CrossEntropyLoss
from ..models.classifier import Classifier
from .base import Batches, Method, Options, Outcome, Stage, Step


@dataclass(frozen=True)
class TwoStageOptions(Options):
    """The second stage."""

    stage2_epochs: AtLeastOne | None = None
    """Length of the second stage in epochs (default: that of the method's own recipe, scaled with --epochs; balms and
    gml, whose head is new, have a least number of steps)."""
    stage2_lr: Positive = 0.1
    """Learning rate of the second stage."""
    stage2_weight_decay: NotNegative = 5e-4
    """Weight decay in the second stage."""
    stage2_batch_size: AtLeastOne | None = None
    """Batch size of the second stage (default: that of the run)."""
    stage2_schedule: Literal["cosine", "cosine-epochs", "constant"] = "cosine"
    """Schedule of the second stage; cosine-epochs moves once an epoch and is one epoch ahead, as in some code."""
    stage2_norm: Literal["frozen", "drift"] = "frozen"
    """Running statistics of the frozen backbone in the second stage: kept, or following the batches."""


class TwoStage(Method):
    """Cross entropy on everything, then SGD on the head alone with ``make_criterion``.

    ``--stage1 RUN`` takes the place of the first stage.
    """

    options = TwoStageOptions()
    length: ClassVar[tuple[int, int]] = (10, 90)
    """Epochs of the second stage, and of the first, in the method's recipe."""
    fresh_head: ClassVar[bool] = True
    least_steps: ClassVar[int] = 0
    """What a new head needs to be trained at all, however short the run; a length that is asked for wins."""
    nesterov: ClassVar[bool] = False

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.plain: nn.Module = CrossEntropyLoss()

    def stages(self) -> list[Stage]:
        options = self.options
        optim = {
            "optimizer": "sgd",
            "momentum": 0.9,
            "nesterov": self.nesterov,
            "lr": options.stage2_lr,
            "weight_decay": options.stage2_weight_decay,
            "schedule": options.stage2_schedule,
            "warmup_epochs": 0.0,
            "min_lr": 0.0,
        }
        if options.stage2_batch_size is not None:
            optim["batch_size"] = options.stage2_batch_size
        second = Stage(
            "stage2",
            epochs=options.stage2_epochs or scaled(*self.length, self.epochs),
            least_steps=0 if options.stage2_epochs else self.least_steps,
            train="head",
            fresh_head=self.fresh_head,
            norm=options.stage2_norm,
            optim=optim,
        )
        return [Stage("stage1"), second]

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        batch = batches["main"]
        logits = model(batch.images)
        criterion = self.plain if step.stage.name == "stage1" else self.criterion
        return Outcome(criterion(logits, batch.labels), logits, batch.labels)


def scaled(epochs: int, of: int, run: int) -> int:
    """Length of a part that has ``epochs`` when the run has ``of``, in a run of another length; one at least.

    Example:
        >>> [scaled(10, 90, run) for run in (90, 200, 12, 1)]
        [10, 22, 1, 1]
    """
    return max(1, round(epochs * run / of))
