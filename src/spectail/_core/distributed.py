"""Which ranks share a batch, and sums over them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Sync: TypeAlias = bool | str | dist.ProcessGroup


class _Here:
    alone = False


@contextlib.contextmanager
def working_alone() -> Iterator[None]:
    """What a rank does in here is its own business: with ``sync="auto"`` it neither tells the others nor waits."""
    before, _Here.alone = _Here.alone, True
    try:
        yield
    finally:
        _Here.alone = before


def find_group(sync: Sync) -> dist.ProcessGroup | None:
    """The ranks to synchronise with, or None to work alone."""
    if sync is False or (_Here.alone and isinstance(sync, str)):
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


def rank_and_world() -> tuple[int, int]:
    """Rank and number of ranks; (0, 1) alone."""
    running = dist.is_available() and dist.is_initialized() and not _Here.alone
    return (dist.get_rank(), dist.get_world_size()) if running else (0, 1)


def summed(*tensors: Tensor) -> list[Tensor]:
    """Each added up over all ranks, in one exchange, as new tensors without gradient; alone the tensors themselves."""
    group = find_group("auto")
    if group is None:
        return list(tensors)
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def check_sync(sync: Sync) -> Sync:
    if sync != "auto" if isinstance(sync, str) else not (isinstance(sync, bool) or hasattr(sync, "size")):
        raise ValueError(f"sync must be 'auto', True, False or a process group; got {sync!r}.")
    return sync
