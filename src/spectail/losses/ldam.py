"""LDAM (Cao et al. 2019, "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss")."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .._utils.checks import Limits
from ..counts import CountsLike, as_counts
from .base import LabelLoss, log_others


def margins(class_counts: CountsLike, max_margin: float = 0.5) -> Tensor:
    """(K,) float64 margins proportional to n_j^(-1/4), the largest being ``max_margin``.

    Example:
        >>> margins([100, 20, 5]).round(decimals=5).tolist()
        [0.23644, 0.35355, 0.5]
    """
    n = as_counts(class_counts, advice="Drop the class.").counts.double()
    found = n**-0.25
    return max_margin * found / found.max()


class LDAMLoss(LabelLoss):
    """L = CE(scale * (z - m_y 1_y), y): the rarer the class, the larger the margin by which its cosine must win.

    It takes bare cosines between features and class vectors, in [-1, 1], from a head without bias, such as
    :class:`spectail.models.heads.CosineHead` divided by its scale. The margin is subtracted before scaling, in training
    only. Deferred re-weighting (DRW) is ``set_weight(effective_number_weights(counts))`` late in training.

    Args:
        class_counts: training images per class.
        max_margin: margin of the rarest class; 0.5 for small data sets, 0.3 for iNaturalist.
        scale: factor of the cosines.

    Example:
        >>> import torch
        >>> cosines = torch.tensor([[0.3, 0.5, 0.0]], dtype=torch.float64)
        >>> round(float(LDAMLoss([100, 20, 5])(cosines, torch.tensor([1]))), 5)
        4.61666
    """

    margin: Tensor

    def __init__(self, class_counts: CountsLike, max_margin: float = 0.5, scale: float = 30.0, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        Limits(0).check("max_margin", max_margin)
        Limits(0, open_low=True).check("scale", scale)
        self.scale = float(scale)
        self.register_buffer("margin", margins(class_counts, max_margin))

    def costs(self, logits: Tensor) -> Tensor:
        scaled = self.scale * logits
        return F.softplus(log_others(scaled) - (scaled - self.scale * self.margin.to(logits)))
