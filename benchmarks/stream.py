"""Simulated training: long-tailed labels, classes in families, logits that sharpen and lose their bias to the head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def exponential_counts(num_classes: int, largest: int = 500, imbalance: float = 100.0) -> list[int]:
    return [max(1, int(largest * imbalance ** (-c / (num_classes - 1)))) for c in range(num_classes)]


def simulate(
    num_classes: int, batch: int, steps: int, seed: int = 0, start: float = 0.0, end: float = 1.0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of (logits, labels) as training goes from ``start`` (0 = untrained) to ``end`` (1 = fitted)."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.tensor(exponential_counts(num_classes), dtype=torch.float64)
    prior = counts / counts.sum()
    width = 64
    family = torch.randn(max(4, num_classes // 10), width, generator=random)
    means = family[torch.randint(len(family), (num_classes,), generator=random)] * 0.8
    means = torch.nn.functional.normalize(means + torch.randn(num_classes, width, generator=random) * 0.6)
    for step in range(steps):
        progress = start + (end - start) * step / max(steps - 1, 1)
        labels = torch.multinomial(prior, batch, replacement=True, generator=random)
        features = means[labels] + torch.randn(batch, width, generator=random) * 0.12
        logits = features @ means.T * (1 + 18 * progress) + (1 - 0.5 * progress) * prior.log().float()
        yield logits, labels
