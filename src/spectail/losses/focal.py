"""Focal loss (Lin et al. 2017, "Focal Loss for Dense Object Detection")."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .._utils.checks import Limits, check_choice
from .base import LabelLoss

FORMS = ("softmax", "sigmoid")


class FocalLoss(LabelLoss):
    """Samples that are already right count little: the log loss times a power of the error.

    ``softmax`` (what long-tailed recognition uses): (1 - p_y)^gamma * -log p_y.
    ``sigmoid`` (the original): sum over k of a_k (1 - q_k)^gamma * -log q_k with q_k = sigmoid(z_k) for the label and
    1 - sigmoid(z_k) for the others. The sum is over classes, the mean over samples.

    Args:
        gamma: power; 0 is cross entropy (softmax) or binary cross entropy summed over classes (sigmoid).
        form: ``"softmax"`` or ``"sigmoid"``.
        alpha: weight of the label's term in the sigmoid form, 1 - alpha for the others; None for 1 and 1.

    Class weights multiply the whole loss of a sample; they do not enter p.

    Example:
        >>> import torch
        >>> z = torch.tensor([[2.0, 0.5, -1.0]], dtype=torch.float64)
        >>> round(float(FocalLoss(gamma=1.0)(z, torch.tensor([0]))), 5)
        0.05174
    """

    def __init__(self, gamma: float = 1.0, form: str = "softmax", alpha: float | None = None, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        Limits(0).check("gamma", gamma)
        check_choice("form", form, FORMS)
        if alpha is not None:
            Limits(0, 1).check("alpha", alpha)
            if form != "sigmoid":
                raise ValueError(f"alpha belongs to form='sigmoid'; got {alpha} with {form!r}.")
        self.gamma, self.form, self.alpha = float(gamma), form, alpha

    def costs(self, logits: Tensor) -> Tensor:
        if self.form == "sigmoid":
            return sigmoid_focal(logits, self.gamma, self.alpha)
        log_p = logits.log_softmax(1)
        if self.gamma == 0:
            return -log_p
        # the clamp keeps the gradient of a power below 1 finite once p rounds to 1
        return (-log_p.expm1()).clamp_min(1e-8) ** self.gamma * -log_p


def sigmoid_focal(logits: Tensor, gamma: float, alpha: float | None = None) -> Tensor:
    """(N, K): the summed sigmoid focal loss for each label.

    (1 - q)^gamma is written as an exponential, which has a finite gradient for every gamma and every logit.
    """
    right = (-gamma * F.softplus(logits)).exp() * F.softplus(-logits)
    wrong = (-gamma * F.softplus(-logits)).exp() * F.softplus(logits)
    if alpha is not None:
        right, wrong = alpha * right, (1 - alpha) * wrong
    return wrong.sum(1, keepdim=True) - wrong + right
