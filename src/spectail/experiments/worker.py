"""A worker: takes one open run after another from the store, trains it, writes down what came out.

Any number of workers share a store. A run belongs to the worker that claimed it for as long as it renews its lease; a
killed worker's run is taken over when the lease ends, and goes on from its last checkpoint where the folder is shared.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from .._utils import errors
from .._utils.errors import MissingData, MissingWeights
from ..data.datasets import load
from ..training.config_io import write_yaml
from ..training.loop import train
from ..training.reporter import Reporter
from ..training.signals import Interrupted, Interruptible
from .cost import check_device
from .grids import DIAGNOSTICS
from .record import Store, StoreError, last_line
from .runs import Run, code_version

Say = Callable[[str], None]
LEASE = 120.0


@dataclass(frozen=True)
class Way:
    """How runs are carried out; none of it changes a result."""

    folder: Path
    """Where the folders of the runs go."""
    roots: dict[str, Path]
    """Where data sets lie, by name; the name "" for all others."""
    device: str = "auto"
    loaders: int = 0
    """Processes that decode images."""
    processes: int = 1
    """Training processes of each run, started by torchrun."""
    keep: Literal["results", "predictions", "all"] = "predictions"
    """What stays of a finished run beside its results."""
    retry: bool = False
    """Try failed runs again."""
    lease: float = LEASE
    threads: int = 0
    """CPU threads of each training process; 0 leaves it to torch."""
    wait: bool = True
    """Stay until the runs of other workers have ended, to take over those of dead ones."""

    def check(self) -> None:
        """Say what no run could do, once and before any: a slip of the operator is no failure of a cell."""
        check_device(self.device, auto=True)
        gpus = torch.cuda.device_count() if self.device in ("auto", "cuda") and torch.cuda.is_available() else 0
        if gpus and self.processes > gpus:
            raise ValueError(f"--processes {self.processes} need a GPU each, and there are {gpus}; ask for fewer.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ValueError(
                f"the folder of the runs, {self.folder}, cannot be written ({error.strerror}); choose another --folder."
            ) from None


@dataclass
class Tally:
    """What a worker did."""

    done: int = 0
    failed: int = 0
    kept: int = 0
    """Runs that were finished before."""
    busy: int = 0
    """Runs that another worker has."""
    left: int = 0
    """Runs that were left out, since their data or weights cannot be used."""


class Worker:
    """Carries out runs of a store until none is open."""

    def __init__(self, store: Store, way: Way, say: Say) -> None:
        self.store, self.way, self.say = store, way, say
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.identities: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.no_weights: set[str] = set()
        """Models whose weights could not be fetched: no failure of a cell, and not tried again and again."""
        self.absent = True
        """Whether all that is missing is just not there, and nothing is wrong with it."""

    def work(self, runs: Sequence[Run]) -> Tally:
        """Every run that is open, in order; runs whose data are missing are left out (see ``missing``)."""
        if self.way.threads:
            torch.set_num_threads(self.way.threads)
        tally, code = Tally(), code_version()
        busy = [run for run in runs if not self._settle(run, code, tally)]
        if busy and self.way.wait:
            self.say(f"waiting for {len(busy)} run{'s' * (len(busy) > 1)} of other workers")
        while busy and self.way.wait:
            time.sleep(min(5.0, self.way.lease / 4))
            busy = [run for run in busy if not self._settle(run, code, tally)]
        tally.busy = len(busy)
        return tally

    def _settle(self, run: Run, code: str, tally: Tally) -> bool:
        """Train a run if it is open; False if another worker has it."""
        data = self.identity(run)
        model = run.sized.base.get("model", {})
        if data is None or (run.sized.model in self.no_weights and model.get("init") is None):
            tally.left += 1
            return True
        key = run.key(data, code)
        if self.store.claim(key, run.about(data, code), self.name, lease=self.way.lease, retry=self.way.retry):
            return self._one(run, key, tally)
        record = self.store.records([key])[key]
        tally.kept += record.status == "done"
        tally.failed += record.status == "failed"
        if record.status == "failed":
            self.say(f"failed earlier: {run.cell}, seed {run.seed}: {last_line(record.error)}")
        return record.status in ("done", "failed")

    def identity(self, run: Run) -> str | None:
        """Which images a run sees; None, and a sentence in ``missing``, where they cannot be used."""
        config = run.config(self.way.folder, **self._how(run))
        name = repr(config.data)
        if name not in self.identities and name not in self.missing:
            try:
                self.identities[name] = load(config.data).manifest.identity
            except (ValueError, OSError) as error:
                self.missing[name] = str(error)
                absent = isinstance(error, MissingData)
                self.absent = self.absent and absent
                what = "is not there" if absent else "cannot be used"
                self.say(f"left out, {config.data.dataset} {what}: {error}")
        return self.identities.get(name)

    def _one(self, run: Run, key: str, tally: Tally) -> bool:
        """Train a run; False if it was lost to another worker."""
        folder = self.way.folder / folder_name(run, key)
        config = run.config(folder, **self._how(run))
        lease, where = Lease(self.store, key, self.name, self.way.lease), f"{run.cell}, seed {run.seed}"
        try:
            with lease:
                if self.way.processes == 1:
                    results: dict[str, Any] = train(config, resume=True, reporter=Watch(lease))
                else:
                    results = self._launched(config, lease)
        except TakenOver:
            self._lost(key, where)
            return False
        except (Interrupted, KeyboardInterrupt):
            self.store.release(key, self.name)
            raise
        except MissingWeights as error:
            self.store.release(key, self.name)
            self.no_weights.add(run.sized.model)
            tally.left += 1
            self.say(f"left out, all runs of {run.sized.model}: {error}")
            return True
        except Exception as error:  # one run must not end the others
            words = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
            if not self.store.fail(key, self.name, words[-2000:]):
                self._lost(key, where)
                return False
            tally.failed += 1
            self.say(f"failed: {where}: {words[-600:]}")
            return True
        if not self.store.finish(key, self.name, results | last_diagnostics(folder), str(folder)):
            self._lost(key, where)
            return False
        tally.done += 1
        tidy(folder, self.way.keep)
        self.say(f"{where}: overall {results['overall']:.1f}, {results['seconds']:.0f} s")
        return True

    def _lost(self, key: str, where: str) -> None:
        with suppress(StoreError, OSError):  # where nobody has it yet, it is free at once and no worker died on it
            if self.store.release(key, self.name):
                self.say(
                    f"{where}: the store did not answer for {self.way.lease:g} s, so the run was stopped and freed."
                )
                return
        self.say(f"{where}: another worker took it over; its result counts.")

    def _how(self, run: Run) -> dict[str, Any]:
        names = (run.sized.own["data"]["dataset"], run.cell.dataset) + ("",) * (run.cell.dataset != "glyphs-lt")
        root = next((self.way.roots[name] for name in names if name in self.way.roots), None)
        changes: dict[str, Any] = {"device": self.way.device, "workers": self.way.loaders, "keep_checkpoints": 1}
        return changes | ({"data": {"root": str(root)}} if root is not None else {})

    def _launched(self, config: Any, lease: Lease) -> dict[str, Any]:
        """A run of several processes on this machine."""
        path = config.output.with_name(f"{config.output.name}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_yaml(path, config)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
                   str(self.way.processes), "-m", "spectail", "train", "--config", str(path), "--output",
                   str(config.output), "--resume", "--quiet", "--no-report"]  # fmt: skip
        problem = path.with_suffix(".error.json")
        environment = dict(os.environ) | ({"OMP_NUM_THREADS": str(self.way.threads)} if self.way.threads else {})
        environment[errors.FILE] = str(problem)
        problem.unlink(missing_ok=True)
        with Interruptible() as interrupt, tempfile.TemporaryFile("w+") as words:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=words, env=environment)
            told = False
            while process.poll() is None:
                if (interrupt.asked or lease.lost.is_set()) and not told:
                    told = True
                    process.terminate()  # torchrun passes it on, and the run saves itself
                time.sleep(0.2)
            words.seek(0)
            said = words.read()
        error = errors.handed_over(problem)
        path.unlink(missing_ok=True)
        problem.unlink(missing_ok=True)
        if interrupt.asked:
            raise Interrupted(f"stopped; {config.output} can go on.")
        if told:
            raise TakenOver
        if process.returncode:
            raise error or RuntimeError(said[-1500:])
        results: dict[str, Any] = json.loads((config.output / "results.json").read_text(encoding="utf-8"))
        return results


class TakenOver(Exception):
    """A run is no longer this worker's."""


class Lease:
    """Renews a claim in the background while a run trains. ``lost`` is set when the run is no longer this worker's."""

    def __init__(self, store: Store, key: str, worker: str, seconds: float) -> None:
        self.store, self.key, self.worker, self.seconds = store, key, worker, seconds
        self.over, self.lost = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Lease:
        self.until = time.monotonic() + self.seconds
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.thread.join()

    def _renew(self) -> None:
        pause = self.seconds / 4
        while not self.over.wait(max(0.0, min(pause, self.until - time.monotonic()))):
            before = time.monotonic()
            try:
                held = self.store.renew(self.key, self.worker, lease=self.seconds)
            except Exception:  # a store that does not answer now may do so soon; the lease lasts until then
                held, pause = time.monotonic() < self.until, self.seconds / 16
            else:
                self.until, pause = before + self.seconds, self.seconds / 4
            if not held:
                self.lost.set()
                return


class Watch(Reporter):
    """Ends a run at the end of a step when its lease is lost.

    Nothing is saved then: the folder is the other worker's. No signal is used, since one that comes between two runs
    would end the worker.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def track(self, items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        for item in items:
            self._look()
            yield item

    def begin_epoch(self, stage: str, epoch: int, epochs: int, steps: int, done: int) -> None:
        self._look()

    def step(self, done: int, figures: Callable[[], dict[str, float]]) -> None:
        self._look()

    def _look(self) -> None:
        if self.lease.lost.is_set():
            raise TakenOver


def last_diagnostics(folder: Path) -> dict[str, float]:
    """What CAR logged about itself in the last epoch, if it was asked to."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1]) if lines else {}
    return {name: last[name] for name in DIAGNOSTICS if name in last}


def folder_name(run: Run, key: str) -> str:
    words = f"{run.cell.method}-{run.cell.dataset}-{run.scale}-seed{run.seed}"
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', words)}-{key}"


def tidy(folder: Path, keep: str) -> None:
    """Remove what a finished run does not need."""
    if keep == "all":
        return
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "model.safetensors").unlink(missing_ok=True)
    if keep == "results":
        (folder / "predictions.npz").unlink(missing_ok=True)
