"""What is done to the features of a frozen backbone before a head sees them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from .._utils.checks import check_choice

FeatureKind: TypeAlias = Literal["raw", "standard", "power"]
KINDS = ("raw", "standard", "power")
BLOCK = 1 << 22  # numbers looked at together: a second copy of all features in double precision may not fit


class FeatureTransform(nn.Module):
    """Features (N, D) to features (N, D), by statistics of the training features that :meth:`fit_` takes.

    - ``"raw"``: as they are. It has no buffers, so a saved model has no key of it.
    - ``"standard"``: every dimension has mean 0 and standard deviation 1; one that never changes becomes 0.
    - ``"power"``: sign(x) * sqrt(abs(x)), which tames long tails of single dimensions, then mean 0 in every dimension
      and one common scale for all, so that the root mean square of all entries is 1.

    Example:
        >>> features = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> FeatureTransform("standard", 2).fit_(features)(features)
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        check_choice("features", kind, KINDS)
        self.kind, self.width = kind, width
        if kind != "raw":
            self.register_buffer("mean", torch.zeros(width))
            self.register_buffer("scale", torch.ones(width if kind == "standard" else ()))

    @torch.no_grad()
    def fit_(self, features: Tensor) -> FeatureTransform:
        """Take the statistics of training features (N, D), with sums in double precision."""
        if features.ndim != 2 or features.shape[1] != self.width or not len(features):
            raise ValueError(f"expected features (N, {self.width}) to fit to; got {tuple(features.shape)}.")
        if self.kind == "raw":
            return self
        blocks = torch.split(features, max(BLOCK // self.width, 1))
        mean = torch.stack([self._rooted(block).double().sum(0) for block in blocks]).sum(0) / len(features)
        deviations = ((self._rooted(block).double() - mean).square().sum(0) for block in blocks)
        variance = torch.stack(list(deviations)).sum(0) / len(features)
        constant = features.amin(0) == features.amax(0)  # exactly: its mean may be rounded
        variance[constant] = 0
        variance = variance if self.kind == "standard" else variance.mean()
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(variance > 0, variance, torch.ones_like(variance)).sqrt())
        return self

    def forward(self, features: Tensor) -> Tensor:
        return features if self.kind == "raw" else (self._rooted(features) - self.mean) / self.scale

    def extra_repr(self) -> str:
        return f"{self.kind!r}, {self.width}"

    def _rooted(self, features: Tensor) -> Tensor:
        return features.sign() * features.abs().sqrt() if self.kind == "power" else features


class TransformedBackbone(nn.Module):
    """A backbone whose features are transformed: what a head that was trained on transformed features belongs to."""

    def __init__(self, backbone: nn.Module, transform: FeatureTransform) -> None:
        super().__init__()
        self.backbone = backbone
        self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.transform(self.backbone(images))
        return features


def transformed(backbone: nn.Module, transform: FeatureTransform) -> nn.Module:
    """The backbone with a transform behind it; itself where there is nothing to do, so that its keys stay."""
    return backbone if transform.kind == "raw" else TransformedBackbone(backbone, transform)
