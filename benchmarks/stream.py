"""Simulated training: long-tailed labels and the logits that a network would give them. Two streams, so that no figure
holds for one kind of data only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Batches = Iterator[tuple[Tensor, Tensor]]


def exponential_counts(num_classes: int, largest: int = 500, imbalance: float = 100.0, least: int = 1) -> list[int]:
    return [max(least, int(largest * imbalance ** (-c / (num_classes - 1)))) for c in range(num_classes)]


def simulate(num_classes: int, batch: int, steps: int, seed: int = 0, start: float = 0.0, end: float = 1.0) -> Batches:
    """Classes in families; logits sharpen and lose their bias to the head from ``start`` (0 = untrained) to ``end``
    (1 = fitted)."""
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


def steep_counts(num_classes: int) -> list[int]:
    return exponential_counts(num_classes, 1000, 500.0, least=2)


def unsettled(num_classes: int, batch: int, steps: int, seed: int = 0) -> Batches:
    """A steeper tail, classes without families, and a network that stays far from fitted: errors are spread widely,
    and the leading singular values lie close together."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.tensor(steep_counts(num_classes), dtype=torch.float64)
    prior = counts / counts.sum()
    weight = torch.randn(num_classes, 64, generator=random)
    for _ in range(steps):
        labels = torch.multinomial(prior, batch, replacement=True, generator=random)
        features = 0.35 * weight[labels] + torch.randn(batch, 64, generator=random)
        yield 0.35 * features @ weight.T + 0.3 * prior.log().float(), labels


STREAMS: dict[str, tuple[Callable[[int], list[int]], Callable[[int, int, int], Batches]]] = {
    "families": (exponential_counts, simulate),
    "unsettled": (steep_counts, unsettled),
}
