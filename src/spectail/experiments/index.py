"""The index of a plan's runs: one SQLite file that one driver writes and anybody may read.

A run's folder is its record; the index answers what is done, what failed and why, without opening folders.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> with Index(f"{folder.name}/runs.sqlite", write=True) as index:
...     index.put(Record("a1", {"name": "ce", "code": "1"}, "done", results={"overall": 41.5}, folder="runs/a1"))
...     [(record.key, record.status, record.results) for record in index.records()]
[('a1', 'done', {'overall': 41.5})]
>>> folder.cleanup()
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from .._utils.owner import Owner

FORMAT = 3
"""Version of what is written; a higher one is refused instead of misread."""
TABLES = """
CREATE TABLE spectail_store (version INTEGER NOT NULL);
CREATE TABLE cells (key TEXT PRIMARY KEY, about TEXT NOT NULL, status TEXT NOT NULL, attempts INTEGER NOT NULL,
  started REAL, finished REAL, results TEXT, folder TEXT, error TEXT, digest TEXT)"""
FROM_FORMAT_1 = """
ALTER TABLE cells RENAME TO leased;
CREATE TABLE cells (key TEXT PRIMARY KEY, about TEXT NOT NULL, status TEXT NOT NULL, attempts INTEGER NOT NULL,
  started REAL, finished REAL, results TEXT, folder TEXT, error TEXT);
INSERT INTO cells SELECT key, about, status, attempts, started, finished, results, folder, error FROM leased
  WHERE status IN ('done', 'failed');
DROP TABLE leased"""
FROM_FORMAT_2 = """
ALTER TABLE cells ADD COLUMN digest TEXT;
UPDATE spectail_store SET version = 3"""
COLUMNS = "key, about, status, attempts, started, finished, results, folder, error"


_LOST = "move it away and run again: finished runs are found in their folders and not trained again"


class StoreError(ValueError):
    """An index that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Record:
    """A run as the index knows it: ``"running"``, ``"done"`` or ``"failed"``."""

    key: str
    """Hash of configuration, data identity and code version; while a run trains, of configuration and code."""
    about: dict[str, Any]
    """What the key stands for."""
    status: str
    attempts: int = 1
    started: float | None = None
    """Seconds since 1970, as ``finished``."""
    finished: float | None = None
    results: dict[str, Any] | None = None
    folder: str | None = None
    error: str | None = None


class Index:
    """The index at a path. With ``write`` this process is its driver until it closes it, and the only one."""

    def __init__(self, path: str | Path, *, write: bool = False) -> None:
        _refuse_others(str(path))
        self.path = Path(path)
        if not write and not self.path.exists():
            raise FileNotFoundError(f"there is no result store at {path}; check the path, or run an experiment first.")
        self._owner = Owner(self.path)
        if write:
            self._become_driver()
        try:
            with self._explained():
                # what a killed driver left half-written is undone by whoever reads next, if the file may be written
                mode = "rwc" if write else "rw" if os.access(self.path, os.W_OK) else "ro"
                address = f"file:{quote(os.fspath(self.path.absolute()))}?mode={mode}"
                self._connection = sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)
                self._prepare(write)
        except BaseException:
            self.close()
            raise

    def put(self, record: Record, *, replacing: str | None = None) -> None:
        """Write a record down, in place of the one under the key ``replacing`` if there is one."""
        try:
            texts = json.dumps(record.about), None if record.results is None else json.dumps(record.results)
        except (TypeError, ValueError) as error:
            raise StoreError(f"the record of {record.key} must be JSON ({error}).") from None
        row = (record.key, texts[0], record.status, record.attempts, record.started, record.finished, texts[1],
               _utf8(record.folder), _utf8(record.error))  # fmt: skip
        with self._change() as run:
            run("DELETE FROM cells WHERE key = ?", (replacing,))
            run(f"INSERT OR REPLACE INTO cells ({COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, _digest(row)))  # fmt: skip

    def forget(self, keys: Iterable[str]) -> None:
        with self._change() as run:
            for key in keys:
                run("DELETE FROM cells WHERE key = ?", (key,))

    def records(self) -> list[Record]:
        with self._explained():
            known = "('running', 'done', 'failed')"  # the first format also had runs that wait
            digest = "digest" if self._has_digests else "NULL"
            asked = f"SELECT {COLUMNS}, {digest} FROM cells WHERE status IN {known} ORDER BY key"
            rows = self._connection.execute(asked).fetchall()
        return [self._record(row[:-1], row[-1]) for row in rows]

    def _record(self, row: tuple[Any, ...], digest: str | None) -> Record:
        """What a row says, if it is as it was written; rows of earlier formats have no digest."""
        key, about, status, attempts, started, finished, results, folder, error = row
        try:
            if digest is not None and digest != _digest(row):
                raise ValueError
            made = Record(key, json.loads(about), status, attempts, started, finished,
                          None if results is None else json.loads(results), folder, error)  # fmt: skip
            if not isinstance(made.about, dict) or not isinstance(made.results, dict | None):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise StoreError(f"the result store {self.path} is damaged; {_LOST} (the record of {key}).") from None
        return made

    def driver(self) -> str | None:
        """Who writes the index now, and since when; None if nobody does."""
        return self._owner.look()

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
        self._owner.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _become_driver(self) -> None:
        if self.path.is_dir():
            raise StoreError(f"a result store is a file, and {self.path} is a folder; give a file in it.")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            other = self._owner.take()
        except OSError as error:
            raise StoreError(f"the result store {self.path} cannot be written ({error.strerror}).") from None
        if other is not None:
            raise StoreError(f"{self.path} already has a driver ({other}); wait until it has ended.")

    def _prepare(self, write: bool) -> None:
        tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "spectail_store" not in tables:
            raise StoreError(f"{self.path} is an SQLite file but not a result store; choose another file.")
        if not tables and not write:
            raise FileNotFoundError(f"there is no result store at {self.path}: the file is empty.")
        found = self._connection.execute("SELECT max(version) FROM spectail_store").fetchone()[0] if tables else 0
        if not isinstance(found, int) or found > FORMAT:
            raise StoreError(
                f"the result store {self.path} was written by a newer version of spectail (format {found}, this one "
                f"reads up to {FORMAT}); upgrade spectail, or choose another store."
            )
        self._has_digests = write or found == FORMAT
        self._check_size()
        if not write:
            return
        upgrades = {0: TABLES, 1: f"{FROM_FORMAT_1};{FROM_FORMAT_2}", 2: FROM_FORMAT_2}
        with self._change() as run:
            for text in upgrades.get(found, "").split(";"):
                run(text)
            if found == 0:
                run("INSERT INTO spectail_store VALUES (?)", (FORMAT,))
            run("DELETE FROM cells WHERE status = 'running'")  # of a driver that died: nobody trains them now

    def _check_size(self) -> None:
        """SQLite reads a file whose end is lost as if there were zeros."""
        size = self._connection.execute("PRAGMA page_size").fetchone()[0]
        if self.path.stat().st_size % size:
            raise StoreError(f"the result store {self.path} is damaged; {_LOST} (its end is lost).")

    @contextmanager
    def _change(self) -> Iterator[Any]:
        """All or nothing."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk has already rolled back
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of SQLite as one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte; the rest is detail
            advice = {
                sqlite3.SQLITE_NOTADB: "is not a result store; choose another file, or move this one away",
                sqlite3.SQLITE_CORRUPT: f"is damaged; {_LOST}",
                sqlite3.SQLITE_FULL: "cannot be written; free some space there and repeat the command",
                sqlite3.SQLITE_IOERR: "cannot be written; free some space there and repeat the command",
            }.get(code, "cannot be used; check its permissions, and close it everywhere else")
            raise StoreError(f"the result store {self.path} {advice} ({error}).") from error


def _digest(row: tuple[Any, ...]) -> str:
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()


def last_line(error: str | None) -> str:
    """What of an error says why."""
    return ((error or "").strip() or "no reason given").splitlines()[-1]


def _refuse_others(address: str) -> None:
    if address.startswith("journal:") or "://" in address:
        raise StoreError(
            f"{address.partition(':')[0]}: stores that several machines write are no longer read: one driver writes a "
            "file, and --engine ray uses other machines. To keep old results, export them with the version that wrote "
            "them: spectail experiment table all --code any --format csv --output FILE."
        )


def _utf8(text: str | None) -> str | None:
    """Names of files, and errors that quote them, need not be UTF-8; SQLite's texts are."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
