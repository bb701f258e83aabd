"""A small problem and the plain loop that every framework must equal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectail import CARLoss

COUNTS = [60, 30, 14, 7, 4, 2]
CLASSES, FEATURES, MICRO, STEPS = len(COUNTS), 5, 8, 10  # MICRO: samples of a micro-batch, over all ranks
LR, MOMENTUM = 0.1, 0.9
LIMIT = {torch.float64: 1e-6, torch.float32: 1e-5}


def samples(
    count: int, dtype: torch.dtype = torch.float64, shape: tuple[int, ...] = (FEATURES,)
) -> tuple[Tensor, Tensor]:
    """Inputs and long-tailed labels."""
    random = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, *shape, generator=random, dtype=torch.float64)
    labels = torch.multinomial(torch.tensor(COUNTS, dtype=torch.float64), count, True, generator=random)
    return inputs.to(dtype), labels


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), nn.Linear(12, CLASSES)).to(dtype)


def criterion(preset: str = "paper") -> CARLoss:
    """alpha is large, so that a wrong weight of the regulariser cannot hide."""
    return CARLoss.classwise(COUNTS) if preset == "classwise" else CARLoss(COUNTS, alpha=2.0)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), LR, MOMENTUM)


def plain_loop(model: nn.Module, loss: CARLoss, groups: list[list[tuple[Tensor, Tensor]]], logits=lambda out: out):
    """One optimizer step per group of micro-batches, each weighted with its share of the group's samples."""
    optimizer = sgd(model)
    for group in groups:
        total = sum(len(labels) for _, labels in group)
        optimizer.zero_grad()
        for inputs, labels in group:
            (loss(logits(model(inputs)), labels) * len(labels) / total).backward()
        optimizer.step()
    return model


def micro_batches(inputs: Tensor, labels: Tensor, parts: int, size: int = MICRO) -> list[list[tuple[Tensor, Tensor]]]:
    """An epoch in order: micro-batches of ``size``, ``parts`` of them to a step; the last ones may be smaller."""
    pairs = list(zip(inputs.split(size), labels.split(size), strict=True))
    return [pairs[start : start + parts] for start in range(0, len(pairs), parts)]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


def gap(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of two models' parameters."""
    return float((weights(a) - weights(b)).abs().max())


def same_state(a: nn.Module, b: nn.Module) -> bool:
    """Bit for bit."""
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
