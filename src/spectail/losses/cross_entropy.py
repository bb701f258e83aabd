"""Cross entropy: where every comparison starts."""

from __future__ import annotations

from torch import Tensor

from .base import LabelLoss


class CrossEntropyLoss(LabelLoss):
    """L = -log softmax(z)_y, for hard, soft and mixed labels and changing class weights.

    Example:
        >>> import torch
        >>> loss = CrossEntropyLoss()
        >>> round(float(loss(torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([0]))), 5)
        0.24131
    """

    def costs(self, logits: Tensor) -> Tensor:
        return -logits.log_softmax(1)
