"""An average of the weights."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..models.classifier import Classifier


class WeightAverage(nn.Module):
    """The exponential average of a model's weights and buffers, with the state of torch's AveragedModel.

    That one asks its own counter at every step whether there is anything to average with yet, which on an accelerator
    means to wait. Here the host knows.
    """

    n_averaged: Tensor

    def __init__(self, model: Classifier, device: torch.device, decay: float) -> None:
        super().__init__()
        self.module = deepcopy(model).to(device)
        self.register_buffer("n_averaged", torch.tensor(0, device=device))
        self._begun = False
        self._rule = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        groups: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        for mine, new in zip(_values(self.module), _values(model), strict=True):
            groups.setdefault(mine.dtype, []).append((mine, new))
        for pairs in groups.values():
            averages, values = map(list, zip(*pairs, strict=True))
            if self._begun:
                self._rule(averages, values, self.n_averaged)
            else:
                torch._foreach_copy_(averages, values)
        self._begun = True
        self.n_averaged += 1

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self._begun = bool(self.n_averaged > 0)


def _values(module: nn.Module) -> chain[Tensor]:
    return chain(module.parameters(), module.buffers())
