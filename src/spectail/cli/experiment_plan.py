"""`spectail experiment plan`: the cells and runs of experiments, and what they will cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..experiments.cost import Estimate, StepTimes, estimate, in_words, learn, name_of
from ..experiments.devices import TFLOPS, image_seconds, precision_on_gpu
from ..experiments.index import Record
from ..experiments.planning import Plan, by_name
from ..experiments.scales import SCALES
from .console import make_console
from .experiment_options import PlanAction


def show_plan(asked: PlanAction) -> None:
    plans, records, console = asked.plans(), asked.records(), make_console()
    times = _step_times(asked, plans, records, console)
    done = {name for name, found in by_name(records).items() if any(record.status == "done" for record in found)}
    table = Table("experiment", "cells", "runs", "done", "left", "time")
    for plan in plans:
        left = list({run.name: run for run in plan.runs if run.name not in done}.values())
        runs, cost = len({run.name for run in plan.runs}), estimate(left, times)
        table.add_row(plan.experiment.name, str(len(plan.cells)), str(runs), str(runs - len(left)), str(len(left)),
                      cost.words)  # fmt: skip
    console.print(table)
    if asked.all_cells:
        for plan in plans:
            for cell in plan.cells:
                cost = estimate([run for run in plan.runs if run.cell == cell], times)
                reason = plan.refused.get(cell)
                console.print(f"  {cell}: " + (f"not at this scale, {reason}" if reason else cost.words),
                              soft_wrap=True)  # fmt: skip
    say_refused(Counter(reason for plan in plans for reason in plan.refused.values()), console)
    console.print(f"scale {asked.scale}: {SCALES[asked.scale]}", soft_wrap=True)
    whole = estimate([run for plan in plans for run in plan.runs if run.name not in done], times)
    where = ""
    if asked.on is not None and whole.total:
        precision = next(precision_on_gpu(run) for plan in plans for run in plan.runs)
        where = f" on one {asked.on} at {TFLOPS[asked.on][precision]:g} TFLOPS ({precision})"
    console.print(f"{len(whole.seconds):,} different runs to do (experiments share some){_time(whole, where)}.",
                  soft_wrap=True)  # fmt: skip


def _step_times(asked: PlanAction, plans: list[Plan], records: list[Record], console: Console) -> StepTimes:
    """Those of a GPU of the table, or what was measured on this machine."""
    times = StepTimes(Path(asked.store).parent / "step_times.json")
    runs = {name_of(run.sized.model, run.sized.pixels): run for plan in plans for run in plan.runs}
    if asked.on is not None:
        if asked.measure:
            raise ValueError("--measure times this machine and --on counts for a GPU; leave one of them out.")
        times.known = {name: image_seconds(run, asked.on) for name, run in runs.items()}
        return times
    device = "cpu" if asked.how.device == "auto" else asked.how.device
    for run in runs.values() if asked.measure else ():
        seconds = times.measure(run.sized.model, run.sized.pixels, device)
        size = f"{run.sized.pixels} x {run.sized.pixels}"
        console.print(f"{run.sized.model} at {size}: {1000 * seconds:.1f} ms an image on {device}")
    for plan in plans:
        learn(times, plan, records)
    return times


def _time(whole: Estimate, where: str) -> str:
    time = f", about {in_words(whole.total)} one after another{where}" if whole.total else ""
    if whole.unknown:
        time += f"; {whole.unknown:,} {'has' if whole.unknown == 1 else 'have'} no measured step time: add --measure"
    elif whole.passes:
        time += "; computing features comes on top and was not measured: add --measure"
    return time


def say_refused(reasons: Counter[str], console: Console, where: str = "") -> None:
    for reason, count in reasons.items():
        which = "1 cell is" if count == 1 else f"{count} cells are"
        console.print(f"{where}{which} left out: {reason}.", soft_wrap=True)
