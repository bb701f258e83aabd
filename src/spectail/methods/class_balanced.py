"""Class-Balanced loss as a method: weights by effective number, from the first epoch on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .._utils.checks import within
from ..losses import ClassBalancedLoss
from ..models.classifier import Classifier
from .base import About
from .deferred import DeferOptions, Deferrable
from .focal import rare_start


@dataclass(frozen=True)
class ClassBalancedOptions(DeferOptions):
    beta: float = 0.9999
    """Beta of the effective number: 0 gives no weights, 1 inverse frequency."""
    base: Literal["softmax", "sigmoid", "focal", "softmax-bce"] = "softmax"
    """The loss that is weighted; focal is its sigmoid form."""
    gamma: float = 1.0
    """Focusing parameter of the focal loss."""
    average: Literal["samples", "weights"] = "samples"
    """Divide by the batch size, as the authors do, or by the sum of the weights, as torch does."""

    def check(self) -> None:
        super().check()
        within("beta", self.beta, 0, 1)
        within("gamma", self.gamma, 0)


class ClassBalanced(Deferrable):
    about = About(venue="CVPR 2019", needs="counts", deviations="softmax base; the authors ship the focal one")
    options = ClassBalancedOptions()

    def make_criterion(self) -> nn.Module:
        options = self.options
        if options.defer == "reweight":
            raise ValueError("cb weighs classes from the start; for late weights use --method ce --defer reweight.")
        return ClassBalancedLoss(self.counts, options.beta, options.base, options.gamma, options.average)

    @property
    def sigmoid(self) -> bool:
        return self.options.base in ("sigmoid", "focal")

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        head = super().make_head(kind, in_features)
        return rare_start(head, len(self.counts)) if self.sigmoid else head

    def undecayed(self, model: Classifier) -> list[nn.Parameter]:
        return [model.head.bias] if self.sigmoid and isinstance(model.head, nn.Linear) else []
