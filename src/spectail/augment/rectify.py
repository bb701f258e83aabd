"""Labels of pasted images, rectified by what the mix looks like (ConCutMix)."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core import waits


@torch.no_grad()
def rectify(labels: Tensor, distances: Tensor, counts: Tensor, omega: float, top: int) -> Tensor:
    """(N, K) labels q' = w s + (1 - w) q.

    s is the inverse distance to the ``top`` nearest classes, scaled to sum to 1; w = omega log(sum_c n_c q_c) /
    sum_c log n_c is larger for mixes of frequent classes.

    Args:
        labels: (N, K) soft labels q.
        distances: (N, K) from each mix to the embedding of each class.
        counts: (K,) training images per class.
        omega: strength; the authors use (K / 5) / 255, which makes w about a thousandth.
        top: classes kept; ties at the last place stay.

    Example:
        >>> q = torch.tensor([[0.6, 0.0, 0.0, 0.4]])
        >>> rectify(q, torch.tensor([[1.0, 2.0, 4.0, 5.0]]), torch.tensor([100, 10, 5, 1]), 1.0, 2)
        tensor([[0.6321, 0.1605, 0.0000, 0.2074]])
    """
    if labels.ndim != 2 or not labels.is_floating_point():
        raise TypeError(
            f"rectify needs soft labels, (N, K) of a floating point type; got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; take one_hot(labels, K).float(), or dense(K) of a MixedTarget."
        )
    nearness = 1 / distances.clamp_min(1e-6)
    least = nearness.topk(min(top, nearness.shape[1]), dim=1).values[:, -1:]
    nearness = nearness.where(nearness >= least, 0)
    nearness = nearness / nearness.sum(1, keepdim=True)
    counts = waits.sent(counts, labels.device).to(labels)
    total = counts.clamp_min(1).log().sum().clamp_min(torch.finfo(labels.dtype).tiny)  # 0 if all classes have one image
    weight = (omega * (labels @ counts).clamp_min(1).log() / total).clamp(0, 1)[:, None]
    return weight * nearness.to(labels) + (1 - weight) * labels
