"""LDAM-DRW: margins on a cosine head, and class weights once the learning rate has dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from ..losses import LDAMLoss
from ..models.classifier import Classifier
from ..models.heads import CosineHead
from .base import About, Batches, Outcome, Step
from .deferred import Deferrable, LossOptions


@dataclass(frozen=True)
class LDAMOptions(LossOptions):
    max_margin: float = 0.5
    """Margin of the rarest class; the authors advise 0.3 for iNaturalist."""
    scale: float = 30.0
    """Factor that turns cosines into logits."""
    defer: Literal["none", "reweight", "resample"] = "reweight"
    """What changes late in training: reweight is LDAM-DRW, none is LDAM alone."""


class LDAMDRW(Deferrable):
    about = About("loss, head, schedule", "NeurIPS 2019", "class counts, cosine head")
    options = LDAMOptions()
    head = "cosine"

    def make_criterion(self) -> nn.Module:
        return LDAMLoss(self.counts, self.options.max_margin, self.options.scale)

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        return CosineHead(in_features, len(self.counts), self.options.scale)

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        batch = batches["main"]
        logits = model(batch.images)  # scale * cosine, as inference uses them
        return Outcome(self.criterion(logits / self.options.scale, batch.labels), logits, batch.labels)
