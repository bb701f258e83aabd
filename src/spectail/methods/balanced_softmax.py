"""Balanced Softmax alone: the prior is added to the training logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from .._utils.checks import Limits
from ..losses import BalancedSoftmaxLoss
from .base import About
from .deferred import Deferrable, LossOptions


@dataclass(frozen=True)
class BalancedSoftmaxOptions(LossOptions):
    tau: Annotated[float, Limits(0, 10)] = 1.0
    """Strength of the class prior in the loss; 1 is Balanced Softmax."""


class BalancedSoftmax(Deferrable):
    about = About(venue="NeurIPS 2020", needs="class counts")
    options = BalancedSoftmaxOptions()

    def make_criterion(self) -> nn.Module:
        return BalancedSoftmaxLoss(self.counts, tau=self.options.tau)
