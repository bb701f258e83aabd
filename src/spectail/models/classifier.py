"""Classifier: a backbone that gives features and a head that gives logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Classifier(nn.Module):
    """``model(images)`` gives logits, ``model(images, features=True)`` features and logits."""

    tuned: frozenset[str] | None = None
    """Names of the parameters and buffers of the backbone that training may move; None for all."""
    base: str | None = None
    """Digest of the weights that it may not move, as they were before anything was added."""

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
        ``drift`` asks for that. Of a backbone that is tuned in part, the rest is frozen always."""
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(not frozen and (self.tuned is None or name in self.tuned))
        self._still = (frozen and not drift) or self.tuned == frozenset()
        self.train(self.training)

    def train(self, mode: bool = True) -> Classifier:
        super().train(mode)
        if getattr(self, "_still", False):
            self.backbone.eval()
        elif self.tuned is not None:
            for name, module in self.backbone.named_modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm) and f"{name}.running_mean" not in self.tuned:
                    module.eval()
        return self
