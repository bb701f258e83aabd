"""From finished runs of a plan to a figure in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..report.curves import find_panels, save_curves
from ..report.run_record import read_run
from .cells import Cell
from .figures import check_format, confusions, diagnostics, save, sweeps, trade_off, worst_bars
from .planning import Plan
from .record import Record
from .tables import chosen_records, make_rows

SHOWN = ("WB", "BALMS", "CAR")
"""Whose confusions the paper draws."""


def draw(plan: Plan, records: Iterable[Record], kind: str, path: Path, *, any_code: bool = False) -> None:
    check_format(path)
    records = list(records)
    done, _ = chosen_records(plan, records, any_code=any_code)
    with_results = {_place(run.cell) for run in plan.runs if run.name in done}
    if len(with_results) > 1:
        raise ValueError(
            f"a figure shows one cut of one data set with one backbone, and there are results of {len(with_results)}: "
            "choose with --setting, --dataset, --imbalance and --backbone."
        )
    place = next(iter(with_results), _place(plan.cells[0]))
    setting, dataset, imbalance, _ = place
    seeds = len({run.seed for run in plan.runs if run.name in done})
    cut = "" if imbalance is None else f", imbalance factor {imbalance:g}"
    how = "from scratch" if setting == "scratch" else "pretrained"
    shown = next(cell for cell in plan.cells if _place(cell) == place)
    title = f"{dataset}{cut}, {how}, scale {plan.label(shown)}, {seeds} seed{'s' if seeds != 1 else ''}"
    if kind == "sweeps" and plan.experiment.name == "sweeps":
        save(sweeps(make_rows(plan, records, any_code=any_code)[0], title), path)
    elif kind == "sweeps":
        runs = [read_run(_folder(done[run.name])) for run in plan.runs if run.name in done]
        save_curves(
            find_panels(runs, validation=any(metric.startswith("val_") for metric in plan.experiment.metrics)), path
        )
    elif kind in ("confusion", "diagnostics"):
        folders: dict[str, list[Path]] = {}
        for run in plan.runs:
            if run.name in done:
                folders.setdefault(run.cell.label, []).append(_folder(done[run.name]))
        if kind == "diagnostics":
            save(diagnostics(folders, title), path)
            return
        papers = {label: folders[label] for label in SHOWN if label in folders}
        save(confusions(papers if len(papers) > 1 else dict(list(folders.items())[:4]), title), path)
    else:
        rows, _ = make_rows(plan, records, any_code=any_code)
        save((trade_off if kind == "trade-off" else worst_bars)(rows, title), path)


def _place(cell: Cell) -> tuple[str, str, float | None, str]:
    return cell.setting, cell.dataset, cell.imbalance, cell.backbone


def _folder(record: Record) -> Path:
    if record.folder is None or not Path(record.folder).is_dir():
        raise ValueError(
            f"the folder of {record.about['cell']}, seed {record.about['seed']}, is not here ({record.folder}); "
            "draw the figure where it was trained, or train it here."
        )
    return Path(record.folder)
