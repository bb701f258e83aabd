"""What the ranks of a job tell each other about a batch: label mass per class, and the columns of those classes."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..targets import MixedTarget, Target
from .batch_confusion import BatchConfusion
from .dtypes import widest


class Counted(NamedTuple):
    """Label mass per class over all ranks, and this rank's share of the samples times the number of ranks."""

    mass: Tensor
    share: Tensor | float


def exchange_mass(
    mass: Tensor, samples: Tensor, problem: Exception | None, group: dist.ProcessGroup, wait: bool = True
) -> Counted:
    """Add up label mass and samples over the ranks.

    If any rank refuses its batch, every rank raises: no rank waits for one that has stopped. Without ``wait`` nobody
    looks at the numbers. A batch that some rank has refused then counts as empty for the others, and the caller raises
    ``problem`` when the ranks have nothing more to tell each other about this batch.
    """
    exact = widest(mass.device)
    refused = mass.new_full((1,), float(problem is not None), dtype=exact)
    packet = torch.cat([mass.to(exact), samples.reshape(1).to(exact), refused])
    dist.all_reduce(packet, group=group)
    size = dist.get_world_size(group)
    if not wait:
        everyone = packet[-2].clamp_min(1)
        return Counted((packet[:-2] * (packet[-1] == 0)).to(mass.dtype), (samples * size / everyone).to(mass.dtype))
    if problem is not None:
        raise problem
    if float(packet[-1]) > 0:
        raise RuntimeError(
            "another rank refused its batch and says why in its own error; "
            "the confusion history was left as it was on every rank."
        )
    everyone_counted = float(packet[-2]) or 1.0  # without any label the share is 0, as for one process
    return Counted(packet[:-2].to(mass.dtype), float(samples) * size / everyone_counted)


def sum_columns(columns: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Columns of the classes present, summed over ranks: for hard labels at most (global batch) x K numbers."""
    dist.all_reduce(columns, group=group)
    return columns


class Slots:
    """A table of columns whose size does not depend on which classes a batch has, so that no rank waits to see.

    The ranks agree on the size once. A later batch may be smaller. One that brings more classes than there are slots
    leaves the last ones out, on every rank alike.
    """

    def __init__(self, labels: int, num_classes: int, like: Tensor, group: dist.ProcessGroup) -> None:
        most = like.new_full((1,), float(labels))
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        self.agreed = int(most)
        self.count = min(num_classes, self.agreed * dist.get_world_size(group))
        self.num_classes, self.brought = num_classes, labels

    def check(self) -> None:
        """Warn if this rank's batch may have more classes than there are slots."""
        if self.brought > self.agreed and self.count < self.num_classes:
            warnings.warn(
                f"this batch has {self.brought} labels and the first one had {self.agreed} on the rank with most: "
                f"classes beyond {self.count} are left out of CAR for this step. Begin with the largest batch.",
                stacklevel=6,
            )

    def fitting(self, mass: Tensor) -> Tensor:
        """The label mass of the classes that have a slot."""
        if self.count == self.num_classes:
            return mass
        return mass.where((mass > 0).cumsum(0) <= self.count, 0)

    def of(self, mass: Tensor) -> tuple[Tensor, Tensor]:
        """The slot of each class, ``count`` for one that has none; and the class of each slot."""
        present = mass > 0
        slot = present.cumsum(0).sub_(1).where(present, self.count).clamp_max_(self.count)
        classes = torch.arange(self.num_classes, device=mass.device)
        return slot, slot.new_zeros(self.count + 1).scatter_(0, slot, classes)[: self.count]


class Ranks:
    """What CAR has to do with the other ranks; every method but the constructor is called on all of them at once."""

    def __init__(self, num_classes: int, ignore_index: int, whole_columns: bool = True) -> None:
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.whole_columns = whole_columns
        """Whether they tell each other whole columns, or the sum of each class's column."""
        self._group: dist.ProcessGroup | None = None
        self._slots: Slots | None = None

    def agreed(self, group: dist.ProcessGroup) -> bool:
        """Whether these ranks have made a first call together."""
        return self._group is group

    def exchange(
        self,
        mass: Tensor,
        target: Target,
        problem: Exception | None,
        group: dist.ProcessGroup,
        fixed: bool,
        wait: bool,
    ) -> Counted:
        """Tell the other ranks about this batch, and hear of theirs. On the fixed path only the first call waits."""
        if torch.compiler.is_compiling():
            raise RuntimeError("CAR cannot synchronise ranks inside torch.compile: compile the model, not the loss.")
        samples = _count(target, self.ignore_index) if problem is None else mass[0]
        counted = exchange_mass(mass, samples, problem, group, wait)
        if not fixed:
            return counted
        known, self._group = self.agreed(group), group
        if not self.whole_columns:
            if problem is not None:  # the others do not look: take part in what they do next
                sum_columns(torch.zeros_like(mass), group)
            return counted
        labels = _most_labels(target, self.num_classes) if problem is None else 0
        if self._slots is None or not known:
            self._slots = Slots(labels, self.num_classes, mass, group)
        if problem is not None:
            sum_columns(mass.new_zeros(self._slots.count, self.num_classes), group)
        self._slots.brought = labels
        return counted._replace(mass=self._slots.fitting(counted.mass))

    def columns(self, batch: BatchConfusion, group: dist.ProcessGroup, fixed: bool) -> tuple[Tensor, Tensor]:
        """Classes of the global batch, and what its samples add up to in the column of each."""
        if fixed:
            assert self._slots is not None
            slot, classes = self._slots.of(batch.mass)
        else:
            classes = batch.mass.nonzero().flatten()
            slot = torch.full_like(batch.mass, len(classes), dtype=torch.int64)
            slot.index_copy_(0, classes, torch.arange(len(classes), device=slot.device))
        columns = batch.scores.new_zeros(len(classes) + 1, self.num_classes)  # the last one is of ignored samples
        batch.add_to(columns, slot.index_select(0, batch.items.label), batch.items.mass)
        summed = sum_columns(columns[:-1], group)
        if fixed and self._slots is not None:
            self._slots.check()  # when the ranks have nothing more to tell each other: a warning may be an error
        return classes, summed

    def errors(self, batch: BatchConfusion, group: dist.ProcessGroup) -> Tensor:
        """What the samples of the global batch add up to in the sum of each class's column, (K,)."""
        sums = torch.zeros_like(batch.mass)
        sums = sum_columns(sums.index_add_(0, batch.items.label, batch.errors() * batch.items.mass), group)
        return sums.where(batch.mass > 0, 0)  # of a batch that a rank has refused, nothing enters

    def __deepcopy__(self, memo: object) -> Ranks:
        return Ranks(self.num_classes, self.ignore_index, self.whole_columns)

    def __getstate__(self) -> dict[str, object]:  # a process group cannot be pickled, nor outlive its job
        return self.__dict__ | {"_group": None, "_slots": None}


def _count(target: Target, ignore_index: int) -> Tensor:
    """Samples with a label."""
    if isinstance(target, Tensor) and target.ndim == 2:
        return torch.full((), target.shape[0], device=target.device)
    if isinstance(target, MixedTarget):
        return ((target.a != ignore_index) & (target.b != ignore_index)).sum()
    return (target != ignore_index).sum()


def _most_labels(target: Target, num_classes: int) -> int:
    """Classes that a batch of this shape can have; twice its size, because the next one may be mixed."""
    return num_classes if isinstance(target, Tensor) and target.ndim == 2 else 2 * len(target)
