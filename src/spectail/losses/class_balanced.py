"""Class-Balanced loss (Cui et al. 2019, "Class-Balanced Loss Based on Effective Number of Samples")."""

from __future__ import annotations

import torch
from torch import Tensor

from .._utils.checks import Limits, check_choice
from ..counts import CountsLike, as_counts
from .base import LabelLoss, log_others
from .focal import sigmoid_focal

BASES = ("softmax", "sigmoid", "focal", "softmax-bce")


def effective_number_weights(class_counts: CountsLike, beta: float = 0.9999) -> Tensor:
    """(K,) float64 weights (1 - beta) / (1 - beta^n_j), scaled to sum to K.

    n images that overlap count as (1 - beta^n) / (1 - beta) effective ones: beta = 0 gives equal weights, beta = 1
    inverse frequency.

    Example:
        >>> effective_number_weights([100, 20, 5], 0.9999).round(decimals=5)
        tensor([0.1159, 0.5772, 2.3069], dtype=torch.float64)
    """
    Limits(0, 1).check("beta", beta)
    n = as_counts(class_counts, advice="Drop the class.").counts.double()
    if beta == 1:
        weight = 1 / n
    elif beta == 0:
        weight = torch.ones_like(n)
    else:
        log_beta = torch.log(torch.tensor(beta, dtype=torch.float64))
        weight = (1 - beta) / -torch.expm1(n * log_beta)  # 1 - beta^n would lose digits for rare classes
    return weight * len(n) / weight.sum()


class ClassBalancedLoss(LabelLoss):
    """The loss of a sample times the weight of its class by effective number: sum of w_y loss / batch size.

    Args:
        class_counts: training images per class.
        beta: beta of the effective number; 0.9999 in most work on long tails, smaller for CIFAR-100 in the paper.
        base: ``"softmax"`` cross entropy; ``"sigmoid"`` binary cross entropy summed over classes; ``"focal"`` sigmoid
            focal loss; ``"softmax-bce"`` binary cross entropy of the softmax outputs, averaged over classes, which a
            well-known port and Weight Balancing use. It is not the paper's loss; its gradients are about K times
            smaller.
        gamma: focusing parameter of ``"focal"``.
        average: ``"samples"`` (the authors') or ``"weights"`` (torch's, which cancels the weight of a batch with one
            class).

    Weights set with :meth:`set_weight` multiply these.

    Example:
        >>> z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3]], dtype=torch.float64)
        >>> round(float(ClassBalancedLoss([100, 20, 5])(z, torch.tensor([0, 1]))), 5)
        0.14484
    """

    balance: Tensor

    def __init__(
        self,
        class_counts: CountsLike,
        beta: float = 0.9999,
        base: str = "softmax",
        gamma: float = 1.0,
        average: str = "samples",
        **options: object,
    ):
        super().__init__(average=average, **options)  # type: ignore[arg-type]
        check_choice("base", base, BASES)
        Limits(0).check("gamma", gamma)
        self.base, self.gamma = base, float(gamma)
        self.register_buffer("balance", effective_number_weights(class_counts, beta))

    def class_weights(self) -> Tensor | None:
        return self.balance if self.weight is None else self.balance * self.weight

    def costs(self, logits: Tensor) -> Tensor:
        if self.base == "softmax":
            return -logits.log_softmax(1)
        if self.base == "softmax-bce":
            return softmax_bce(logits)
        return sigmoid_focal(logits, self.gamma if self.base == "focal" else 0.0)


def softmax_bce(logits: Tensor) -> Tensor:
    """(N, K): mean over j of BCE(p_j, 1[j = k]) with p = softmax(z), for each label k."""
    total = logits.logsumexp(1, keepdim=True)
    right, wrong = total - logits, total - log_others(logits)  # -log p and -log(1 - p)
    return (wrong.sum(1, keepdim=True) - wrong + right) / logits.shape[1]
