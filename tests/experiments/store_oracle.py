"""What a result store must answer, as plain dictionaries with a clock of their own; and addresses of real ones."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

KINDS = ("file", "journal", "database")


@contextmanager
def quick_folder():
    """In memory where there is such a place: thousands of syncs to a busy disk would be all the time of a test."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def address(kind, folder):
    return {
        "file": f"{folder}/results.db",
        "journal": f"journal:{folder}/results.log",
        "database": f"sqlite:///{folder}/optuna.db",
    }[kind]


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now


class Oracle:
    def __init__(self, clock):
        self.clock = clock
        self.cells = {}

    def claim(self, key, about, worker, *, lease, retry):
        cell = self.cells.get(key, {"status": "waiting", "attempts": 0, "deaths": 0})
        if cell["status"] == "done":
            return False
        if cell["status"] == "failed":
            if not retry:
                return False
            cell["deaths"] = 0
        if cell["status"] == "running":
            if cell["until"] > self.clock.now:
                return False
            cell["deaths"] += 1
            if cell["deaths"] == 3:
                cell.update(status="failed", error="died")
                return False
        cell.update(status="running", worker=worker, until=self.clock.now + lease, about=about, error=None)
        cell["attempts"] += 1
        self.cells[key] = cell
        return True

    def _mine(self, key, owner, **change):
        cell = self.cells.get(key)
        if cell is None or cell["status"] != "running" or cell["worker"] != owner:
            return False
        cell.update(change)
        return True

    def renew(self, key, worker, *, lease):
        return self._mine(key, worker, until=self.clock.now + lease)

    def finish(self, key, worker, results, folder):
        return self._mine(key, worker, status="done", results=results, folder=folder)

    def fail(self, key, worker, error):
        return self._mine(key, worker, status="failed", error=error)

    def release(self, key, worker):
        return self._mine(key, worker, status="waiting", worker=None)

    def forget(self, keys):
        count = 0
        for key in keys:
            cell = self.cells.get(key)
            if cell and not (cell["status"] == "running" and cell["until"] > self.clock.now):
                del self.cells[key]
                count += 1
        return count

    def summary(self):
        found = {}
        for key, cell in self.cells.items():
            status = cell["status"]
            if status == "running" and cell["until"] <= self.clock.now:
                status = "lost"
            done = status == "done"
            found[key] = (
                status, cell["about"], cell["worker"], cell["attempts"], cell["results"] if done else None,
                cell["folder"] if done else None, cell["error"] if status == "failed" else None,
            )  # fmt: skip
        return found


def summary(records):
    """Records in the oracle's words."""
    return {
        key: (
            record.status, record.about, record.worker, record.attempts, record.results, record.folder,
            "died" if record.error and "3 workers died on it" in record.error else record.error,
        )
        for key, record in records.items()
    }  # fmt: skip
