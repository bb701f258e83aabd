"""What a result store keeps of a run, what every store can do, and the sentences that they share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SCHEMA = 1
"""Version of what is written; a reader refuses a higher one instead of misreading it."""
DEATHS = 3
"""So many workers may die on a cell before it counts as failed: it would kill the next one too."""
PATIENCE = 60.0
"""Seconds to wait for other processes that write."""
PIECE = 500
"""Keys asked for at once; SQLite limits the number of variables."""
HEADER = b"SQLite format 3\0"
NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse",
    "ceph",
    "glusterfs",
    "afs",
    "9p",
    "pvfs",
    "orangefs",
)


class StoreError(ValueError):
    """A store that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Record:
    """One cell as the store knows it.

    Args:
        key: hash of configuration, data identity and code version.
        about: what the key stands for.
        status: ``"waiting"``, ``"running"``, ``"lost"`` (running, but its lease is over), ``"done"`` or ``"failed"``.
        worker: who works or worked on it; None while it waits.
        attempts: how often it was started.
        started, finished: seconds since 1970 of the last attempt.
        results, folder: of a cell that is done.
        error: of a cell that failed.
    """

    key: str
    about: dict[str, Any]
    status: str
    worker: str | None
    attempts: int
    started: float | None
    finished: float | None
    results: dict[str, Any] | None
    folder: str | None
    error: str | None


class Store(Protocol):
    """What a worker needs. Every method is safe among threads, processes and (shared stores) machines.

    A worker is its name, so names must differ: host and process id, say. Leases use wall-clock time, so the clocks of
    machines that share a store may differ by much less than a lease. Open a store in the process that uses it.
    """

    def claim(self, key: str, about: dict[str, Any], worker: str, *, lease: float = 120.0, retry: bool = False) -> bool:
        """True: the cell is this worker's. False: it is done, somebody's, or it failed and ``retry`` was not asked.

        A cell whose lease is over is taken over; if that would be the third worker it has killed, it becomes failed.
        """
        ...

    def renew(self, key: str, worker: str, *, lease: float = 120.0) -> bool:
        """Extend the lease from now. False: somebody took the cell over, so stop working on it."""
        ...

    def finish(self, key: str, worker: str, results: dict[str, Any], folder: str) -> bool:
        """Record results. False: the cell was no longer this worker's, and nothing was written."""
        ...

    def fail(self, key: str, worker: str, error: str) -> bool:
        """Record an error; False as in :meth:`finish`."""
        ...

    def release(self, key: str, worker: str) -> bool:
        """Give the cell back unfinished, for anybody to claim; False as in :meth:`finish`."""
        ...

    def records(self, keys: Iterable[str] | None = None) -> dict[str, Record]:
        """What is known of these keys (default: of all); a key never claimed is left out."""
        ...

    def forget(self, keys: Iterable[str]) -> int:
        """Remove the records of cells that nobody works on, and say how many."""
        ...

    def close(self) -> None: ...


def as_json(value: Any, name: str, key: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise StoreError(f"the {name} of cell {key} must be JSON ({error}); convert tensors and paths first.") from None


def check_lease(lease: float) -> None:
    if not lease > 0:
        raise StoreError(f"a lease must be a positive number of seconds, got {lease:g}.")


def died(worker: str | None) -> str:
    """Why a cell failed that no worker survived."""
    return (
        f"{DEATHS} workers died on it without a word (the last: {worker}), often for lack of memory; "
        "look at their output, then run it again as a retry."
    )


def last_line(error: str | None) -> str:
    """What of an error says why."""
    return ((error or "").strip() or "no reason given").splitlines()[-1]


def missing(where: object) -> FileNotFoundError:
    return FileNotFoundError(f"there is no result store at {where}; check the address, or run an experiment first.")


def newer(where: object, found: object) -> StoreError:
    return StoreError(
        f"the result store {where} was written by a newer version of spectail (format {found}, this one reads up to "
        f"{SCHEMA}); upgrade spectail, or choose another store."
    )


def on_network(folder: Path) -> bool:
    """Whether a folder is on a network file system, where a write-ahead log would not be safe (Linux only)."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    place = f"{folder.resolve()}/"
    best = max((m for m in mounts if place.startswith(m[1].rstrip("/") + "/")), key=lambda m: len(m[1]), default=None)
    return best is not None and best[2].startswith(NETWORK)
