"""What the ranks of a job tell each other about a batch: label mass per class, and the columns of those classes."""

from __future__ import annotations

from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Sync: TypeAlias = bool | str | dist.ProcessGroup


def find_group(sync: Sync) -> dist.ProcessGroup | None:
    """The ranks to synchronise with, or None to work alone."""
    if sync is False:
        return None
    running = dist.is_available() and dist.is_initialized()
    if sync is True and not running:
        raise RuntimeError(
            "sync=True needs torch.distributed: start the script with torchrun and call "
            "torch.distributed.init_process_group(), or pass sync='auto'."
        )
    if isinstance(sync, (bool, str)):
        group = dist.group.WORLD if running else None
    else:
        group = sync
    return group if group is not None and dist.get_world_size(group) > 1 else None


def place() -> tuple[int, int]:
    """Rank and number of ranks; (0, 1) alone."""
    running = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if running else (0, 1)


def check_sync(sync: Sync) -> Sync:
    if isinstance(sync, str) and sync != "auto":
        raise ValueError(f"sync must be 'auto', True, False or a process group; got {sync!r}.")
    return sync


def exchange_mass(
    mass: Tensor, samples: Tensor, problem: Exception | None, group: dist.ProcessGroup
) -> tuple[Tensor, float]:
    """Label mass per class over all ranks, and this rank's share of the samples times the number of ranks.

    If any rank refuses its batch, every rank raises: no rank waits for one that has stopped.
    """
    packet = torch.cat(
        [mass.double(), samples.double().reshape(1), mass.new_tensor([float(problem is not None)]).double()]
    )
    dist.all_reduce(packet, group=group)
    if problem is not None:
        raise problem
    if float(packet[-1]) > 0:
        raise RuntimeError(
            "another rank refused its batch and says why in its own error; "
            "the confusion history was left as it was on every rank."
        )
    everyone = float(packet[-2])
    if not everyone:
        raise ValueError("the batch is empty on every rank: CAR needs at least one sample with a label.")
    return packet[:-2].to(mass.dtype), float(samples) * dist.get_world_size(group) / everyone


def sum_columns(columns: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Columns of the classes present, summed over ranks: for hard labels at most (global batch) x K numbers."""
    dist.all_reduce(columns, group=group)
    return columns
