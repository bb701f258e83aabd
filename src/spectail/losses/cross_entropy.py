"""Cross entropy: where every comparison starts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .base import LabelLoss, Target, or_one


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

    def _value(self, logits: Tensor, target: Target) -> Tensor:
        if self.smoothing or self.weight is not None or not isinstance(target, Tensor) or target.ndim != 1:
            return super()._value(logits, target)
        labels = target.long()  # the usual case in one operation
        total = F.cross_entropy(logits, labels, ignore_index=self.ignore_index, reduction="sum")
        return total / or_one((labels != self.ignore_index).sum())
