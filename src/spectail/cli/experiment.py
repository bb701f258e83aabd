"""`spectail experiment list|plan|run|status|table|script`: the paper's tables as runs, whole or any slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table as RichTable

from .._utils.names import nearest
from ..diagnosis.text_table import Table, to_latex, to_markdown
from ..experiments.catalog import EXPERIMENTS, find_experiment
from ..experiments.frontier import with_distances
from ..experiments.index import Index, Record, last_line
from ..experiments.planning import Plan, by_name, outside
from ..experiments.scales import SCALES
from ..experiments.tables import as_csv, as_table, layout, make_rows
from .arguments import read_flags
from .console import make_console
from .experiment_options import (
    HOW,
    FigureAction,
    ListAction,
    PlanAction,
    RunAction,
    ScriptAction,
    StatusAction,
    TableAction,
    once,
    without,
)
from .experiment_plan import say_refused, show_plan
from .outputs import check_output

if TYPE_CHECKING:
    from ..experiments.driver import Driver
    from ..experiments.task import Outcome

USAGE = """usage: spectail experiment ACTION [NAME] [options]

  list      the experiments, their cells, and how many numbers are published
  plan      cells, runs and expected time of one, or of all
  run       train what is missing
  status    what is done, what is running, what failed and why
  table     our numbers beside the published ones
  figure    a picture: trade-off, worst class, confusions, sweeps or diagnostics
  script    a Slurm job that starts Ray on its machines and runs there

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
        raise ValueError(f"unknown action {arguments[0]!r}; {nearest(arguments[0], actions)}")
    actions[arguments[0]](arguments[1:])


def _list(arguments: list[str]) -> None:
    read_flags(ListAction, "spectail experiment list", once(arguments))
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
    show_plan(read_flags(PlanAction, "spectail experiment plan", once(arguments), hidden=HOW))


def _run(arguments: list[str]) -> None:
    asked = read_flags(RunAction, "spectail experiment run", once(arguments))
    how, console = asked.how, make_console()
    plans = asked.plans()
    how.check()
    tasks = asked.tasks(plans)
    for plan in plans:
        say_refused(Counter(plan.refused.values()), console, f"{plan.experiment.name}: ")
    from .many_runs import carry_out_all  # noqa: PLC0415 - torch is slow to import

    driver = carry_out_all(tasks, how.engine, Path(asked.store), how.folder, how.device, console,
                           command="experiment", retry=how.retry)  # fmt: skip
    tally = driver.tally
    if tally.no_data and tally.left == len(tasks):
        raise ValueError(_elsewhere(list(tally.no_data.values())))
    failed = len(tally.failures)
    if asked.rehearse:
        _say_rehearsed(plans, driver, console)
    else:
        _print_tables(plans, asked.records(), console)
        console.print(f"{tally.done} runs trained, {tally.kept} were done, {failed} failed, {tally.left} left out",
                      soft_wrap=True)  # fmt: skip
    problems = []
    if tally.left:
        problems.append(f"{tally.left} runs were left out, since their data or weights cannot be used (see above)")
    if failed:
        where = f"`spectail experiment status{asked.shown_store}`"
        problems.append(f"{failed} run{'s' * (failed > 1)} failed: {where} says why, and --retry tries again")
    if problems:
        raise ValueError("; ".join(problems) + ".")


def _say_rehearsed(plans: list[Plan], driver: Driver, console: Console) -> None:
    from ..experiments.rehearsal import name_of  # noqa: PLC0415 - torch is slow to import

    passed = {name: outcome.results for name, outcome in driver.outcomes.items() if outcome.results is not None}
    without = [{*plan.refused, *(run.cell for run in plan.runs if name_of(run.name) not in passed)} for plan in plans]
    cells = sum(len(plan.cells) for plan in plans)
    console.print(f"{cells - sum(map(len, without))} of {cells} cells rehearsed in {len(passed)} different runs: "
                  "they start, step, save, resume and evaluate.", soft_wrap=True)  # fmt: skip
    random = sum(results["random_weights"] for results in passed.values())
    if random:
        console.print(f"{random} of these runs had random weights: pretrained ones are not at hand.", soft_wrap=True)


def _print_tables(plans: list[Plan], records: list[Record], console: Console) -> None:
    for plan in plans:
        rows, remarks = make_rows(plan, records)
        filled = with_distances([row for row in rows if row.seeds])
        if filled:
            _show(console, as_table(plan, filled))
        for remark in remarks:
            console.print(remark, soft_wrap=True)


def _status(arguments: list[str]) -> None:
    asked = read_flags(StatusAction, "spectail experiment status", once(arguments), hidden=HOW)
    every, plans, console, any_code = asked.records(needed=True), asked.plans(), make_console(), asked.code == "any"
    found = by_name(every, any_code=any_code)
    table = RichTable("experiment", "runs", "done", "running", "failed", "missing")
    failed: dict[str, Record] = {}
    for plan in plans:
        states: Counter[str] = Counter()
        for run in plan.runs:
            records = found.get(run.name, [])
            best = min((record.status for record in records), key=_order, default="missing")
            states[best] += 1
            if best == "failed":
                failed[records[0].key] = records[0]
        cells = (states[state] for state in ("done", "running", "failed", "missing"))
        table.add_row(plan.experiment.name, str(len(plan.runs)), *map(str, cells))
    console.print(table)
    if any(record.status == "running" for record in every):
        with Index(asked.store) as index:
            console.print(f"driver: {index.driver() or 'none; what was running continues with the next run'}",
                          soft_wrap=True)  # fmt: skip
    others = outside(plans, every, any_code=any_code)
    if others:
        counts = Counter(record.status for record in others)
        words = ", ".join(f"{counts[state]} {state}" for state in ("done", "running", "failed"))
        console.print(
            f"beside these, of other seeds, scales, cells or options and of rehearsals, the store holds {words}",
            soft_wrap=True,
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
    return ("done", "running", "failed").index(status)


def _table(arguments: list[str]) -> None:
    asked = read_flags(TableAction, "spectail experiment table", once(arguments), hidden=HOW)
    if asked.output is not None:
        check_output(asked.output)
    records, console, texts, shown = asked.records(needed=True), make_console(), [], False
    for plan in asked.plans():
        rows, remarks = make_rows(plan, records, any_code=asked.code == "any")
        rows = with_distances(rows if asked.empty else [row for row in rows if row.seeds])
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
    asked = read_flags(FigureAction, "spectail experiment figure", once(arguments), hidden=HOW)
    check_output(asked.output)
    (plan, *others) = asked.plans()
    if others:
        raise ValueError("a figure shows one experiment; name it.")
    usual = {name: name for name in ("trade-off", "sweeps", "diagnostics")} | {"selection": "trade-off"}
    kind = usual.get(plan.experiment.name, "worst") if asked.kind == "auto" else asked.kind
    from ..experiments.draw import draw  # noqa: PLC0415 - matplotlib is slow to import

    draw(plan, asked.records(needed=True), kind, asked.output, any_code=asked.code == "any")
    make_console().print(f"figure in {asked.output}", soft_wrap=True)


def _script(arguments: list[str]) -> None:
    from ..experiments.slurm import ray_script  # noqa: PLC0415

    asked = read_flags(ScriptAction, "spectail experiment script", once(arguments))
    asked.plans()  # a wrong name is said now, not on the cluster
    rest = without(arguments, {"--nodes", "--hours", "--gpus", "--cpus", "--partition", "--engine", "--address"})
    print(ray_script(["python", "-m", "spectail", "experiment", "run", *rest], nodes=asked.nodes, hours=asked.hours,
                     gpus=asked.gpus, cpus=asked.cpus, partition=asked.partition), end="")  # fmt: skip


def _elsewhere(missing: list[Outcome]) -> str:
    """None of the data can be used: why, and what can run without any."""
    if not all(outcome.absent for outcome in missing):
        return next(outcome.error for outcome in missing if not outcome.absent)
    can = [name for name in EXPERIMENTS if any(cell.dataset == "glyphs-lt" for cell in find_experiment(name).cells)]
    return f"{missing[0].error} Without any data, the cells of {', '.join(can)} on --dataset glyphs-lt can run now."


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
