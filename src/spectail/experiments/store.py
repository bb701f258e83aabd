"""Where finished cells are kept, and who works on which: a result store for one machine, or for several.

A *cell* is one training run of a grid. Its key is a hash of everything that may change its numbers, so a store never
mixes runs that cannot be compared. A worker claims a key for as long as its lease lasts and renews the lease while it
works; a worker that dies stops renewing, and after the lease anybody may take its cell over.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> store = open_store(f"{folder.name}/results.db")
>>> store.claim("a1", {"method": "ce", "seed": 0}, "worker 1"), store.claim("a1", {}, "worker 2")
(True, False)
>>> store.finish("a1", "worker 1", {"overall": 41.5}, "runs/a1")
True
>>> store.records()["a1"].status, store.records()["a1"].results
('done', {'overall': 41.5})
>>> store.close(); folder.cleanup()
"""

from __future__ import annotations

from pathlib import Path

from .record import Record, Store, StoreError
from .sqlite_store import SqliteStore

__all__ = ["Record", "SqliteStore", "Store", "StoreError", "open_store"]


def open_store(where: str | Path, *, create: bool = True) -> Store:
    """The store at a path, ``journal:FILE``, or a database URL.

    ======================================  =============================================================
    ``results.db``                          SQLite file; many processes of one machine
    ``journal:/shared/results.log``         Optuna journal file; several machines with a common folder
    ``postgresql://...``, ``mysql://...``   Optuna tables in a database server; several machines
    ======================================  =============================================================

    Args:
        where: path or address.
        create: make the store when there is none; otherwise a missing one is an error and nothing is written.
    """
    address = str(where)
    if address.startswith("journal:") or "://" in address:
        from .shared_store import SharedStore  # noqa: PLC0415  (needs Optuna)

        return SharedStore(address, create=create)
    return SqliteStore(Path(where), create=create)
