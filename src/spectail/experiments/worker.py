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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ..data.loading import load
from ..training.config_io import write_yaml
from ..training.loop import train
from ..training.signals import Interrupted, Interruptible
from .record import Store
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


@dataclass
class Tally:
    """What a worker did."""

    done: int = 0
    failed: int = 0
    kept: int = 0
    """Runs that were finished before."""
    busy: int = 0
    """Runs that another worker has."""


class Worker:
    """Carries out runs of a store until none is open."""

    def __init__(self, store: Store, way: Way, say: Say) -> None:
        self.store, self.way, self.say = store, way, say
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.identities: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def work(self, runs: Sequence[Run]) -> Tally:
        """Every run that is open, in order; runs whose data are missing are left out (see ``missing``)."""
        tally = Tally()
        code = code_version()
        for run in runs:
            data = self.identity(run)
            if data is None:
                continue
            key = run.key(data, code)
            if self.store.claim(key, run.about(data, code), self.name, lease=self.way.lease, retry=self.way.retry):
                self._one(run, key, tally)
                continue
            status = self.store.records([key])[key].status
            tally.kept += status == "done"
            tally.failed += status == "failed"
            tally.busy += status in ("running", "lost")
        return tally

    def identity(self, run: Run) -> str | None:
        """Which images a run sees; None, and a sentence in ``missing``, where they are not there."""
        config = run.config(self.way.folder, **self._how(run))
        name = repr(config.data)
        if name not in self.identities and name not in self.missing:
            try:
                self.identities[name] = load(config.data).manifest.identity
            except (ValueError, OSError) as error:
                self.missing[name] = str(error)
                self.say(f"left out, {config.data.dataset} is not there: {error}")
        return self.identities.get(name)

    def _one(self, run: Run, key: str, tally: Tally) -> None:
        folder = self.way.folder / folder_name(run, key)
        config = run.config(folder, **self._how(run))
        lease = Lease(self.store, key, self.name, self.way.lease)
        try:
            with lease:
                results = train(config, resume=True) if self.way.processes == 1 else self._launched(config)
        except (Interrupted, KeyboardInterrupt):
            self.store.release(key, self.name)
            raise
        except Exception as error:  # one run must not end the others
            tally.failed += 1
            words = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
            self.store.fail(key, self.name, words[-2000:])
            self.say(f"failed: {run.cell}, seed {run.seed}: {words[-600:]}")
            return
        if not self.store.finish(key, self.name, results, str(folder)):
            self.say(f"{run.cell}, seed {run.seed}: another worker took it over; its result counts.")
            return
        tally.done += 1
        tidy(folder, self.way.keep)
        self.say(f"{run.cell}, seed {run.seed}: overall {results['overall']:.1f}, {results['seconds']:.0f} s")

    def _how(self, run: Run) -> dict[str, Any]:
        dataset = run.sized.own["data"]["dataset"]
        root = self.way.roots.get(dataset, self.way.roots.get("") if dataset != "glyphs-lt" else None)
        changes: dict[str, Any] = {"device": self.way.device, "workers": self.way.loaders, "keep_checkpoints": 1}
        return changes | ({"data": {"root": str(root)}} if root is not None else {})

    def _launched(self, config: Any) -> dict[str, Any]:
        """A run of several processes on this machine."""
        path = config.output.with_name(f"{config.output.name}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_yaml(path, config)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
                   str(self.way.processes), "-m", "spectail", "train", "--config", str(path), "--output",
                   str(config.output), "--resume", "--quiet", "--no-report"]  # fmt: skip
        with Interruptible() as interrupt, tempfile.TemporaryFile("w+") as words:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=words)
            told = False
            while process.poll() is None:
                if interrupt.asked and not told:
                    told = True
                    process.terminate()  # torchrun passes it on, and the run saves itself
                time.sleep(0.2)
            words.seek(0)
            said = words.read()
        path.unlink(missing_ok=True)
        if interrupt.asked:
            raise Interrupted(f"stopped; {config.output} can go on.")
        if process.returncode:
            own = [line for line in said.splitlines() if line.startswith("spectail train:")]
            raise RuntimeError(own[0] if own else said[-1500:])
        results: dict[str, Any] = json.loads((config.output / "results.json").read_text(encoding="utf-8"))
        return results


class Lease:
    """Renews a claim in the background while a run trains."""

    def __init__(self, store: Store, key: str, worker: str, seconds: float) -> None:
        self.store, self.key, self.worker, self.seconds = store, key, worker, seconds
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Lease:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.thread.join()

    def _renew(self) -> None:
        while not self.over.wait(self.seconds / 4):
            if not self.store.renew(self.key, self.worker, lease=self.seconds):
                return  # finish() will say that it is no longer ours


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


def in_order(runs: Iterable[Run]) -> list[Run]:
    """All cells of the first seed, then of the second: a table is whole early, then grows more certain."""
    return sorted(runs, key=lambda run: run.seed)
