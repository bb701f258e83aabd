"""Label over-smoothing (Sun et al. 2025, LOS)."""

from __future__ import annotations

from torch import Tensor

from .._utils.checks import Limits
from .base import LabelLoss


class LabelOverSmoothLoss(LabelLoss):
    """Cross entropy with extreme label smoothing: t_y = 1 - delta + delta / K, all other targets delta / K.

    On good frozen features it makes the logits small and of similar size for all classes, without class counts. With K
    classes the ideal gap between the true logit and the others is log(1 + K (1 - delta) / delta), so delta must rise
    with K: 0.98 for 100 classes is about 0.998 for 1,000.

    The value cannot fall below the entropy of the target (4.59 for K = 100): it looks flat while accuracy changes.

    Args:
        delta: share of the label that is spread over all classes, in [0, 1]; 0 is cross entropy.

    Example:
        >>> import torch
        >>> z = torch.tensor([[2.0, 0.5, -1.0]], dtype=torch.float64)
        >>> round(float(LabelOverSmoothLoss()(z, torch.tensor([0]))), 5)
        1.71131
    """

    def __init__(self, delta: float = 0.98, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        Limits(0, 1).check("delta", delta)
        self.delta = float(delta)

    def costs(self, logits: Tensor) -> Tensor:
        cost = -logits.log_softmax(1)
        return (1 - self.delta) * cost + self.delta * cost.mean(1, keepdim=True)
