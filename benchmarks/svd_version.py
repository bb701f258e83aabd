"""CAR as one would first write it: a dense K x K average and autograd through the spectral norm, an SVD every step."""

from __future__ import annotations

import torch
from torch import Tensor

from spectail import functional as SF


class SVDVersion:
    def __init__(self, class_counts: list[int], beta: float = 0.5) -> None:
        self.beta = beta
        self.weights = SF.class_weights(class_counts)
        self.history = torch.zeros(len(class_counts), len(class_counts))

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        average = self.beta * self.history + (1 - self.beta) * SF.soft_confusion(logits, labels)
        self.history = average.detach()
        norm: Tensor = torch.linalg.matrix_norm(average * self.weights, 2)
        return norm
