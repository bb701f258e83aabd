"""BBN (Zhou et al. 2020): one branch sees uniform batches, the other tail-heavy ones, and emphasis moves over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._utils.checks import AtLeastOne
from ..models.classifier import Classifier
from ..models.two_branch import TwoBranchClassifier
from ..targets import MixedTarget
from .base import About, Batches, Method, Options, Outcome, Stage, Step, Stream


@dataclass(frozen=True)
class BBNOptions(Options):
    horizon: AtLeastOne | None = None
    """Epoch at which the emphasis would have moved over completely (default: the last; for 90 and 180 epochs 100 and
    200, as in the authors' settings)."""
    count_from: Literal["code", "paper"] = "code"
    """Epochs in the formula of the emphasis: from 0 as in the authors' code, or from 1 as in the paper."""
    branch_at: str | None = None
    """Name of the block of the network that is doubled (default: the last one)."""


class BBN(Method):
    about = About(
        "model, sampler, schedule",
        "CVPR 2020",
        "class counts, a second sampler, images, linear head",
        "a step takes about twice as long",
        "epochs are counted from 0, as in the authors' code; the paper counts from 1 (--count-from paper)",
    )
    options = BBNOptions()
    takes_mixed = False
    head = "linear"
    needs_images = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.horizon = self.options.horizon or {90: 100, 180: 200}.get(self.epochs, self.epochs)
        self.emphasis = 1.0

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        return super().make_head(kind, 2 * in_features)

    def build(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        return TwoBranchClassifier(backbone, head, self.options.branch_at)

    def streams(self, stage: Stage) -> dict[str, Stream]:
        return {"main": Stream(drop_last=True), "reversed": Stream("reversed", drop_last=True)}

    def begin_epoch(self, step: Step) -> None:
        self.emphasis = emphasis(step.epoch + (self.options.count_from == "paper"), self.horizon)

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        assert isinstance(model, TwoBranchClassifier)
        uniform, reverse = batches["main"], batches["reversed"]
        # one pass per stream: batch statistics must not be mixed
        first = model.branch(uniform.images, "conventional")
        second = model.branch(reverse.images, "rebalancing")
        logits = mixed_logits(model.head, first, second, self.emphasis)
        share = torch.full((len(logits),), self.emphasis, device=logits.device)
        target = MixedTarget(uniform.labels, reverse.labels, share)
        step.log("emphasis", share.mean())
        return Outcome(self.criterion(logits, target), logits, target)


def emphasis(epoch: int, horizon: int) -> float:
    """Weight of the conventional branch in an epoch counted from 0.

    Example:
        >>> [emphasis(epoch, 200) for epoch in (0, 50, 100, 199)]
        [1.0, 0.9375, 0.75, 0.009975]
    """
    return round(max(1 - (epoch / horizon) ** 2, 0.0), 12)


def mixed_logits(head: nn.Module, first: Tensor, second: Tensor, share: float) -> Tensor:
    """The factor 2 makes the scale that of inference, where both halves count in full."""
    logits: Tensor = head(2 * torch.cat([share * first, (1 - share) * second], dim=1))
    return logits
