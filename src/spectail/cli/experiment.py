"""`spectail experiment list|plan|run|status|table|script`: the paper's tables as runs, whole or any slice."""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table as RichTable

from ..experiments.catalog import EXPERIMENTS, find_experiment
from ..experiments.cost import StepTimes, in_words, learn, run_seconds
from ..experiments.frontier import with_gains
from ..experiments.planning import Plan, Slice, by_name, make_plan
from ..experiments.scales import SCALES, Overrides, Scale
from ..experiments.store import Record, open_store
from ..experiments.tables import as_csv, as_table, make_rows
from ..report.text_table import Table, to_latex, to_markdown
from .console import make_console

USAGE = """usage: spectail experiment ACTION [NAME] [options]

  list      the experiments, and how far each is
  plan      cells, runs and expected time of one, or of all
  run       train what is missing
  status    what is done, running, failed, and why
  table     our numbers beside the published ones
  figure    trade-off curves, bars of the worst class, confusions, sweeps, as a picture
  script    a Slurm array of workers on one store

spectail experiment ACTION --help shows the options of an action.
"""


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
    store: str = "runs/experiments.sqlite"
    """File of the results; journal:FILE or the address of a data base for workers on several machines."""

    def plans(self) -> list[Plan]:
        names = list(EXPERIMENTS) if self.name == "all" else [self.name]
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"--seeds must be different whole numbers; got {' '.join(map(str, self.seeds)) or 'none'}."
            )
        found = []
        for name in names:
            experiment = find_experiment(name)
            found.append(make_plan(experiment, self.cells.of(experiment), self.scale, sorted(self.seeds), self.changes))
        return found

    def records(self) -> list[Record]:
        """What the store holds; nothing if there is none yet."""
        try:
            store = open_store(self.store, create=False)
        except FileNotFoundError:
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

    kind: Literal["auto", "trade-off", "worst", "confusion", "sweeps"] = "auto"
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


def run(arguments: list[str]) -> None:
    actions: dict[str, Callable[[list[str]], None]] = {
        "list": _list, "plan": _plan, "run": _run, "status": _status, "table": _table, "figure": _figure,
        "script": _script,
    }  # fmt: skip
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments[0] not in actions:
        close = difflib.get_close_matches(arguments[0], actions, n=1)
        raise ValueError(
            f"unknown action {arguments[0]!r}; "
            + (f"did you mean {close[0]}?" if close else f"use {', '.join(actions)}.")
        )
    actions[arguments[0]](arguments[1:])


def _list(arguments: list[str]) -> None:
    tyro.cli(_Nothing, prog="spectail experiment list", args=arguments)
    table = RichTable("experiment", "what", "cells", "published")
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        numbers = len(experiment.cells) * len(experiment.metrics) if experiment.printed else 0
        table.add_row(name, experiment.title, str(len(experiment.cells)), str(numbers or "-"))
    console = Console(highlight=False)
    console.print(table)
    for scale, text in SCALES.items():
        console.print(f"--scale {scale}: {text}", soft_wrap=True)


@dataclass(frozen=True)
class _Nothing:
    """The experiments by name."""


def _plan(arguments: list[str]) -> None:
    asked = tyro.cli(PlanAction, prog="spectail experiment plan", args=arguments)
    plans, records, console = asked.plans(), asked.records(), make_console()
    times = StepTimes(_beside(asked.store, "step_times.json"))
    if asked.measure:
        for model, pixels in dict.fromkeys((run.sized.model, run.sized.pixels) for plan in plans for run in plan.runs):
            seconds = times.measure(model, pixels, asked.device)
            console.print(f"{model} at {pixels} x {pixels}: {1000 * seconds:.1f} ms an image on {asked.device}")
    done = {name for name, found in by_name(records).items() if any(record.status == "done" for record in found)}
    table, total, unknown, seen = RichTable("experiment", "cells", "runs", "done", "left", "time"), 0.0, 0, set[str]()
    for plan in plans:
        learn(times, plan, records)
        left = list({run.name: run for run in plan.runs if run.name not in done}.values())
        seconds_left = [run_seconds(run, times) for run in left]
        known, runs = [value for value in seconds_left if value is not None], len({run.name for run in plan.runs})
        words = in_words(sum(known)) if known else ("-" if not left else "not measured")
        if known and len(known) < len(left):
            words += f" + {len(left) - len(known)} not measured"
        new = [value for run, value in zip(left, seconds_left, strict=True) if run.name not in seen]
        seen |= {run.name for run in left}
        total, unknown = total + sum(value or 0.0 for value in new), unknown + sum(value is None for value in new)
        table.add_row(plan.experiment.name, str(len(plan.cells)), str(runs), str(runs - len(left)), str(len(left)),
                      words)  # fmt: skip
    console.print(table)
    if asked.all_cells:
        for plan in plans:
            for cell in plan.cells:
                reason = plan.refused.get(cell)
                console.print(f"  {cell}" + (f": not at this scale, {reason}" if reason else ""), soft_wrap=True)
    refused = [reason for plan in plans for reason in plan.refused.values()]
    for reason, count in Counter(refused).items():
        console.print(f"{count} cells are left out: {reason}.", soft_wrap=True)
    console.print(f"scale {asked.scale}: {SCALES[asked.scale]}", soft_wrap=True)
    words = f"{len(seen):,} different runs to do (experiments share some)"
    words += f", about {in_words(total)} one after another" if total else ""
    console.print(words + (f"; {unknown:,} have no measured step time: add --measure." if unknown else "."))


def _run(arguments: list[str]) -> None:
    asked = tyro.cli(RunAction, prog="spectail experiment run", args=arguments)
    plans = asked.plans()
    if asked.workers > 1:
        _say_refused(plans, make_console())
        _several(asked, arguments)
        _print_tables(plans, asked.records(), make_console())
        return
    from ..experiments.worker import Way, Worker, in_order  # noqa: PLC0415 - torch is slow to import
    from ..training.signals import Interrupted  # noqa: PLC0415

    console = make_console()
    if not os.environ.get("SPECTAIL_WORKER"):
        _say_refused(plans, console)
    runs = in_order({run.name: run for plan in plans for run in plan.runs}.values())
    way = Way(asked.folder, _roots(asked.root), asked.device, asked.loaders, asked.processes, asked.keep, asked.retry,
              asked.lease)  # fmt: skip
    store = open_store(asked.store)
    worker = Worker(store, way, lambda text: console.print(text, soft_wrap=True))
    try:
        tally = worker.work(runs)
    except Interrupted as message:
        console.print(f"spectail experiment: {message}", soft_wrap=True)
        raise SystemExit(130) from None
    finally:
        store.close()
    if worker.missing and not worker.identities:
        raise ValueError(_elsewhere(worker.missing))
    if not os.environ.get("SPECTAIL_WORKER"):
        _print_tables(plans, asked.records(), console)
    console.print(f"{tally.done} runs trained, {tally.kept} were done, {tally.busy} are with other workers, "
                  f"{tally.failed} failed")  # fmt: skip
    if tally.failed:
        raise ValueError(f"{tally.failed} runs failed; `spectail experiment status` says why, --retry tries again.")


def _say_refused(plans: list[Plan], console: Console) -> None:
    for plan in plans:
        for reason, count in Counter(plan.refused.values()).items():
            which = "1 cell is" if count == 1 else f"{count} cells are"
            console.print(f"{plan.experiment.name}: {which} left out: {reason}.", soft_wrap=True)


def _several(asked: RunAction, arguments: list[str]) -> None:
    """Workers on one store, each a process of its own."""
    command = [sys.executable, "-m", "spectail", "experiment", "run", *arguments, "--workers", "1"]
    environment = dict(os.environ) | {"SPECTAIL_WORKER": "1"}
    if asked.threads:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(asked.threads))
    workers = [subprocess.Popen(command, env=environment) for _ in range(asked.workers)]
    try:
        codes = [worker.wait() for worker in workers]
    except KeyboardInterrupt:  # they heard it too, and save what they have
        codes = [worker.wait() for worker in workers]
        raise SystemExit(130) from None
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
    if any(codes):
        raise ValueError(f"{sum(map(bool, codes))} of {len(codes)} workers ended with an error; see above.")


def _print_tables(plans: list[Plan], records: list[Record], console: Console) -> None:
    for plan in plans:
        rows, remarks = make_rows(plan, records)
        filled = with_gains([row for row in rows if row.seeds])
        if filled:
            _show(console, as_table(plan, filled))
        for remark in remarks:
            console.print(remark, soft_wrap=True)


def _status(arguments: list[str]) -> None:
    asked = tyro.cli(StatusAction, prog="spectail experiment status", args=arguments)
    found, console = by_name(asked.records(), any_code=asked.code == "any"), make_console()
    table = RichTable("experiment", "runs", "done", "running", "lost", "failed", "missing")
    failures: dict[str, str] = {}
    for plan in asked.plans():
        states: Counter[str] = Counter()
        for run in plan.runs:
            records = found.get(run.name, [])
            best = min((record.status for record in records), key=_order, default="missing")
            states[best if best != "waiting" else "missing"] += 1
            if best == "failed":
                failures[f"{run.cell}, seed {run.seed}"] = records[0].error or "no reason given"
        cells = (states[state] for state in ("done", "running", "lost", "failed", "missing"))
        table.add_row(plan.experiment.name, str(len(plan.runs)), *map(str, cells))
    console.print(table)
    for cell, error in failures.items():
        console.print(f"failed: {cell}: {error.splitlines()[-1]}", soft_wrap=True)


def _order(status: str) -> int:
    return ("done", "running", "lost", "waiting", "failed").index(status)


def _table(arguments: list[str]) -> None:
    asked = tyro.cli(TableAction, prog="spectail experiment table", args=arguments)
    records, console, texts = asked.records(), make_console(), []
    others = len(records) - sum(map(len, by_name(records).values()))
    for plan in asked.plans():
        rows, remarks = make_rows(plan, records, any_code=asked.code == "any")
        rows = with_gains(rows if asked.empty else [row for row in rows if row.seeds])
        table = as_table(plan, rows)
        write = {"markdown": to_markdown, "latex": to_latex}.get(asked.format)
        if asked.format == "text" and asked.output is None:
            _show(console, table)
        else:
            texts.append(as_csv(plan, rows) if asked.format == "csv" else (write or to_markdown)(table))
        for remark in remarks:
            make_console(stderr=True).print(remark, soft_wrap=True)
    if others and asked.code == "same":
        make_console(stderr=True).print(f"{others} results of other versions of the code are not shown (--code any).")
    if asked.output is not None:
        from ..data.storage import whole_file  # noqa: PLC0415

        with whole_file(asked.output) as temporary:
            temporary.write_text("\n".join(texts), encoding="utf-8")
        console.print(f"table in {asked.output}", soft_wrap=True)
    elif texts:
        print("\n".join(texts), end="")


def _figure(arguments: list[str]) -> None:
    asked = tyro.cli(FigureAction, prog="spectail experiment figure", args=arguments)
    (plan, *others) = asked.plans()
    if others:
        raise ValueError("a figure shows one experiment; name it.")
    usual = {"trade-off": "trade-off", "selection": "trade-off", "sweeps": "sweeps", "figures": "worst"}
    kind = usual.get(plan.experiment.name, "worst") if asked.kind == "auto" else asked.kind
    from ..experiments.draw import draw  # noqa: PLC0415 - matplotlib is slow to import

    draw(plan, asked.records(), kind, asked.output, any_code=asked.code == "any")
    make_console().print(f"figure in {asked.output}", soft_wrap=True)


def _script(arguments: list[str]) -> None:
    from ..experiments.slurm import array_script  # noqa: PLC0415

    asked = tyro.cli(ScriptAction, prog="spectail experiment script", args=arguments)
    asked.plans()  # a wrong name is said now, not on the cluster
    own, rest = {"--count", "--hours", "--gpus", "--cpus", "--partition"}, []
    waiting = iter(arguments)
    for argument in waiting:
        if argument in own:
            next(waiting)
        elif argument.split("=")[0] not in own:
            rest.append(argument)
    store = [] if any(argument.split("=")[0] == "--store" for argument in rest) else ["--store", asked.store]
    command = ["python", "-m", "spectail", "experiment", "run", *rest, *store]
    print(array_script(command, count=asked.count, hours=asked.hours, gpus=asked.gpus, cpus=asked.cpus,
                       partition=asked.partition, processes=1))  # fmt: skip


def _roots(given: tuple[str, ...]) -> dict[str, Path]:
    roots = {}
    for text in given:
        name, mark, path = text.partition("=")
        roots[name if mark else ""] = Path(path if mark else text).expanduser()
    return roots


def _elsewhere(missing: dict[str, str]) -> str:
    """None of the data is there: how to get it, and what can run without."""
    reason = next(iter(missing.values()))
    can = [name for name in EXPERIMENTS if any(cell.dataset == "glyphs-lt" for cell in find_experiment(name).cells)]
    return f"{reason} Without any data, the cells of {', '.join(can)} on --dataset glyphs-lt can run now."


def _show(console: Console, table: Table) -> None:
    title, _, notes = table.title.partition(" Notes: ")
    shown = RichTable(title=title, title_justify="left", title_style="bold")
    for place, name in enumerate(table.header):
        shown.add_column(name, justify="left" if place < table.words else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in notes.split("; ") if notes else ():
        console.print(f"  {note}", soft_wrap=True)


def _beside(store: str, name: str) -> Path:
    """A file beside the store; beside the default one where the store is no file."""
    path = Path(store.removeprefix("journal:"))
    return (Path("runs") if "://" in store else path.parent) / name
