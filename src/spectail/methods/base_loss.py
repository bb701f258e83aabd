"""The choice of a base loss, for methods that change what goes into a loss and not the loss itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ..losses import BalancedSoftmaxLoss, CrossEntropyLoss, FocalLoss, LDAMLoss
from ..targets import MixedTarget
from .deferred import Deferrable, LossOptions


@dataclass(frozen=True)
class BaseLossOptions(LossOptions):
    base_loss: Literal["ce", "focal", "balanced-softmax", "ldam"] = "ce"
    """The loss of the mixed images. ldam brings its cosine head; with --defer reweight it is LDAM-DRW."""


class OnBaseLoss(Deferrable):
    """``cost(logits, target)`` is the base loss of the logits that inference uses."""

    options = BaseLossOptions()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.options.base_loss == "ldam":
            self.head = "cosine"

    def make_criterion(self) -> nn.Module:
        if self.options.base_loss == "balanced-softmax":
            return BalancedSoftmaxLoss(self.counts)
        if self.options.base_loss == "ldam":
            return LDAMLoss(self.counts)
        return FocalLoss() if self.options.base_loss == "focal" else CrossEntropyLoss()

    def cost(self, logits: Tensor, target: Tensor | MixedTarget) -> Tensor:
        if isinstance(self.criterion, LDAMLoss):
            logits = logits / self.criterion.scale  # margins are of cosines
        loss: Tensor = self.criterion(logits, target)
        return loss
