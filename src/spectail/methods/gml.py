"""GML, geometric-mean loss (Du & Wu 2023): the head is trained anew so that no class is left behind, and averaged with
the old one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from .._utils.checks import AtLeastOne, BelowOne
from ..losses import GeometricMeanLoss
from ..models.classifier import Classifier
from ..models.heads import EnsembleHead
from .base import About, Batches, Outcome, Stage, Step, Stream
from .two_stage import TwoStage, TwoStageOptions


@dataclass(frozen=True)
class GMLOptions(TwoStageOptions):
    divide: Literal["present", "all"] = "present"
    """Average over the classes present in the batch, or over all of them (absent ones then count as perfect)."""
    sampling: Literal["instance", "class-balanced"] = "instance"
    """Sampler of the second stage; the prior in the loss is then the training set's, or uniform."""
    reuse_head: bool = False
    """Begin the second stage with the old head instead of a fresh one."""
    ensemble: BelowOne = 0.5
    """Share of the old head in the averaged probabilities; 0 for the new head alone."""
    old_prior: Literal["keep", "remove"] = "keep"
    """Whether the old head's logits stay as they are, or the log prior is taken off them, which is logit adjustment
    of the old head and not in any code for GML."""
    stage2_batch_size: AtLeastOne | None = 512
    """Batch size of the second stage, which should be large against the number of classes."""


class GML(TwoStage):
    about = About(
        "batch loss, two stages",
        "CVPR 2023",
        "class counts, large batches, linear head",
        "a short second stage on the head",
        "no code was released: the settings of stage two and the form of the average are reconstructed",
    )
    options = GMLOptions()
    head = "linear"
    length = (20, 200)
    least_steps = 440  # 20 epochs over CIFAR-100-LT
    fresh_head = False  # begin_stage makes it afresh, after it has been kept
    adjusts_at_inference = True  # --old-prior may take the old head's prior off

    def make_criterion(self) -> nn.Module:
        counts = self.counts if self.options.sampling == "instance" else [1] * len(self.counts)
        return GeometricMeanLoss(counts, self.options.divide)

    def make_head(self, kind: str, in_features: int) -> nn.Module:
        return EnsembleHead(in_features, len(self.counts), self.options.ensemble, self._shift())

    def _shift(self) -> Tensor:
        """What is added to the logits of the old head."""
        log_prior = self.counts.frequencies.log()
        return torch.zeros_like(log_prior) if self.options.old_prior == "keep" else -log_prior

    def stages(self) -> list[Stage]:
        first, second = super().stages()
        return [first, replace(second, least_steps=0) if self.options.reuse_head else second]

    def streams(self, stage: Stage) -> dict[str, Stream]:
        return {"main": Stream(self.options.sampling if stage.name == "stage2" else "instance")}

    def begin_stage(self, model: Classifier, step: Step, *, resumed: bool) -> None:
        self.loss_spans_ranks = step.stage.name == "stage2"
        if step.stage.name == "stage2" and not resumed:
            assert isinstance(model.head, EnsembleHead)
            model.head.shift.copy_(self._shift())  # a --stage1 run of gml has brought its own
            model.head.keep()
            if not self.options.reuse_head:
                nn.Linear.reset_parameters(model.head)

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        if step.stage.name == "stage1":
            return super().loss(model, batches, step)
        batch, head = batches["main"], model.head
        assert isinstance(head, EnsembleHead)
        with torch.no_grad():
            features = model.backbone(batch.images)
        logits = head.new(features)
        return Outcome(self.criterion(logits, batch.labels), head.combine(features, logits), batch.labels)
