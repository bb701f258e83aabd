"""Logit adjustment (Menon et al. 2021): the prior is taken off the logits afterwards, or put on them in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import nn

from .._utils.checks import Limits
from ..losses import BalancedSoftmaxLoss, CrossEntropyLoss
from ..models.adjustment import Adjusted
from ..models.classifier import Classifier
from .base import About
from .deferred import Deferrable, LossOptions


@dataclass(frozen=True)
class LogitAdjustmentOptions(LossOptions):
    tau: Annotated[float, Limits(0, 10)] = 1.0
    """Strength of the class prior."""
    mode: Literal["post-hoc", "training"] = "post-hoc"
    """Subtract tau log prior at inference, or add it in training (with tau 1 that is balanced-softmax)."""


class LogitAdjustment(Deferrable):
    about = About("post hoc", "ICLR 2021", "class counts")
    options = LogitAdjustmentOptions()
    adjusts_at_inference = True

    def make_criterion(self) -> nn.Module:
        in_training = self.options.mode == "training"
        return BalancedSoftmaxLoss(self.counts, self.options.tau) if in_training else CrossEntropyLoss()

    def inference(self, model: Classifier) -> nn.Module:
        if self.options.mode == "training":
            return model
        return Adjusted(model, -self.options.tau * self.counts.frequencies.log())
