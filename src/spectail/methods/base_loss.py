"""The choice of a base loss, for methods that change what goes into a loss and not the loss itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..losses import BalancedSoftmaxLoss, CrossEntropyLoss, FocalLoss, LDAMLoss
from ..models.heads import CosineHead
from ..targets import MixedTarget
from .deferred import Deferrable, LossOptions

SCALE = 30.0


@dataclass(frozen=True)
class BaseLossOptions(LossOptions):
    base_loss: Literal["ce", "focal", "balanced-softmax", "ldam"] = "ce"
    """The loss under it. ldam brings its cosine head; with --defer reweight it is LDAM-DRW."""


class OnBaseLoss(Deferrable):
    """``cost(logits, target)`` is the base loss of the logits that inference uses."""

    options = BaseLossOptions()

    def make_criterion(self) -> nn.Module:
        options = self.options
        if options.base_loss == "balanced-softmax":
            return BalancedSoftmaxLoss(self.counts)
        if options.base_loss == "ldam":
            return LDAMLoss(self.counts, scale=SCALE)
        return FocalLoss() if options.base_loss == "focal" else CrossEntropyLoss()

    @property
    def has_margins(self) -> bool:
        return self.options.base_loss == "ldam"

    def needed_head(self) -> str | None:
        return "cosine" if self.has_margins else super().needed_head()

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        return (
            CosineHead(in_features, len(self.counts), SCALE)
            if kind == "cosine"
            else super().make_head(kind, in_features)
        )

    def cost(self, logits: Tensor, target: Tensor | MixedTarget) -> Tensor:
        found: Tensor = self.criterion(logits / SCALE if self.has_margins else logits, target)
        return found
