"""Balanced Softmax + CAR on the logits that it uses. Its settings were chosen on validation data, as
docs/results-archive.md tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from .._utils.checks import Limits
from ..car_loss import BALANCED_TAU
from .balanced_softmax import BalancedSoftmax, BalancedSoftmaxOptions
from .base import About


@dataclass(frozen=True)
class CARBalancedOptions(BalancedSoftmaxOptions):
    tau: Annotated[float, Limits(0, 10)] = BALANCED_TAU
    """Strength of the class prior, in the loss and in the logits that CAR sees."""


class CARBalanced(BalancedSoftmax):
    about = About(
        "regulariser", "this project", "class counts", "less than 2 % of a ResNet-32 step", "not in CAR's paper"
    )
    options = CARBalancedOptions()
    required_settings: ClassVar = {"car": {"preset": "balanced"}}
