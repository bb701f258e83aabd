"""A result store in one SQLite file, for the processes of one machine."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .record import (
    DEATHS,
    HEADER,
    PATIENCE,
    PIECE,
    SCHEMA,
    Record,
    StoreError,
    as_json,
    check_lease,
    died,
    missing,
    newer,
    on_network,
)

_NO_STORE = "{} is not a result store (not an SQLite file); choose another file, or move this one away."
_TABLES = """
CREATE TABLE spectail_store (version INTEGER NOT NULL);
CREATE TABLE cells (
  key TEXT PRIMARY KEY, about TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('waiting', 'running', 'done', 'failed')),
  worker TEXT, attempts INTEGER NOT NULL, deaths INTEGER NOT NULL,
  lease REAL, started REAL, finished REAL, results TEXT, folder TEXT, error TEXT
)"""
_TAKE = """
INSERT INTO cells (key, about, status, worker, attempts, deaths, lease, started)
VALUES (:key, :about, 'running', :worker, 1, 0, :lease, :now)
ON CONFLICT (key) DO UPDATE SET
  about = :about, status = 'running', worker = :worker, attempts = attempts + 1, deaths = :deaths,
  lease = :lease, started = :now, finished = NULL, results = NULL, folder = NULL, error = NULL"""
_MINE = "WHERE key = :key AND worker = :worker AND status = 'running'"
_COLUMNS = "key, about, status, worker, attempts, started, finished, results, folder, error, lease"


class SqliteStore:
    """A result store in one SQLite file, for the processes of one machine; see :class:`Store`.

    A change is one transaction that takes the write lock before it looks, so two workers never see the same cell free.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._create = create
        self._lock = threading.RLock()
        if path.is_dir():
            raise StoreError(f"a result store is a file, and {path} is a folder; give a file in it.")
        if not path.exists():
            if not create:
                raise missing(path)
            path.parent.mkdir(parents=True, exist_ok=True)
        elif _start(path) not in (b"", HEADER):  # SQLite takes very short files for empty ones
            raise StoreError(_NO_STORE.format(path))
        with self._said():
            self._connection = self._connect()
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def claim(self, key: str, about: dict[str, Any], worker: str, *, lease: float = 120.0, retry: bool = False) -> bool:
        check_lease(lease)
        text = as_json(about, "description", key)
        with self._change() as run:
            now = time.time()
            row = run("SELECT status, worker, deaths, lease FROM cells WHERE key = :key", key=key).fetchone()
            status, owner, deaths, until = row or ("waiting", None, 0, 0.0)
            if status == "done" or (status == "failed" and not retry) or (status == "running" and until > now):
                return False
            if status == "running":
                deaths += 1
                if deaths >= DEATHS:
                    run(
                        "UPDATE cells SET status = 'failed', deaths = :deaths, finished = :now, error = :error "
                        "WHERE key = :key",
                        key=key, deaths=deaths, now=now, error=died(owner),
                    )  # fmt: skip
                    return False
            elif status == "failed":
                deaths = 0
            run(_TAKE, key=key, about=text, worker=worker, deaths=deaths, lease=now + lease, now=now)
            return True

    def renew(self, key: str, worker: str, *, lease: float = 120.0) -> bool:
        check_lease(lease)
        return self._mine("lease = :lease", key, worker, lease=time.time() + lease)

    def finish(self, key: str, worker: str, results: dict[str, Any], folder: str) -> bool:
        text = as_json(results, "results", key)
        return self._mine(
            "status = 'done', results = :results, folder = :folder, finished = :now",
            key, worker, results=text, folder=_utf8(folder), now=time.time(),
        )  # fmt: skip

    def fail(self, key: str, worker: str, error: str) -> bool:
        return self._mine(
            "status = 'failed', error = :error, finished = :now", key, worker, error=_utf8(error), now=time.time()
        )

    def release(self, key: str, worker: str) -> bool:
        return self._mine("status = 'waiting', worker = NULL, started = NULL", key, worker)

    def records(self, keys: Iterable[str] | None = None) -> dict[str, Record]:
        rows: list[tuple[Any, ...]] = []
        with self._lock, self._said():
            if keys is None:
                rows = self._connection.execute(f"SELECT {_COLUMNS} FROM cells ORDER BY key").fetchall()
            for piece in _pieces(keys or ()):
                asked = f"SELECT {_COLUMNS} FROM cells WHERE key IN ({','.join('?' * len(piece))}) ORDER BY key"
                rows += self._connection.execute(asked, piece).fetchall()
            now = time.time()
            return {row[0]: _record(row, now) for row in rows}

    def forget(self, keys: Iterable[str]) -> int:
        with self._change() as run:
            text = "DELETE FROM cells WHERE key = :key AND NOT (status = 'running' AND lease > :now)"
            now = time.time()
            return sum(run(text, key=key, now=now).rowcount for key in list(keys))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _mine(self, change: str, key: str, worker: str, **values: Any) -> bool:
        with self._change() as run:
            return run(f"UPDATE cells SET {change} {_MINE}", key=key, worker=worker, **values).rowcount == 1

    @contextmanager
    def _change(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """A transaction that holds the write lock from its start; all or nothing."""

        def run(text: str, **values: Any) -> sqlite3.Cursor:
            return self._connection.execute(text, values)

        with self._lock, self._said():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield run
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk has already rolled back
                    self._connection.execute("ROLLBACK")
                raise

    def _connect(self) -> sqlite3.Connection:
        address = "file:" + quote(os.fspath(self.path.absolute()))
        mode = "mode=rwc"
        if self.path.exists() and not (os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)):
            # somebody else's results may be read; without a write-ahead log beside it, the file is all there is
            log = self.path.with_name(self.path.name + "-wal")
            mode = "mode=ro" if log.exists() else "mode=ro&immutable=1"
        return sqlite3.connect(
            f"{address}?{mode}", uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )

    def _prepare(self) -> None:
        run = self._connection.execute
        if not self._tables():
            if not self._create:
                raise missing(self.path)  # an empty file
            if not on_network(self.path.parent):  # readers and the writer then do not wait for each other
                with suppress(sqlite3.OperationalError):  # another process is just doing it; and it works without
                    run("PRAGMA journal_mode = WAL")
            run("BEGIN IMMEDIATE")
            if not self._tables():  # another process may have been first
                for text in _TABLES.split(";"):
                    run(text)
                run("INSERT INTO spectail_store VALUES (?)", (SCHEMA,))
            run("COMMIT")
        if "spectail_store" not in self._tables():
            raise StoreError(f"{self.path} is an SQLite file but not a result store; choose another file.")
        found = run("SELECT max(version) FROM spectail_store").fetchone()[0]
        if not isinstance(found, int) or found > SCHEMA:
            raise newer(self.path, found)

    def _tables(self) -> set[str]:
        return {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Errors of SQLite as one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(_explain(self.path, error)) from error


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(HEADER))


def _explain(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte; the rest is detail
    if code == sqlite3.SQLITE_NOTADB:
        return _NO_STORE.format(path)
    if code == sqlite3.SQLITE_CORRUPT:
        return (
            f"the result store {path} is damaged ({error}); move it away and run again (finished runs are still in "
            "their folders), or save what is left with the sqlite3 program's .recover."
        )
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return (
            f"the result store {path} was locked by another process for {PATIENCE:.0f} seconds; end what holds it "
            "open, or use journal:FILE if several machines share the folder."
        )
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        return f"the result store {path} cannot be written ({error}); free some space there and repeat the command."
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return f"the result store {path} cannot be opened for writing ({error}); check its permissions."
    return f"the result store {path} cannot be used ({error}); close it everywhere else and try again."


def _record(row: tuple[Any, ...], now: float) -> Record:
    key, about, status, worker, attempts, started, finished, results, folder, error, lease = row
    if status == "running" and lease <= now:
        status = "lost"
    known = None if results is None else json.loads(results)
    return Record(key, json.loads(about), status, worker, attempts, started, finished, known, folder, error)


def _utf8(text: str) -> str:
    """Names of files, and errors that quote them, need not be UTF-8; SQLite's texts are."""
    return text.encode("utf-8", "backslashreplace").decode()


def _pieces(keys: Iterable[str]) -> Iterator[list[str]]:
    wanted = list(dict.fromkeys(keys))
    for start in range(0, len(wanted), PIECE):
        yield wanted[start : start + PIECE]
