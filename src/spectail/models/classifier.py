"""Classifier: a backbone that gives features and a head that gives logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Classifier(nn.Module):
    """``model(images)`` gives logits, ``model(images, features=True)`` features and logits."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor, *, features: bool = False) -> Any:
        vectors = self.backbone(images)
        logits = self.head(vectors)
        return (vectors, logits) if features else logits

    def freeze_backbone(self, frozen: bool = True, *, drift: bool = False) -> None:
        """Train the head only. A frozen backbone also stays in evaluation mode, so its statistics do not drift, unless
        ``drift`` asks for that."""
        self.backbone.requires_grad_(not frozen)
        self._still = frozen and not drift
        self.train(self.training)

    def train(self, mode: bool = True) -> Classifier:
        super().train(mode)
        if getattr(self, "_still", False):
            self.backbone.eval()
        return self
