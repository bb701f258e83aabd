"""Heads: from features to the logits that inference uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEADS = ("linear", "cosine")


class CosineHead(nn.Module):
    """Logits scale * cos(features, class vector), without bias. LDAM and ConCutMix need it.

    The logits are scaled, so argmax, confidences and CAR all see what inference uses; divide by ``scale`` for the bare
    cosines.

    Example:
        >>> head = CosineHead(2, 3, scale=1.0)
        >>> head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
        >>> head(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000, 0.1414]], grad_fn=<MulBackward0>)
    """

    def __init__(self, in_features: int, num_classes: int, scale: float = 30.0) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scale = in_features, num_classes, scale
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Class vectors uniform in the cube, then of length one."""
        with torch.no_grad():
            self.weight.copy_(F.normalize(self.weight.uniform_(-1, 1), dim=1))

    def forward(self, features: Tensor) -> Tensor:
        # float32 whatever autocast says: small norms do not survive half precision
        with torch.autocast(features.device.type, enabled=False):
            features = features if features.dtype == torch.float64 else features.float()
            return self.scale * F.linear(F.normalize(features, dim=1), F.normalize(self.weight.to(features), dim=1))


def make_head(kind: str, in_features: int, num_classes: int) -> nn.Module:
    if kind == "linear":
        return nn.Linear(in_features, num_classes)
    if kind == "cosine":
        return CosineHead(in_features, num_classes)
    raise ValueError(f"head must be one of {', '.join(HEADS)}; got {kind!r}.")
