"""LOS, label over-smoothing (Sun et al. 2025): the head is trained further with almost flat labels, without counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from .._utils.checks import NotNegative, Positive
from ..losses import LabelOverSmoothLoss
from .base import About
from .two_stage import TwoStage, TwoStageOptions


@dataclass(frozen=True)
class LOSOptions(TwoStageOptions):
    delta: float = 0.98
    """Share of the label that is spread over all classes; it should rise with their number."""
    stage2_lr: Positive = 5e-4
    stage2_weight_decay: NotNegative = 0.0
    stage2_norm: Literal["frozen", "drift"] = "drift"


class LOS(TwoStage):
    about = About(
        "soft target, two stages",
        "ICLR 2025",
        "nothing",
        "a short second stage on the head",
        "predictions of mirrored test images are averaged in only with --flip-test or --recipe; the paper's backbone "
        "is not verified",
    )
    options = LOSOptions()
    length = (20, 200)
    fresh_head = False
    # its first stage is that of Weight Balancing: without strong decay the second stage changes little
    required_settings: ClassVar = {"optim": {"optimizer": "sgd", "lr": 0.01, "weight_decay": 5e-3}}

    def make_criterion(self) -> nn.Module:
        return LabelOverSmoothLoss(self.options.delta)
