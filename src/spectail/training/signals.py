"""SIGINT and SIGTERM ask a run to save and leave; it does so at the end of the step."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator

PAUSE = 1.0
"""Seconds between two times that the ranks ask each other."""


class Interrupted(Exception):
    """A run stopped on request, with everything saved."""


class Interruptible:
    """While it is active the two signals set a flag. A second one of the same kind acts at once, as usual."""

    def __enter__(self) -> Interruptible:
        self._asked: int | None = None
        self.agreed = False
        self._calls, self._every, self._last = 0, 1, time.monotonic()
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = number
        signal.signal(number, self._before[number])

    @property
    def asked(self) -> bool:
        """Whether this process was asked to stop."""
        return self._asked is not None

    def requested(self, accelerator: Accelerator, *, now: bool = False) -> bool:
        """Whether any rank was asked to stop; all ranks get the same answer, which ``agreed`` keeps.

        Several ranks, which must all call this equally often, exchange their flags about once a second and on ``now``:
        an exchange waits for the device, which at every step would cost more than a quick step itself. How many calls
        pass until the next one follows from what all of them have seen, so they agree on that too.
        """
        if accelerator.num_processes == 1:
            self.agreed = self._asked is not None
            return self.agreed
        self._calls += 1
        if self._calls < self._every and not now:
            return self.agreed
        passed, self._last = time.monotonic() - self._last, time.monotonic()
        # whole numbers: their sum is the same on every rank, in whatever order it is taken
        mine = torch.tensor([int(self._asked is not None), round(1e6 * passed)], device=accelerator.device)
        asked, microseconds = accelerator.reduce(mine, "sum").tolist()
        fitting = int(self._calls * 1e6 * PAUSE * accelerator.num_processes / max(microseconds, 1))
        self._calls, self._every = 0, max(1, min(2 * self._every, fitting))
        self.agreed = asked > 0
        return self.agreed

    def leave(self, output: Path) -> None:
        raise Interrupted(
            f"stopped on request; everything is saved. Continue with spectail train --resume --output {output}"
        )
