"""Learner: model and method as one module, whose forward pass is one training step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..data.loader import Batch
from ..methods.base import Method, Outcome, Step
from ..models.classifier import Classifier


class Learner(nn.Module):
    """What Accelerate wraps: however often a method runs the model in a step, gradients are averaged once."""

    def __init__(self, model: Classifier, method: Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batches: Mapping[str, Batch], step: Step) -> Outcome:
        return self.method.loss(self.model, batches, step)
