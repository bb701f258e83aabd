"""cRT, classifier re-training (Kang et al. 2020): a fresh head on frozen features, classes sampled equally often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .._utils.checks import Positive
from .base import About, Stage, Stream
from .two_stage import TwoStage, TwoStageOptions


@dataclass(frozen=True)
class CRTOptions(TwoStageOptions):
    stage2_lr: Positive = 0.2
    stage2_norm: Literal["frozen", "drift"] = "drift"


class CRT(TwoStage):
    about = About(
        "sampler, two stages",
        "ICLR 2020",
        "class counts (for the sampler)",
        "a short second stage on the head",
        "draws classes independently of each other; the learning rate falls in every step, the authors' once an epoch "
        "(--stage2-schedule cosine-epochs)",
    )
    options = CRTOptions()

    def streams(self, stage: Stage) -> dict[str, Stream]:
        return {"main": Stream("class-balanced" if stage.name == "stage2" else "instance")}
