"""The options of `spectail experiment`: which part of which experiment, how it is run and shown."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from .._utils.names import nearest
from ..data.catalog import ENTRIES
from ..experiments.catalog import EXPERIMENTS, TITLES, find_experiment
from ..experiments.devices import Device
from ..experiments.engines import EngineOptions
from ..experiments.index import Index, Record
from ..experiments.planning import Plan, Slice, in_order, make_plan
from ..experiments.runs import Run
from ..experiments.scales import Overrides, Scale

if TYPE_CHECKING:
    from ..experiments.task import Task

DATA_SETS = sorted(entry.name for entry in ENTRIES)
STORE = "runs/experiments.sqlite"
HOW = ("how",)
"""Options that only a run needs; other actions accept them, but their pages leave them out."""


@dataclass(frozen=True)
class How:
    """How runs are carried out. Only `run` needs it; other actions accept it, so that its command does for them."""

    root: tuple[str, ...] = ()
    """Folder of the data: PATH, or NAME=PATH for one data set."""
    folder: Path = Path("runs/experiments")
    """Folder of the runs."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, cuda:N or mps."""
    loaders: int | Literal["auto"] = "auto"
    """Processes of each run that decode images which are not held in memory; auto takes those of its cores that are
    free, up to 8."""
    compile: bool = False
    """Compile backbones with torch.compile."""
    grad_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    checkpoint_epochs: int = 1
    """Number of epochs between checkpoints."""
    keep: Literal["results", "predictions", "all"] = "predictions"
    """What is kept of a finished run: its results only, its predictions too, or everything."""
    retry: bool = False
    """Try failed runs again."""
    engine: tyro.conf.OmitArgPrefixes[EngineOptions] = field(default_factory=EngineOptions)

    def check(self) -> None:
        """Say what no run could do, once and before any: a slip of the operator is no failure of a run."""
        self.engine.check()
        at_least(0, "loaders", None if self.loaders == "auto" else self.loaders)
        at_least(1, "checkpoint_epochs", self.checkpoint_epochs)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ValueError(
                f"the folder of the runs, {self.folder}, cannot be written ({error.strerror}); choose another --folder."
            ) from None

    def settings(self, root: Path | None) -> dict[str, Any]:
        """What a run is told beside its own settings; none of it changes a result by more than rounding."""
        data = {} if root is None else {"data": {"root": str(root)}}
        hardware = {"compile": self.compile, "grad_checkpointing": self.grad_checkpointing}
        return data | {"device": self.device, "workers": self.loaders, "checkpoint_epochs": self.checkpoint_epochs,
                       "hardware": hardware}  # fmt: skip

    def roots(self) -> dict[str, Path]:
        """Where data sets lie, by name; the name "" for all others."""
        found = {}
        for text in self.root:
            name, mark, path = text.partition("=")
            if mark and name not in DATA_SETS and "/" not in name:
                raise ValueError(f"--root {text}: there is no data set {name!r}; {nearest(name, DATA_SETS)}")
            named = name in DATA_SETS and bool(mark)
            found[name if named else ""] = Path(path if named else text).expanduser()
        return found


@dataclass(frozen=True)
class Choice:
    """Which part of an experiment, and how large."""

    name: tyro.conf.Positional[str]
    """A name from `spectail experiment list`, tables for all tables of the paper, or all for everything."""
    cells: tyro.conf.OmitArgPrefixes[Slice] = field(default_factory=Slice)
    scale: Scale = "quick"
    """quick: minutes on a CPU; complete: small networks trained to the end or close to it; short: the paper's models
    for a tenth of its epochs; paper: the paper's models and epochs."""
    seeds: tuple[int, ...] = (0,)
    """Seeds to train each cell with."""
    changes: tyro.conf.OmitArgPrefixes[Overrides] = field(default_factory=Overrides)
    store: str = STORE
    """File of the results, written by one `run` at a time."""
    how: tyro.conf.OmitArgPrefixes[How] = field(default_factory=How)

    def plans(self) -> list[Plan]:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"--seeds must be different whole numbers; got {' '.join(map(str, self.seeds)) or 'none'}."
            )
        for name in ("epochs", "img_size", "batch_size", "accumulation"):
            at_least(1, name, getattr(self.changes, name))
        if self.name in ("all", "tables"):
            chosen = self.cells.of_all(map(find_experiment, EXPERIMENTS if self.name == "all" else TITLES))
        else:
            experiment = find_experiment(self.name)
            chosen = [(experiment, self.cells.of(experiment))]
        return [make_plan(one, cells, self.scale, sorted(self.seeds), self.changes) for one, cells in chosen]

    def records(self, *, needed: bool = False) -> list[Record]:
        """What the store holds; nothing if there is none yet. One that is ``needed`` and was named must be there."""
        try:
            with Index(self.store) as index:
                return index.records()
        except FileNotFoundError:
            if needed and self.store != STORE:
                raise
            return []

    @property
    def shown_store(self) -> str:
        """How the store is told to another command: not at all where it is the usual one."""
        return "" if self.store == STORE else f" --store {shlex.quote(self.store)}"


@dataclass(frozen=True)
class PlanAction(Choice):
    """Show cells, runs and expected time. Nothing is trained."""

    measure: bool = False
    """Time a training step of every model of the plan first, on --device."""
    on: Device | None = None
    """GPU for which to estimate the time, from the operations of a training step instead of a measurement."""
    all_cells: bool = False
    """Show every cell with its expected time."""


@dataclass(frozen=True)
class RunAction(Choice):
    """Train what is missing, here or on a Ray cluster. It may be stopped and started again."""

    rehearse: bool = False
    """Only check that every run starts, steps, saves, resumes and evaluates, with its own settings but on a few
    synthetic images."""

    def tasks(self, plans: list[Plan]) -> list[Task]:
        """The different runs of the plans, or their rehearsals."""
        from ..experiments.rehearsal import rehearsal_of  # noqa: PLC0415 - torch is slow to import
        from ..experiments.task import task_of  # noqa: PLC0415

        if self.rehearse and self.scale == "quick":
            raise ValueError(
                "--rehearse is for --scale short or paper; a quick run is short enough to be carried out itself."
            )
        how, roots, runs = self.how, self.how.roots(), {run.name: run for plan in plans for run in plan.runs}
        tasks = [
            task_of(run, how.folder, how.settings(_root(run, roots)), how.keep, how.engine.processes)
            for run in in_order(runs.values())
        ]
        return [rehearsal_of(task) for task in tasks] if self.rehearse else tasks


@dataclass(frozen=True)
class TableAction(Choice):
    """Show our numbers beside the published ones: mean and deviation over seeds, difference, number of seeds, notes."""

    format: Literal["text", "markdown", "latex", "csv"] = "text"
    """Format of the table."""
    output: Path | None = None
    """File to write the table to, instead of the terminal."""
    code: Literal["same", "any"] = "same"
    """Results of this version of the code only, or of any."""
    empty: bool = True
    """Show cells without results."""


@dataclass(frozen=True)
class FigureAction(Choice):
    """Draw a picture of finished runs."""

    kind: Literal["auto", "trade-off", "worst", "confusion", "sweeps", "diagnostics"] = "auto"
    """What to draw; auto draws what the experiment is for."""
    output: Path = Path("figure.png")
    """A .png, .svg or .pdf file."""
    code: Literal["same", "any"] = "same"
    """Results of this version of the code only, or of any."""


@dataclass(frozen=True)
class StatusAction(Choice):
    """Show what is done, what is running, what failed and why."""

    name: tyro.conf.Positional[str] = "all"
    """A name from `spectail experiment list`, or all."""
    code: Literal["same", "any"] = "same"
    """Results of this version of the code only, or of any."""


@dataclass(frozen=True)
class ScriptAction(Choice):
    """Print a Slurm script that starts Ray on the machines of a job and then runs the experiment on all of them."""

    nodes: int = 2
    """Machines of the job."""
    hours: float = 24.0
    """Time limit of the job."""
    gpus: int = 1
    """GPUs of each machine."""
    cpus: int = 8
    """Cores of each machine."""
    partition: str | None = None
    """Partition to queue in. By default that of the cluster."""


@dataclass(frozen=True)
class ListAction:
    """List the experiments: what each shows, its cells, and how many numbers are published."""


def _root(run: Run, roots: dict[str, Path]) -> Path | None:
    names = (run.sized.own["data"]["dataset"], run.cell.dataset) + ("",) * (run.cell.dataset != "glyphs-lt")
    return next((roots[name] for name in names if name in roots), None)


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


def without(arguments: list[str], options: set[str]) -> list[str]:
    """The arguments without some options, which have one value each.

    Example:
        >>> without(["lt-main", "--nodes", "8", "--hours=2", "--scale", "paper"], {"--nodes", "--hours"})
        ['lt-main', '--scale', 'paper']
    """
    kept, waiting = [], iter(arguments)
    for word in waiting:
        if _name(word) not in options:
            kept.append(word)
        elif "=" not in word:
            next(waiting, None)
    return kept


def at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise ValueError(f"--{name.replace('_', '-')} must be at least {least}; got {value}.")


def _name(word: str) -> str:
    """An option as the parser knows it: it takes ``--img_size`` too."""
    return word.partition("=")[0].replace("_", "-")
