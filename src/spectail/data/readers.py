"""Processes that read images: they last as long as a loader, and answer requests in the order they are asked for.

They are told what to make and send it back as tensors in shared memory. They do not hear the signals that stop a job,
which often go to all its processes: the main one acts on them, and its readers must last until it has.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import torch
import torch.multiprocessing  # with it tensors go through shared memory
from torch._utils import ExceptionWrapper

from .decoding import BrokenImage


class WorkerLost(OSError):
    """A process that reads images has died."""


class Readers:
    """``make(request)`` in other processes, by turns.

    Args:
        make: is sent to the processes once.
        workers: how many of them.
    """

    def __init__(self, make: Callable[[Any], Any], workers: int) -> None:
        context = multiprocessing.get_context()
        self._workers: list[tuple[Any, Connection]] = []
        # at exit, before multiprocessing waits for processes that do not hear its signal; in a process of its own too,
        # where atexit is silent. A copy in a forked process does nothing
        self._end = Finalize(self, _end, args=(self._workers,), exitpriority=10)
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, make), daemon=True)
            process.start()
            there.close()  # so that the end of the process is the end of the line
            self._workers.append((process, here))
        self._asked = 0
        self._ready: dict[int, Any] = {}
        self._unwanted: set[int] = set()

    def __len__(self) -> int:
        return len(self._workers)

    def ask(self, request: Any) -> int:
        """Hand over a request; the number it gets is for `answer`."""
        number, self._asked = self._asked, self._asked + 1
        process, line = self._workers[number % len(self)]
        try:
            line.send((number, request))
        except OSError as error:
            raise _lost(process, error) from None
        return number

    def answer(self, number: int) -> Any:
        """What was made of a request, or the error that it met."""
        process, line = self._workers[number % len(self)]
        while number not in self._ready:
            try:
                other, made = line.recv()
            except (OSError, EOFError) as error:
                raise _lost(process, error) from None
            if other in self._unwanted:
                self._unwanted.discard(other)
            else:
                self._ready[other] = made
        made = self._ready.pop(number)
        if isinstance(made, BrokenImage):
            raise made
        if isinstance(made, ExceptionWrapper):
            made.reraise()  # type: ignore[no-untyped-call]
        return made

    def forget(self, numbers: Iterable[int]) -> None:
        """Nobody will ask for these any more."""
        for number in numbers:
            if self._ready.pop(number, None) is None:
                self._unwanted.add(number)

    def close(self) -> None:
        self._end()


def _end(workers: list[tuple[Any, Connection]]) -> None:
    """They have nothing to lose."""
    for process, line in workers:
        process.kill()
        line.close()
    for process, _ in workers:
        process.join()


def _work(line: Connection, make: Callable[[Any], Any]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None
    with contextlib.suppress(OSError, EOFError):  # the main process has gone
        while line in wait([line, parent.sentinel]):
            place, request = line.recv()
            made: Any
            try:
                made = make(request)
            except BrokenImage as error:
                made = error  # said without this process's traceback
            except Exception:
                made = ExceptionWrapper(where="in a process that reads images")  # type: ignore[no-untyped-call]
            try:
                line.send((place, made))
            except (RuntimeError, TypeError, AttributeError):  # what was made cannot be sent
                line.send((place, ExceptionWrapper(where="in a process that reads images")))  # type: ignore[no-untyped-call]


def _lost(process: Any, error: Exception) -> Exception:
    """What a broken line means: that the process has died, if it has."""
    process.join(5)
    if process.exitcode is None:
        return error
    how = f"was ended by {signal.Signals(-process.exitcode).name}" if process.exitcode < 0 else "has ended"
    return WorkerLost(
        f"a process that reads images (pid {process.pid}) {how}, which mostly means that memory ran out. Repeat the "
        "command with a smaller --workers (0 reads in the main process), with --resume if it was a run."
    )
