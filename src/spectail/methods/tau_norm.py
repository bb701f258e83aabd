"""Tau-normalisation (Kang et al. 2020): after training, every class vector is divided by a power of its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from .._utils.checks import Limits
from ..models.classifier import Classifier
from .base import About
from .deferred import Deferrable, LossOptions


@dataclass(frozen=True)
class TauNormOptions(LossOptions):
    tau: Annotated[float, Limits(0, 10)] = 1.0
    """Power of the length: 0 leaves the vectors, 1 makes them all of length one."""


class TauNorm(Deferrable):
    about = About("post hoc", "ICLR 2020", "linear head", deviations="tau is 1 and not tuned")
    options = TauNormOptions()
    head = "linear"

    def inference(self, model: Classifier) -> nn.Module:
        weight = model.head.weight
        assert isinstance(weight, torch.Tensor)
        weight = weight.detach()
        lengths = weight.norm(dim=1, keepdim=True).clamp_min(1e-12)
        head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device, dtype=weight.dtype)
        head.weight.data = weight / lengths**self.options.tau
        return Classifier(model.backbone, head).train(model.training)
