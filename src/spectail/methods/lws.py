"""LWS, learnable weight scaling (Kang et al. 2020): the head stays, one factor for each class is learned."""

from __future__ import annotations

from torch import nn

from ..models.classifier import Classifier
from ..models.heads import ScaledHead
from .base import About, Step
from .crt import CRT


class LWS(CRT):
    about = About(
        "sampler, two stages",
        "ICLR 2020",
        "class counts (for the sampler), linear head",
        "a short second stage on the head",
        CRT.about.deviations,
    )
    head = "linear"
    length = (5, 90)
    fresh_head = False

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        return ScaledHead(in_features, len(self.counts))

    def begin_stage(self, model: Classifier, step: Step, *, resumed: bool) -> None:
        head, second = model.head, step.stage.name == "stage2"
        assert isinstance(head, ScaledHead)
        if second and not resumed:  # a first stage of lws itself has factors already
            nn.init.ones_(head.scales)
        head.weight.requires_grad_(not second)
        head.bias.requires_grad_(not second)
        head.scales.requires_grad_(second)
