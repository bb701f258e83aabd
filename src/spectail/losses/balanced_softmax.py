"""Balanced Softmax (Ren et al. 2020, "Balanced Meta-Softmax for Long-Tailed Visual Recognition")."""

from __future__ import annotations

import math

from torch import Tensor

from .._utils.checks import check_number
from ..counts import CountsLike, as_counts
from .base import LabelLoss


class BalancedSoftmaxLoss(LabelLoss):
    """L = CE(z + tau log n, y): training labels follow the skewed prior, so the prior is added in training only.

    At inference the plain logits are used; they are then right for a uniform prior. ``tau=1`` is Balanced Softmax;
    other values are logit adjustment (Menon et al. 2021) with that strength.

    Args:
        class_counts: training images per class.
        tau: strength of the prior.

    Example:
        >>> import torch
        >>> loss = BalancedSoftmaxLoss([100, 20, 5])
        >>> round(float(loss(torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([0]))), 5)
        0.04604
    """

    log_prior: Tensor

    def __init__(self, class_counts: CountsLike, tau: float = 1.0, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        check_number(tau=tau)
        if not math.isfinite(tau):
            raise ValueError(f"tau must be finite; got {tau}.")
        self.tau = float(tau)
        self.register_buffer("log_prior", as_counts(class_counts, advice="Drop the class.").frequencies.log())

    def costs(self, logits: Tensor) -> Tensor:
        return -(logits + self.tau * self.log_prior.to(logits)).log_softmax(1)
