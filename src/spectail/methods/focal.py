"""Focal loss as a method; in its sigmoid form with the start of the last bias that keeps the first steps sane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from .._utils.checks import NotNegative, Proportion
from ..losses import FocalLoss
from ..models.classifier import Classifier
from .base import About
from .deferred import Deferrable, LossOptions


@dataclass(frozen=True)
class FocalOptions(LossOptions):
    gamma: NotNegative = 1.0
    """Focusing parameter: the higher it is, the less easy samples count."""
    form: Literal["softmax", "sigmoid"] = "softmax"
    """Form of the loss: softmax as in long-tailed recognition, or sigmoid as in the original."""
    focal_alpha: Proportion | None = None
    """Weight of the label's own term in the sigmoid form."""

    def check(self) -> None:
        super().check()
        if self.focal_alpha is not None and self.form != "sigmoid":
            raise ValueError("--focal-alpha belongs to the sigmoid form: pass --form sigmoid, or leave it out.")


def rare_start(head: nn.Module, classes: int) -> nn.Module:
    """Bias -log(K - 1): every sigmoid begins at 1 / K, so that the K - 1 negatives do not swamp the first steps."""
    if isinstance(head, nn.Linear) and classes > 1:
        nn.init.constant_(head.bias, -math.log(classes - 1))
    return head


class MaybeSigmoid(Deferrable):
    """A method whose loss may be a sum over sigmoids, for which the head begins as in :func:`rare_start`."""

    sigmoid: bool

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        head = super().make_head(kind, in_features)
        return rare_start(head, len(self.counts)) if self.sigmoid else head

    def undecayed(self, model: Classifier) -> list[nn.Parameter]:
        return [model.head.bias] if self.sigmoid and isinstance(model.head, nn.Linear) else []


class Focal(MaybeSigmoid):
    about = About(venue="ICCV 2017")
    options = FocalOptions()

    def make_criterion(self) -> nn.Module:
        self.sigmoid = self.options.form == "sigmoid"
        return FocalLoss(self.options.gamma, self.options.form, self.options.focal_alpha)
