"""One run of a plan, as data that any process on any machine can carry out, and what comes of it."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from .._utils.errors import MissingData, MissingWeights, is_lack_of_memory, lack_of_memory, one_line
from ..training.build import load_data, make_accelerator
from ..training.config import TrainConfig
from ..training.loop import train
from ..training.run_folder import RunFolder
from ..training.signals import Interrupted
from .grids import DIAGNOSTICS
from .rehearsal import rehearse, synthetic_data
from .runs import Run, code_version, key_of

Keep = Literal["results", "predictions", "all"]


@dataclass(frozen=True)
class Task:
    """A run: its key is a hash of its settings (``name``), its images and the code."""

    title: str
    """How a person calls it."""
    name: str
    code: str
    config: TrainConfig
    """Complete; ``output`` is the folder of the run, or with ``words`` the one that it goes into."""
    words: str = ""
    """The readable part of the folder's name, which its key completes."""
    about: dict[str, Any] = field(default_factory=dict)
    """What the index says of it."""
    keep: Keep = "all"
    """What stays of a finished run beside its results."""
    processes: int = 1
    """Training processes, started by torchrun."""
    threads: int = 0
    """CPU threads of each process; 0 leaves it to torch."""
    attempt: int = 1
    """Counts from 1; higher after a process or node died."""
    only_identify: bool = False
    """Say which images the run would see, and no more."""
    rehearse: bool = False
    """Only show that it can be carried out."""

    def carry_out(self) -> Outcome:
        """Train it here."""
        return carry_out(self)

    def folder(self, identity: str) -> Path:
        output = self.config.output
        return output / f"{self.words}-{key_of(self.name, identity, self.code)}" if self.words else output

    def on_cores(self, cores: int) -> Task:
        """The task where it has so many cores of a machine to itself: loaders by the rule of `spectail train`."""
        if self.config.workers != "auto":
            return self
        return replace(self, config=replace(self.config, workers=max(0, min(8, cores // self.processes - 1))))


def task_of(
    run: Run, folder: Path, how: Mapping[str, Any], keep: Keep = "predictions", processes: int = 1
) -> Task:  # fmt: skip
    """A run of an experiment, in a folder of its own below ``folder``; ``how`` are settings that change no result."""
    config = run.config(folder, **{"keep_checkpoints": 1} | dict(how))
    words = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{run.cell.method}-{run.cell.dataset}-{run.scale}-seed{run.seed}")
    about = {"scale": run.scale, "seed": run.seed, "cell": str(run.cell), "settings": run.settings,
             "notes": list(run.sized.notes)}  # fmt: skip
    return Task(f"{run.cell}, seed {run.seed}", run.name, code_version(), config, words, about, keep, processes)


@dataclass(frozen=True)
class Outcome:
    """What came of a task, wherever it was carried out."""

    status: Literal["done", "known", "failed", "died", "stopped", "no data", "no weights"]
    identity: str = ""
    """Which images it saw."""
    results: dict[str, Any] | None = None
    folder: str | None = None
    error: str = ""
    absent: bool = False
    """No data: they are just not there, and nothing is wrong with them."""


def carry_out(task: Task) -> Outcome:
    """Train a run in this process, or in as many as it asks for."""
    return train_here(task) if task.processes == 1 else _in_processes(task)


def train_here(task: Task) -> Outcome:
    """Train a run in this process; under torchrun, the part of this rank."""
    if task.threads:
        torch.set_num_threads(task.threads)
    identity = ""
    try:
        make_accelerator(task.config)  # a device that is not here is no fault of the data
        try:
            data = synthetic_data(task.config.data) if task.rehearse else load_data(task.config)
        except (ValueError, OSError) as error:
            return Outcome("no data", error=one_line(error), absent=isinstance(error, MissingData))
        identity = data.manifest.identity
        if task.only_identify:
            return Outcome("known", identity)
        folder = task.folder(identity)
        if task.rehearse:
            return Outcome("done", identity, rehearse(replace(task.config, output=folder), data))
        results = train(replace(task.config, output=folder), resume=True, data=data)
        if results.get("identity", identity) != identity:
            return Outcome("failed", identity, error=f"{folder} holds a run on other images; move it away.")
        if os.environ.get("RANK", "0") == "0":
            _tidy(folder, task.keep)
        return Outcome("done", identity, dict(results) | last_diagnostics(folder), str(folder.absolute()))
    except (Interrupted, KeyboardInterrupt):
        return Outcome("stopped", identity)
    except MissingWeights as error:
        return Outcome("no weights", identity, error=one_line(error))
    except Exception as error:  # whatever it is, it must not end the other runs
        if is_lack_of_memory(error):
            return Outcome("failed", identity, error=lack_of_memory(error))
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        return Outcome("failed", identity, error=(kind + one_line(error))[:2000])


def last_diagnostics(folder: Path) -> dict[str, float]:
    """What CAR logged about itself in the last epoch, if it was asked to."""
    last = (RunFolder(folder).curves() or [{}])[-1]
    return {name: last[name] for name in DIAGNOSTICS if name in last}


def _tidy(folder: Path, keep: Keep) -> None:
    """Remove what a finished run does not need."""
    if keep == "all":
        return
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "model.safetensors").unlink(missing_ok=True)
    if keep == "results":
        (folder / "predictions.npz").unlink(missing_ok=True)


def _in_processes(task: Task) -> Outcome:
    """Under torchrun: every rank carries the task out (see `ranks.py`), and one of them writes down what came of it."""
    with tempfile.TemporaryDirectory(prefix="spectail-") as place:
        Path(place, "task").write_bytes(pickle.dumps(replace(task, processes=1)))
        environment = os.environ | ({"OMP_NUM_THREADS": str(task.threads)} if task.threads else {})
        command = [sys.executable, "-m", f"{__package__}.ranks", place, str(task.processes)]
        asked = False
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
            try:
                while process.poll() is None:  # Ray's interrupt is no signal: it would not end a wait
                    time.sleep(0.2)
            except KeyboardInterrupt:
                asked = True
                process.terminate()  # torchrun passes it on, and the run saves itself
                process.wait()
            said.seek(0)
            error = said.read()[-1500:]
        killed = Path(place, "killed")
        if killed.exists() and not asked:  # what the other ranks said is no cause but a consequence
            return Outcome("died", error=f"one of its processes ended by {killed.read_text()}")
        try:
            outcome: Outcome = pickle.loads(Path(place, "outcome").read_bytes())
            return outcome
        except FileNotFoundError:
            return Outcome("stopped") if asked else Outcome("died", error=error.strip())
