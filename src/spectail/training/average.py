"""An average of the weights."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..models.classifier import Classifier


class WeightAverage(nn.Module):
    """The average of a model's weights and buffers, exponential or, without a ``decay``, the plain mean (SWA), with the
    state of torch's AveragedModel.

    That one asks its own counter at every step whether there is anything to average with yet, which on an accelerator
    means to wait. Here the host knows.
    """

    n_averaged: Tensor

    def __init__(self, model: Classifier, device: torch.device, decay: float | None) -> None:
        super().__init__()
        self.module = deepcopy(model).to(device)
        self.register_buffer("n_averaged", torch.tensor(0, device=device))
        self._count = 0
        self._rule = _mean if decay is None else get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @property
    def begun(self) -> bool:
        """Whether there is anything in it yet."""
        return self._count > 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        groups: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        for mine, new in zip(_values(self.module), _values(model), strict=True):
            groups.setdefault(mine.dtype, []).append((mine, new))
        for pairs in groups.values():
            averages, values = map(list, zip(*pairs, strict=True))
            if self.begun:
                self._rule(averages, values, self._count)
            else:
                torch._foreach_copy_(averages, values)
        self._count += 1
        self.n_averaged += 1

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self._count = int(self.n_averaged)


def _mean(averages: list[Tensor], values: list[Tensor], count: int) -> None:
    """One more value in a mean of so many; whole numbers, as batch norm counts its batches, are the latest."""
    if averages[0].is_floating_point():
        torch._foreach_lerp_(averages, values, 1 / (count + 1))
    else:
        torch._foreach_copy_(averages, values)


def _values(module: nn.Module) -> chain[Tensor]:
    """What may move."""
    return chain((value for value in module.parameters() if value.requires_grad), module.buffers())
