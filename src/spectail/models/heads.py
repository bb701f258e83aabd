"""Heads: from features to the logits that inference uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._utils.checks import check_choice

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


class ScaledHead(nn.Linear):
    """A linear head whose logits are multiplied by one factor for each class, which begins at 1."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.scales = nn.Parameter(torch.ones(num_classes), requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) * self.scales


class EnsembleHead(nn.Linear):
    """A linear head that may keep an older copy of itself; inference then averages the probabilities of the two.

    Args:
        share: of the old head in the average.
        shift: (K,) added to the old logits, such as minus the log prior for a head trained with cross entropy.
    """

    old_weight: Tensor
    old_bias: Tensor
    shift: Tensor
    kept: Tensor

    def __init__(self, in_features: int, num_classes: int, share: float, shift: Tensor) -> None:
        super().__init__(in_features, num_classes)
        self.share = share
        self.register_buffer("old_weight", torch.zeros_like(self.weight))
        self.register_buffer("old_bias", torch.zeros_like(self.bias))
        self.register_buffer("shift", shift.float())
        self.register_buffer("kept", torch.zeros(()))

    def keep(self) -> None:
        """What the head is now becomes the old one."""
        self.old_weight.copy_(self.weight.detach())
        self.old_bias.copy_(self.bias.detach())
        self.kept.fill_(1.0)

    def new(self, features: Tensor) -> Tensor:
        return super().forward(features)

    def combine(self, features: Tensor, new: Tensor) -> Tensor:
        """Logits of the averaged probabilities. Before there is an old head, or with no share for it: the new ones."""
        if self.share == 0:
            return new
        old = F.linear(features, self.old_weight, self.old_bias) + self.shift
        both = torch.stack([old.float().log_softmax(1), new.float().log_softmax(1)])
        shares = torch.stack([both.new_full((1, 1), share) for share in (self.share, 1 - self.share)]).log()
        return torch.where(self.kept > 0, torch.logsumexp(both + shares, 0), new)

    def forward(self, features: Tensor) -> Tensor:
        return self.combine(features, super().forward(features))


def make_head(kind: str, in_features: int, num_classes: int) -> nn.Module:
    check_choice("head", kind, HEADS)
    return (nn.Linear if kind == "linear" else CosineHead)(in_features, num_classes)
