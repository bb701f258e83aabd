"""Class-Balanced loss as a method: weights by effective number, from the first epoch on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .._utils.checks import NotNegative, Proportion
from ..losses import ClassBalancedLoss
from .base import About
from .deferred import DeferOptions
from .focal import MaybeSigmoid


@dataclass(frozen=True)
class ClassBalancedOptions(DeferOptions):
    beta: Proportion = 0.9999
    """Beta of the effective number: 0 gives no weights, 1 inverse frequency."""
    base: Literal["softmax", "sigmoid", "focal", "softmax-bce"] = "softmax"
    """The loss that is weighted; focal is its sigmoid form."""
    gamma: NotNegative = 1.0
    """Focusing parameter of the focal loss."""
    average: Literal["samples", "weights"] = "samples"
    """Divide by the batch size, as the authors do, or by the sum of the weights, as torch does."""


class ClassBalanced(MaybeSigmoid):
    about = About(
        venue="CVPR 2019",
        needs="class counts",
        deviations="softmax cross entropy; the authors' code uses focal loss",
    )
    options = ClassBalancedOptions()

    def make_criterion(self) -> nn.Module:
        options = self.options
        if options.defer == "reweight":
            raise ValueError("cb weighs classes from the start; for late weights use --method ce --defer reweight.")
        self.sigmoid = options.base in ("sigmoid", "focal")
        return ClassBalancedLoss(self.counts, options.beta, options.base, options.gamma, options.average)
