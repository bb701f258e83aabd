"""Runs as processes of this machine. Each ends with the driver, whatever happens to it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from .._utils.parent import end_with_parent
from ..training.config import has_gpu
from .engines import EngineOptions, Listening, Stopped
from .task import Outcome, Task


@dataclass(frozen=True)
class Child:
    """A process that carries a task out."""

    task: Task
    process: Any
    answer: Connection
    log: Path
    slot: int


class LocalEngine:
    """So many jobs at once, each a process of its own with its share of cores and GPUs.

    Processes are forked from one that has imported everything but touched no GPU, so that starting one costs little.
    """

    def __init__(self, options: EngineOptions, device: str) -> None:
        gpus = _gpus() if device in ("auto", "cuda") else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if gpus and options.processes > len(gpus):
            raise ValueError(
                f"--processes {options.processes} needs one GPU per process, and there are {len(gpus)}; ask for fewer."
            )
        most = len(gpus) // options.processes if gpus else cores // (options.processes * max(options.threads, 1))
        self.jobs = max(1, most) if options.jobs == "auto" else options.jobs
        together = self.jobs * options.processes
        self.cores = cores // self.jobs
        self.threads = options.threads or (max(1, cores // together) if together > 1 else 0)
        self.gpus = [",".join(gpus[(slot * options.processes + rank) % len(gpus)] for rank in range(options.processes))
                     if gpus and together > 1 else "" for slot in range(self.jobs)]  # fmt: skip
        self.context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            self.context.set_forkserver_preload([f"{__package__}.local"])
            multiprocessing.forkserver.ensure_running()  # it imports while the data are read here

    def carry_out(self, waiting: deque[Task], begun: Callable[[Task], None]) -> Iterator[tuple[Task, Outcome]]:
        children: list[Child] = []
        with Listening() as signals, tempfile.TemporaryDirectory(prefix="spectail-") as logs:
            try:
                told = False
                while children or (waiting and signals.heard is None):
                    while waiting and len(children) < self.jobs and signals.heard is None:
                        task = waiting.popleft()
                        children.append(self._start(task, children, Path(logs)))
                        begun(task)
                    if signals.heard is not None and not told:
                        told = True
                        for child in children:
                            child.process.terminate()  # it saves itself
                    ready = wait([child.answer for child in children], timeout=0.2)
                    for child in [child for child in children if child.answer in ready]:
                        children.remove(child)
                        outcome = _ended(child)
                        died = outcome.status == "died" and signals.heard is not None  # it was told so early
                        yield child.task, Outcome("stopped") if died else outcome
            finally:
                for child in children:
                    child.process.kill()
                    child.process.join()
        if signals.heard is not None:
            raise Stopped(signals.heard)

    def _start(self, task: Task, others: list[Child], logs: Path) -> Child:
        slot = min(set(range(self.jobs)) - {child.slot for child in others})
        log = logs / f"{slot}.log"
        log.unlink(missing_ok=True)
        theirs, ours = multiprocessing.Pipe(duplex=False)
        arguments = (replace(task, threads=self.threads).on_cores(self.cores), self.gpus[slot], log, ours)
        process = self.context.Process(target=_child, args=arguments)
        process.start()
        ours.close()  # the child has its own: when that one goes, there is nothing more to read
        return Child(task, process, theirs, log, slot)


def _ended(child: Child) -> Outcome:
    try:
        outcome: Outcome = child.answer.recv()
    except (EOFError, OSError):  # it died before or while it sent
        child.process.join()
        words = child.log.read_text(encoding="utf-8", errors="replace").strip() if child.log.exists() else ""
        code = child.process.exitcode
        reason = f"signal {-code}" + ", often for lack of memory" * (code == -9) if code < 0 else f"{code}"
        return Outcome("died", error=f"{words[-1500:]}\nits process ended by {reason}".strip())
    finally:
        child.answer.close()
    child.process.join()
    return outcome


def _child(task: Task, gpus: str, log: Path, answer: Connection) -> None:
    os.setsid() if hasattr(os, "setsid") else None  # Ctrl-C in the terminal is for the driver, which passes it on
    end_with_parent()
    multiprocessing.set_start_method(None, force=True)  # loaders start as in `spectail train`, which is much faster
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    if task.threads:
        os.environ["OMP_NUM_THREADS"] = str(task.threads)
    answer.send(task.carry_out())


def _gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    if not (has_gpu() and torch.cuda.is_available()):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
