"""A file or folder that one process at a time may write."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout


class Owner:
    """The right to write what lies at a path, held until :meth:`release`, or until the process dies."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
        self._note = path.with_name(f".{path.name}.owner")

    def take(self) -> str | None:
        """Who has it, and since when; None if it is ours now."""
        try:
            self._lock.acquire()
        except Timeout:
            return self._note.read_text(encoding="utf-8") if self._note.exists() else "another process"
        who = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        with suppress(OSError):  # on a full disk the lock is enough
            self._note.write_text(who, encoding="utf-8")
        return None

    def release(self) -> None:
        if self._lock.is_locked:
            self._note.unlink(missing_ok=True)
            self._lock.release()

    def look(self) -> str | None:
        """Who has it, without taking it for long; None if nobody does, or if nobody may."""
        try:
            other = self.take()
        except OSError:  # somebody else's folder, which cannot be written
            return None
        self.release()
        return other
