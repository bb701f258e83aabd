"""Weight Balancing (Alshammari et al. 2022): strong weight decay, then the head with class-balanced loss and a cap on
the length of its class vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .._utils.checks import NotNegative, Positive, Proportion
from ..losses import ClassBalancedLoss
from ..models.classifier import Classifier
from .base import About, Step
from .two_stage import TwoStage, TwoStageOptions


@dataclass(frozen=True)
class WeightBalancingOptions(TwoStageOptions):
    beta: Proportion = 0.9999
    """Beta of the effective number in the class-balanced loss."""
    loss: Literal["softmax-bce", "softmax"] = "softmax-bce"
    """The form of that loss: the authors' code, or the paper's (then tune --stage2-weight-decay anew)."""
    threshold: Proportion = 0.1
    """Where between the shortest and the longest class vector the cap lies."""
    project: Literal["step", "epoch"] = "step"
    """How often vectors are cut to the cap: the paper, or the authors' demonstration."""
    stage2_lr: Positive = 0.01
    stage2_weight_decay: NotNegative = 0.1
    stage2_norm: Literal["frozen", "drift"] = "drift"


class WeightBalancing(TwoStage):
    about = About(
        "regulariser, two stages",
        "CVPR 2022",
        "class counts in stage two, linear head",
        "a short second stage on the head",
        "predictions of mirrored test images are averaged in only with --flip-test or --recipe; the authors' ResNet-34 "
        "is --model resnet34-cifar; the learning rate falls in every step, the authors' once an epoch "
        "(--schedule cosine-epochs and --stage2-schedule cosine-epochs)",
    )
    options = WeightBalancingOptions()
    head = "linear"
    length = (10, 200)
    fresh_head = False
    required_settings: ClassVar = {
        "optim": {"optimizer": "sgd", "lr": 0.01, "weight_decay": 5e-3}
    }  # coupled decay, on everything

    cap: Tensor

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("cap", torch.tensor(torch.inf))

    def make_criterion(self) -> nn.Module:
        return ClassBalancedLoss(self.counts, self.options.beta, self.options.loss)

    def begin_stage(self, model: Classifier, step: Step, *, resumed: bool) -> None:
        if step.stage.name == "stage2" and not resumed:  # once, from the weights of the first stage
            self.cap = cap(_rows(model), self.options.threshold)

    def after_step(self, model: Classifier, step: Step) -> None:
        due = self.options.project == "step" or step.index % (step.steps // step.epochs) == 0
        if step.stage.name == "stage2" and due:
            step.log("rows_clipped", project(_rows(model), self.cap))


def _rows(model: Classifier) -> Tensor:
    weight = model.head.weight
    assert isinstance(weight, Tensor)
    return weight.data


def cap(weight: Tensor, threshold: float) -> Tensor:
    """A length between those of the shortest and the longest row.

    Example:
        >>> cap(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), 0.1)
        tensor(1.4000)
    """
    lengths = weight.norm(dim=1)
    limit: Tensor = lengths.min() + threshold * (lengths.max() - lengths.min())
    return limit


def project(weight: Tensor, limit: Tensor) -> Tensor:
    """Shorten rows longer than the limit, in place, and return how many they were."""
    lengths = weight.norm(dim=1, keepdim=True)
    weight.mul_((limit / lengths.clamp_min(1e-12)).clamp(max=1.0))
    clipped: Tensor = (lengths > limit).sum()
    return clipped
