"""How much of a batch enters the history."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .batch_confusion import BatchConfusion


class Rates(NamedTuple):
    rate: Tensor | float
    """The share of the batch's estimate in the new one, for all classes or by class."""
    enters: Tensor
    """That times Lambda over the class's mass in the batch: by entry, or by class if there are ranks."""
    learned: Tensor
    """By entry, the part of it that carries gradient."""


def rates(
    batch: BatchConfusion,
    weights: Tensor,
    beta: float,
    known: Tensor | None,
    group: dist.ProcessGroup | None,
    fixed: bool,
) -> Rates:
    """``known``: where there is a history already; None if an empty one counts as one."""
    mass = batch.mass
    if known is None and group is None and batch.items.whole and not fixed:  # the same in few and cheap calls
        label = batch.items.label.numpy()
        by_entry = weights.numpy().take(label)
        by_entry *= 1 - beta
        by_entry /= mass.numpy().take(label)
        enters = torch.from_numpy(by_entry)
        return Rates(1 - beta, enters, enters)
    rate: Tensor | float = 1 - beta
    enters = learned = torch.div(weights, mass.clamp_min(1))
    if known is None:
        enters.mul_(rate)
    else:
        rate = (1 - beta * known.to(mass.dtype)).expand_as(weights)
        enters = enters * rate
        learned = enters * known
    if group is None:
        by_entry_enters = batch.spread(enters)
        return Rates(rate, by_entry_enters, by_entry_enters if learned is enters else batch.spread(learned))
    # DDP averages over ranks what must be added up; and nothing is learned of a class that was left out
    return Rates(rate, enters, batch.spread(learned * dist.get_world_size(group) * (mass > 0)))


def kept_share(rate: Tensor | float, mass: Tensor) -> Tensor:
    """With class averaging, the share of each column that stays: 1 - rate * min(m_j, 1)."""
    present = mass.clamp_max(1)
    return 1 - rate * present if isinstance(rate, Tensor) else torch.rsub(present, 1, alpha=rate)
