"""Balanced supervised contrastive loss (Zhu et al. 2022, BCL), the contrastive half of ConCutMix."""

from __future__ import annotations

import torch
from torch import Tensor

from ..targets import class_indices


def balanced_contrastive(views: Tensor, labels: Tensor, embeddings: Tensor, temperature: float = 0.1) -> Tensor:
    """Every class weighs the same in the denominator, and has an embedding among the candidates, so no class is absent.

    For an anchor i: log D_i - mean over its positives p of z_i z_p / T, with D_i = sum over candidates k != i of
    exp(z_i z_k / T) / (candidates of k's class, the anchor not counted).

    Args:
        views: (M, d) unit vectors of all views, the anchors.
        labels: (M,) their classes.
        embeddings: (K, d) unit vectors of the classes.

    Example:
        >>> views = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.0, 1.0]])
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> balanced_contrastive(views, torch.tensor([0, 1, 0, 1]), embeddings, 0.5)
        tensor(0.4902)
    """
    labels = class_indices(labels, "balanced_contrastive")
    with torch.autocast(views.device.type, enabled=False):  # sums of exponentials need the digits
        classes = torch.cat([labels, torch.arange(len(embeddings), device=labels.device)])
        similarity = views @ torch.cat([views, embeddings]).T / temperature
        itself = torch.zeros_like(similarity, dtype=torch.bool)
        itself.fill_diagonal_(True)
        same = (labels[:, None] == classes) & ~itself
        sizes = classes.new_zeros(len(embeddings))  # bincount would wait for the device
        count = sizes.index_add_(0, classes, torch.ones_like(classes))[classes]
        divisor = count[None] - (labels[:, None] == classes).long()  # the anchor itself is not a candidate
        weighted = similarity - divisor.clamp_min(1).to(similarity).log()
        denominator = weighted.masked_fill(itself, -torch.inf).logsumexp(1)
        positive = similarity.where(same, 0).sum(1) / same.sum(1)
        return (denominator - positive).mean()
