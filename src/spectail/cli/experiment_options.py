"""The options of `spectail experiment`: which part of which experiment, how it is run and shown."""

from __future__ import annotations

import difflib
import shlex
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import tyro

from ..data.catalog import ENTRIES
from ..experiments.catalog import EXPERIMENTS, find_experiment
from ..experiments.planning import Plan, Slice, make_plan
from ..experiments.scales import Overrides, Scale
from ..experiments.store import Record, open_store

DATA_SETS = sorted(entry.name for entry in ENTRIES)
STORE = "runs/experiments.sqlite"


@dataclass(frozen=True)
class Choice:
    """Which part of an experiment, and how large."""

    name: tyro.conf.Positional[str]
    """A name from `spectail experiment list`, or all."""
    cells: tyro.conf.OmitArgPrefixes[Slice] = field(default_factory=Slice)
    scale: Scale = "quick"
    """quick: minutes on a CPU; short: the paper's models for a tenth of its epochs; paper: as the paper."""
    seeds: tuple[int, ...] = (0,)
    changes: tyro.conf.OmitArgPrefixes[Overrides] = field(default_factory=Overrides)
    store: str = STORE
    """File of the results; journal:FILE or the address of a data base for workers on several machines."""

    def plans(self) -> list[Plan]:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"--seeds must be different whole numbers; got {' '.join(map(str, self.seeds)) or 'none'}."
            )
        for name in ("epochs", "img_size", "batch_size"):
            _at_least(1, name, getattr(self.changes, name))
        if self.name == "all":
            chosen = self.cells.of_all(map(find_experiment, EXPERIMENTS))
        else:
            experiment = find_experiment(self.name)
            chosen = [(experiment, self.cells.of(experiment))]
        return [make_plan(one, cells, self.scale, sorted(self.seeds), self.changes) for one, cells in chosen]

    def records(self, *, needed: bool = False) -> list[Record]:
        """What the store holds; nothing if there is none yet. One that is ``needed`` and was named must be there."""
        try:
            store = open_store(self.store, create=False)
        except FileNotFoundError:
            if needed and self.store != STORE:
                raise
            return []
        try:
            return list(store.records().values())
        finally:
            store.close()


@dataclass(frozen=True)
class PlanAction(Choice):
    """Cells, runs and expected time. Nothing is trained."""

    measure: bool = False
    """Time a training step of every model of the plan first."""
    device: str = "cpu"
    """Where to measure."""
    all_cells: bool = False
    """Show every cell."""


@dataclass(frozen=True)
class RunAction(Choice):
    """Train what is missing. May be stopped and started again, and run several times at once."""

    root: tuple[str, ...] = ()
    """Where data lie: PATH, or NAME=PATH for one data set."""
    folder: Path = Path("runs/experiments")
    """Folder of the runs."""
    workers: int = 1
    """Workers on this machine."""
    threads: int = 0
    """CPU threads of each worker; 0 leaves it to torch."""
    processes: int = 1
    """Training processes of each run (torchrun)."""
    device: str = "auto"
    loaders: int = 0
    """Processes of each run that decode images."""
    keep: Literal["results", "predictions", "all"] = "predictions"
    """What stays of a finished run beside its results."""
    retry: bool = False
    """Try failed runs again."""
    lease: float = 120.0
    """Seconds after which a worker that gives no sign is taken for dead."""
    wait: bool = True
    """Stay until the runs of other workers have ended, to take over those of dead ones."""

    def check(self) -> None:
        for name, least in (("workers", 1), ("threads", 0), ("processes", 1), ("loaders", 0)):
            _at_least(least, name, getattr(self, name))
        if not self.lease > 0:
            raise ValueError(f"--lease must be a positive number of seconds; got {self.lease:g}.")

    def roots(self) -> dict[str, Path]:
        """Where data sets lie, by name; the name "" for all others."""
        found = {}
        for text in self.root:
            name, mark, path = text.partition("=")
            if mark and name not in DATA_SETS and "/" not in name:
                close = difflib.get_close_matches(name, DATA_SETS, n=2) or DATA_SETS
                raise ValueError(f"--root {text}: there is no data set {name!r}; near it are {', '.join(close)}.")
            named = name in DATA_SETS and bool(mark)
            found[name if named else ""] = Path(path if named else text).expanduser()
        return found


@dataclass(frozen=True)
class TableAction(Choice):
    """Our numbers beside the published ones: mean and deviation over seeds, difference, number of seeds, notes."""

    format: Literal["text", "markdown", "latex", "csv"] = "text"
    output: Path | None = None
    """Write it to a file instead."""
    code: Literal["same", "any"] = "same"
    """Results of this version of the code only, or of any."""
    empty: bool = True
    """Show cells without results."""


@dataclass(frozen=True)
class FigureAction(Choice):
    """A picture of finished runs."""

    kind: Literal["auto", "trade-off", "worst", "confusion", "sweeps", "diagnostics"] = "auto"
    """auto: what the experiment is for."""
    output: Path = Path("figure.png")
    """A .png, .svg or .pdf file."""
    code: Literal["same", "any"] = "same"
    """Results of this version of the code only, or of any."""


@dataclass(frozen=True)
class StatusAction(Choice):
    """What is done, running, lost, failed, and why."""

    name: tyro.conf.Positional[str] = "all"
    """A name from `spectail experiment list`, or all."""
    code: Literal["same", "any"] = "same"


@dataclass(frozen=True)
class ScriptAction(RunAction):
    """Print a Slurm array script: every task is a worker on one store."""

    store: str = "journal:runs/experiments.journal"
    count: int = 4
    """Workers."""
    hours: float = 24.0
    gpus: int = 1
    cpus: int = 8
    partition: str | None = None

    def check(self) -> None:
        super().check()
        if 0 < self.gpus < self.processes:
            raise ValueError(
                f"--processes {self.processes} need a GPU each, and a task has --gpus {self.gpus}; make them as many."
            )
        if self.count > 1 and not (self.store.startswith("journal:") or "://" in self.store):
            raise ValueError(
                f"--store {self.store} is a file for one machine, and {self.count} tasks may run on several; write "
                "--store journal:FILE in a folder that they share, or the address of a data base."
            )


@dataclass(frozen=True)
class Nothing:
    """The experiments by name."""


def once(arguments: list[str]) -> list[str]:
    """The arguments, none of whose options may come twice: the parser would keep the last and say nothing.

    Example:
        >>> once(["lt-main", "--seeds", "0", "1"])
        ['lt-main', '--seeds', '0', '1']
    """
    names = [_name(word) for word in arguments if word.startswith("--")]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{name} is expected once and came {names.count(name)} times; give all its values after one."
            )
    return arguments


def to_look(arguments: list[str], action: type[Choice]) -> list[str]:
    """The arguments of a run, for an action that only looks: what says how to run is left out, and named.

    Example:
        >>> to_look(["--root", "a", "b", "lt-main", "--retry", "--scale", "paper"], StatusAction)
        ['lt-main', '--scale', 'paper']
    """
    for_runs = {each.name for each in fields(RunAction)} - {each.name for each in fields(action)}
    kept, left, leaving = [], [], False
    for word in once(arguments):
        if word in EXPERIMENTS or word == "all":  # the name of the experiment may stand anywhere
            leaving = False
        elif word.startswith("--"):
            leaving = _name(word).removeprefix("--").removeprefix("no-") in for_runs
            left += [_name(word)] * leaving
        if not leaving:
            kept.append(word)
    if left:
        print(f"spectail experiment: only `run` needs {', '.join(left)}; left out here.", file=sys.stderr)
    return kept


def without(arguments: list[str], options: set[str]) -> list[str]:
    """The arguments without some options, which have one value each.

    Example:
        >>> without(["lt-main", "--count", "8", "--hours=2", "--scale", "paper"], {"--count", "--hours"})
        ['lt-main', '--scale', 'paper']
    """
    kept, waiting = [], iter(arguments)
    for word in waiting:
        if _name(word) not in options:
            kept.append(word)
        elif "=" not in word:
            next(waiting, None)
    return kept


def given(store: str) -> str:
    """How a store is told to another command: not at all where it is the usual one."""
    return "" if store == STORE else f" --store {shlex.quote(store)}"


def beside(store: str, name: str) -> Path:
    """A file beside the store; beside the usual one where the store is no file."""
    path = Path(store.removeprefix("journal:"))
    return (Path(STORE).parent if "://" in store else path.parent) / name


def _name(word: str) -> str:
    """An option as the parser knows it: it takes ``--img_size`` too."""
    return word.partition("=")[0].replace("_", "-")


def _at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise ValueError(f"--{name.replace('_', '-')} must be at least {least}; got {value}.")
