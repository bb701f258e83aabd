"""`spectail experiment list|plan|run|status|table|script`: the paper's tables as runs, whole or any slice."""

from __future__ import annotations

import difflib
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table as RichTable

from ..diagnosis.text_table import Table, to_latex, to_markdown
from ..experiments.catalog import EXPERIMENTS, find_experiment
from ..experiments.cost import StepTimes, estimate, in_words, learn
from ..experiments.frontier import with_gains
from ..experiments.planning import Plan, by_name, in_order, outside
from ..experiments.record import last_line
from ..experiments.scales import SCALES
from ..experiments.store import Record, open_store
from ..experiments.tables import as_csv, as_table, layout, make_rows
from .console import make_console
from .experiment_options import (
    FigureAction,
    Nothing,
    PlanAction,
    RunAction,
    ScriptAction,
    StatusAction,
    TableAction,
    beside,
    given,
    once,
    to_look,
    without,
)

USAGE = """usage: spectail experiment ACTION [NAME] [options]

  list      the experiments: what each shows, its cells, how many numbers are published
  plan      cells, runs and expected time of one, or of all
  run       train what is missing
  status    what is done, running, failed, and why
  table     our numbers beside the published ones
  figure    trade-off curves, bars of the worst class, confusions, sweeps, diagnostics, as a picture
  script    a Slurm array of workers on one store

spectail experiment ACTION --help shows the options of an action.
"""


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
    tyro.cli(Nothing, prog="spectail experiment list", args=once(arguments))
    table = RichTable("experiment", "what", "cells", "published")
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        numbers = len(experiment.cells) * len(experiment.metrics) if experiment.printed else 0
        table.add_row(name, experiment.title, str(len(experiment.cells)), str(numbers or "-"))
    console = Console(highlight=False)
    console.print(table)
    for scale, text in SCALES.items():
        console.print(f"--scale {scale}: {text}", soft_wrap=True)


def _plan(arguments: list[str]) -> None:
    asked = tyro.cli(PlanAction, prog="spectail experiment plan", args=to_look(arguments, PlanAction))
    plans, records, console = asked.plans(), asked.records(), make_console()
    times = StepTimes(beside(asked.store, "step_times.json"))
    if asked.measure:
        for model, pixels in dict.fromkeys((run.sized.model, run.sized.pixels) for plan in plans for run in plan.runs):
            seconds = times.measure(model, pixels, asked.device)
            console.print(f"{model} at {pixels} x {pixels}: {1000 * seconds:.1f} ms an image on {asked.device}")
    done = {name for name, found in by_name(records).items() if any(record.status == "done" for record in found)}
    table = RichTable("experiment", "cells", "runs", "done", "left", "time")
    for plan in plans:
        learn(times, plan, records)
    for plan in plans:
        left = list({run.name: run for run in plan.runs if run.name not in done}.values())
        runs, cost = len({run.name for run in plan.runs}), estimate(left, times)
        table.add_row(plan.experiment.name, str(len(plan.cells)), str(runs), str(runs - len(left)), str(len(left)),
                      cost.words)  # fmt: skip
    whole = estimate([run for plan in plans for run in plan.runs if run.name not in done], times)
    console.print(table)
    if asked.all_cells:
        for plan in plans:
            for cell in plan.cells:
                reason = plan.refused.get(cell)
                console.print(f"  {cell}" + (f": not at this scale, {reason}" if reason else ""), soft_wrap=True)
    _say_refused(Counter(reason for plan in plans for reason in plan.refused.values()), console)
    console.print(f"scale {asked.scale}: {SCALES[asked.scale]}", soft_wrap=True)
    time = f", about {in_words(whole.total)} one after another" if whole.total else ""
    if whole.unknown:
        time += f"; {whole.unknown:,} {'has' if whole.unknown == 1 else 'have'} no measured step time: add --measure"
    elif whole.passes:
        time += "; computing features comes on top and was not measured: add --measure"
    console.print(f"{len(whole.seconds):,} different runs to do (experiments share some){time}.", soft_wrap=True)


def _run(arguments: list[str]) -> None:
    asked = tyro.cli(RunAction, prog="spectail experiment run", args=once(arguments))
    asked.check()
    plans, console = asked.plans(), make_console()
    if not os.environ.get("SPECTAIL_WORKER"):
        for plan in plans:
            _say_refused(Counter(plan.refused.values()), console, f"{plan.experiment.name}: ")
    if asked.workers > 1:
        codes = _several(asked, arguments)
        _print_tables(plans, asked.records(), console)
        if any(codes):
            raise ValueError(f"{sum(map(bool, codes))} of {len(codes)} workers ended with an error; see above.")
        return
    from ..experiments.worker import Way, Worker  # noqa: PLC0415 - torch is slow to import
    from ..training.signals import Interrupted  # noqa: PLC0415

    runs = in_order({run.name: run for plan in plans for run in plan.runs}.values())
    way = Way(asked.folder, asked.roots(), asked.device, asked.loaders, asked.processes, asked.keep, asked.retry,
              asked.lease, asked.threads, asked.wait)  # fmt: skip
    way.check()  # before a store is made
    store = open_store(asked.store)
    worker = Worker(store, way, lambda text: console.print(text, soft_wrap=True))
    try:
        tally = worker.work(runs)
    except (Interrupted, KeyboardInterrupt):
        console.print("spectail experiment: stopped; the same command goes on.", soft_wrap=True)
        raise SystemExit(130) from None
    finally:
        store.close()
    if worker.missing and not worker.identities:
        raise ValueError(_elsewhere(worker.missing, worker.absent))
    if not os.environ.get("SPECTAIL_WORKER"):
        _print_tables(plans, asked.records(), console)
    console.print(f"{tally.done} runs trained, {tally.kept} were done, {tally.busy} are with other workers, "
                  f"{tally.failed} failed, {tally.left} left out", soft_wrap=True)  # fmt: skip
    problems = (
        [f"{tally.left} runs were left out, since their data or weights cannot be used (see above)"]
        if tally.left
        else []
    )
    if tally.failed:
        several, where = "s" * (tally.failed > 1), f"`spectail experiment status{given(asked.store)}`"
        problems.append(f"{tally.failed} run{several} failed: {where} says why, and --retry tries again")
    if problems:
        raise ValueError("; ".join(problems) + ".")


def _say_refused(reasons: Counter[str], console: Console, where: str = "") -> None:
    for reason, count in reasons.items():
        which = "1 cell is" if count == 1 else f"{count} cells are"
        console.print(f"{where}{which} left out: {reason}.", soft_wrap=True)


def _several(asked: RunAction, arguments: list[str]) -> list[int]:
    from ..experiments.slurm import run_workers  # noqa: PLC0415

    command = [sys.executable, "-m", "spectail", "experiment", "run", *without(arguments, {"--workers"})]
    codes, heard = run_workers(command, asked.workers, asked.threads)
    if heard is not None:
        print(f"spectail experiment: stopped with all {len(codes)} workers; the same command goes on.", file=sys.stderr)
        raise SystemExit(128 + heard)
    return codes


def _print_tables(plans: list[Plan], records: list[Record], console: Console) -> None:
    for plan in plans:
        rows, remarks = make_rows(plan, records)
        filled = with_gains([row for row in rows if row.seeds])
        if filled:
            _show(console, as_table(plan, filled))
        for remark in remarks:
            console.print(remark, soft_wrap=True)


def _status(arguments: list[str]) -> None:
    asked = tyro.cli(StatusAction, prog="spectail experiment status", args=to_look(arguments, StatusAction))
    every, plans, console, any_code = asked.records(needed=True), asked.plans(), make_console(), asked.code == "any"
    found = by_name(every, any_code=any_code)
    table = RichTable("experiment", "runs", "done", "running", "lost", "failed", "missing")
    failed: dict[str, Record] = {}
    for plan in plans:
        states: Counter[str] = Counter()
        for run in plan.runs:
            records = found.get(run.name, [])
            best = min((record.status for record in records), key=_order, default="missing")
            states[best if best != "waiting" else "missing"] += 1
            if best == "failed":
                failed[records[0].key] = records[0]
        cells = (states[state] for state in ("done", "running", "lost", "failed", "missing"))
        table.add_row(plan.experiment.name, str(len(plan.runs)), *map(str, cells))
    console.print(table)
    others = outside(plans, every, any_code=any_code)
    if others:
        counts = Counter(record.status for record in others)
        words = ", ".join(f"{counts[state]} {state}" for state in ("done", "running", "lost", "failed"))
        console.print(
            f"beside these, of other seeds, scales, cells or options, the store holds {words}", soft_wrap=True
        )
    failed |= {record.key: record for record in others if record.status == "failed"}
    for record in failed.values():
        about = record.about
        console.print(f"failed: {about['cell']}, seed {about['seed']}: {last_line(record.error)}", soft_wrap=True)
    _say_other_code(every, any_code)


def _say_other_code(records: list[Record], any_code: bool) -> None:
    others = len(records) - sum(map(len, by_name(records).values()))
    if others and not any_code:
        words = f"{others} records of other versions of the code are not shown (--code any)."
        make_console(stderr=True).print(words, soft_wrap=True)


def _order(status: str) -> int:
    return ("done", "running", "lost", "waiting", "failed").index(status)


def _table(arguments: list[str]) -> None:
    asked = tyro.cli(TableAction, prog="spectail experiment table", args=to_look(arguments, TableAction))
    records, console, texts, shown = asked.records(needed=True), make_console(), [], False
    for plan in asked.plans():
        rows, remarks = make_rows(plan, records, any_code=asked.code == "any")
        rows = with_gains(rows if asked.empty else [row for row in rows if row.seeds])
        if not rows:
            continue
        shown = True
        table = as_table(plan, rows)
        write = {"markdown": to_markdown, "latex": to_latex}.get(asked.format)
        if asked.format == "text" and asked.output is None:
            _show(console, table)
        else:
            texts.append(as_csv(plan, rows) if asked.format == "csv" else (write or to_markdown)(table))
        for remark in remarks:
            make_console(stderr=True).print(remark, soft_wrap=True)
    _say_other_code(records, asked.code == "any")
    if not shown:
        raise ValueError(f"{asked.name} has no such results yet: `spectail experiment run {asked.name}` makes them.")
    if asked.output is not None:
        from .._utils.files import whole_file  # noqa: PLC0415

        with whole_file(asked.output) as temporary:
            temporary.write_text("\n".join(texts), encoding="utf-8")
        console.print(f"table in {asked.output}", soft_wrap=True)
    elif texts:
        print("\n".join(texts), end="")


def _figure(arguments: list[str]) -> None:
    asked = tyro.cli(FigureAction, prog="spectail experiment figure", args=to_look(arguments, FigureAction))
    (plan, *others) = asked.plans()
    if others:
        raise ValueError("a figure shows one experiment; name it.")
    usual = {name: name for name in ("trade-off", "sweeps", "diagnostics")} | {"selection": "trade-off"}
    kind = usual.get(plan.experiment.name, "worst") if asked.kind == "auto" else asked.kind
    from ..experiments.draw import draw  # noqa: PLC0415 - matplotlib is slow to import

    draw(plan, asked.records(needed=True), kind, asked.output, any_code=asked.code == "any")
    make_console().print(f"figure in {asked.output}", soft_wrap=True)


def _script(arguments: list[str]) -> None:
    from ..experiments.slurm import array_script  # noqa: PLC0415

    asked = tyro.cli(ScriptAction, prog="spectail experiment script", args=once(arguments))
    asked.plans()  # a wrong name is said now, not on the cluster
    asked.check()
    rest = without(arguments, {"--count", "--hours", "--gpus", "--cpus", "--partition", "--store"})
    command = ["python", "-m", "spectail", "experiment", "run", *rest, "--store", asked.store]
    print(array_script(command, count=asked.count, hours=asked.hours, gpus=asked.gpus, cpus=asked.cpus,
                       partition=asked.partition, processes=1, share=asked.workers * asked.processes))  # fmt: skip


def _elsewhere(missing: dict[str, str], absent: bool) -> str:
    """None of the data can be used: why, and what can run without any."""
    reason = next(iter(missing.values()))
    if not absent:
        return reason
    can = [name for name in EXPERIMENTS if any(cell.dataset == "glyphs-lt" for cell in find_experiment(name).cells)]
    return f"{reason} Without any data, the cells of {', '.join(can)} on --dataset glyphs-lt can run now."


def _show(console: Console, table: Table) -> None:
    """In several parts, one below the other, where the console is too narrow for all columns."""
    console.print(table.title, style="bold")
    for part in layout(table, console.width):
        shown = RichTable()
        for place, width in part:
            side: Literal["left", "right"] = "left" if place < table.text_columns else "right"
            shown.add_column(table.header[place], justify=side, overflow="fold", width=width)
        for row in table.rows:
            shown.add_row(*(row[place] for place, _ in part))
        console.print(shown)
    for note in table.notes.split("; ") if table.notes else ():
        console.print(f"  {note}", soft_wrap=True)
