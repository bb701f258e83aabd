"""SIGINT and SIGTERM ask a run to save and leave; it does so at the end of the step."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate import Accelerator


class Interrupted(Exception):
    """A run stopped on request, with everything saved."""


class Interruptible:
    """While it is active the two signals set a flag. A second one of the same kind acts at once, as usual."""

    def __enter__(self) -> Interruptible:
        self._asked: int | None = None
        self.agreed = False
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = number
        signal.signal(number, self._before[number])

    def requested(self, accelerator: Accelerator) -> bool:
        """Whether any rank was asked to stop; all ranks get the same answer, which ``agreed`` keeps."""
        self.agreed = self._asked is not None
        if accelerator.num_processes > 1:
            flag = torch.tensor([float(self.agreed)], device=accelerator.device)
            self.agreed = bool(accelerator.reduce(flag, "sum") > 0)
        return self.agreed

    def leave(self, output: Path) -> None:
        raise Interrupted(f"stopped on request; everything is saved. Go on with --resume --output {output}")
