"""Balanced Softmax + a soft maximum of the weighted class errors. Its settings were chosen on validation data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from .._utils.checks import Limits
from ..car_loss import WORST_TAU
from .balanced_softmax import BalancedSoftmax, BalancedSoftmaxOptions
from .base import About


@dataclass(frozen=True)
class CARWorstOptions(BalancedSoftmaxOptions):
    tau: Annotated[float, Limits(0, 10)] = WORST_TAU
    """Strength of the class prior, in the loss and in the logits that CAR sees."""


class CARWorst(BalancedSoftmax):
    about = About(
        "regulariser", "this project", "class counts", "less than 2 % of a ResNet-32 step", "not in CAR's paper"
    )
    options = CARWorstOptions()
    required_settings: ClassVar = {"car": {"preset": "worst"}}
