"""A batch on its way into the history: how much of it enters, and how much of that is learned from."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .batch_confusion import BatchConfusion
from .ranks import Ranks


class Rates(NamedTuple):
    rate: Tensor | float
    """The share of the batch's estimate in the new one, for all classes or by class."""
    enters: Tensor
    """That times the class's weight over its mass in the batch: by entry, or by class if there are ranks."""
    learned: Tensor
    """By entry, the part of it that carries gradient."""


class Step(NamedTuple):
    """A batch, and what decides how it enters the history."""

    batch: BatchConfusion
    beta: float
    by_class: bool
    seeds: bool
    """Whether the first estimate of a column seeds it, without gradient."""
    ranks: Ranks
    group: dist.ProcessGroup | None
    commit: bool
    """Whether the history moves."""
    fixed: bool

    @property
    def filled(self) -> Tensor | None:
        """On the fixed path, where nobody looks, whether there is a label: else the history must not decay."""
        return self.batch.mass.any() if self.fixed else None

    def rates(self, weights: Tensor, seen: Tensor, steps: Tensor) -> Rates:
        """With these weights of the classes, and a history that knows of these classes and of so many steps."""
        batch, mass = self.batch, self.batch.mass
        if not self.seeds and self.group is None and batch.items.whole and not self.fixed:  # in few and cheap calls
            label = batch.items.label.numpy()
            by_entry = weights.numpy().take(label)
            by_entry *= 1 - self.beta
            by_entry /= mass.numpy().take(label)
            enters = torch.from_numpy(by_entry)
            return Rates(1 - self.beta, enters, enters)
        rate: Tensor | float = 1 - self.beta
        enters = learned = torch.div(weights, mass.clamp_min(1))
        if self.seeds:
            known = seen if self.by_class else steps > 0
            rate = (1 - self.beta * known.to(mass.dtype)).expand_as(weights)
            enters = enters * rate
            learned = enters * known
        else:
            enters.mul_(rate)
        if self.group is None:
            by_entry_enters = batch.spread(enters)
            return Rates(rate, by_entry_enters, by_entry_enters if learned is enters else batch.spread(learned))
        # DDP averages over ranks what must be added up; and nothing is learned of a class that was left out
        return Rates(rate, enters, batch.spread(learned * dist.get_world_size(self.group) * (mass > 0)))

    def kept(self, rate: Tensor | float, filled: Tensor | None) -> Tensor | float:
        """The share of the history that stays: by class, 1 - rate * min(m_j, 1), or of all of it."""
        mass = self.batch.mass
        if not self.by_class:
            return self.beta if filled is None else self.beta ** filled.to(mass.dtype)
        present = mass.clamp_max(1)
        return 1 - rate * present if isinstance(rate, Tensor) else torch.rsub(present, 1, alpha=rate)
