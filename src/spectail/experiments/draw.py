"""From finished runs of a plan to a figure in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..report.curves import find_panels, save_curves
from ..report.figures import check_format, save
from ..report.run_record import read_run
from .figures import confusions, diagnostics, sweeps, trade_off, worst_bars
from .index import Record
from .planning import Plan
from .tables import chosen_records, make_rows

SHOWN = ("WB", "BALMS", "CAR")
"""Whose confusions the paper draws."""


def draw(plan: Plan, records: Iterable[Record], kind: str, path: Path, *, any_code: bool = False) -> None:
    check_format(path)
    records = list(records)
    done, _ = chosen_records(plan, records, any_code=any_code)
    with_results = {run.cell.ground for run in plan.runs if run.name in done}
    if len(with_results) > 1:
        raise ValueError(
            f"a figure shows one cut of one data set with one backbone, and there are results of {len(with_results)}: "
            "choose with --setting, --dataset, --imbalance and --backbone."
        )
    ground = next(iter(with_results), plan.cells[0].ground)
    setting, dataset, imbalance, _ = ground
    seeds = len({run.seed for run in plan.runs if run.name in done})
    cut = "" if imbalance is None else f", imbalance factor {imbalance:g}"
    how = "from scratch" if setting == "scratch" else "pretrained"
    shown = next(cell for cell in plan.cells if cell.ground == ground)
    title = f"{dataset}{cut}, {how}, scale {plan.label(shown)}, {seeds} seed{'s' if seeds != 1 else ''}"
    if kind == "sweeps" and plan.experiment.name != "sweeps":
        runs = [read_run(_folder(done[run.name])) for run in plan.runs if run.name in done]
        validation = any(metric.startswith("val_") for metric in plan.experiment.metrics)
        save_curves(find_panels(runs, validation=validation), path)
    elif kind == "diagnostics":
        save(diagnostics(_folders(plan, done), title), path)
    elif kind == "confusion":
        folders = _folders(plan, done)
        papers = {label: folders[label] for label in SHOWN if label in folders}
        save(confusions(papers if len(papers) > 1 else dict(list(folders.items())[:4]), title), path)
    else:
        rows, _ = make_rows(plan, records, any_code=any_code)
        save({"trade-off": trade_off, "sweeps": sweeps}.get(kind, worst_bars)(rows, title), path)


def _folders(plan: Plan, done: Mapping[str, Record]) -> dict[str, list[Path]]:
    """The folders of the finished runs of each method."""
    found: dict[str, list[Path]] = {}
    for run in plan.runs:
        if run.name in done:
            found.setdefault(run.cell.label, []).append(_folder(done[run.name]))
    return found


def _folder(record: Record) -> Path:
    if record.folder is None or not Path(record.folder).is_dir():
        raise ValueError(
            f"the folder of {record.about['cell']}, seed {record.about['seed']}, is not here ({record.folder}); "
            "draw the figure where it was trained, or train it here."
        )
    return Path(record.folder)
