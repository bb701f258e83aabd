"""From finished runs of a plan to a figure in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..report.curves import find_panels, save_curves
from ..report.figures import check_format, save
from ..report.run_record import read_run
from .confusion_figure import confusions
from .figures import diagnostics, sweeps, trade_off, worst_bars
from .grids import CONFUSED
from .index import Record
from .planning import Plan
from .tables import chosen_records, make_rows

Ground = tuple[str, str, float | None, str]
HOW = {"scratch": "from scratch", "pretrained": "pretrained"}
"""Settings in the order of the paper's figures."""


def draw(plan: Plan, records: Iterable[Record], kind: str, path: Path, *, any_code: bool = False) -> None:
    check_format(path)
    records = list(records)
    done, _ = chosen_records(plan, records, any_code=any_code)
    found = {run.cell.ground for run in plan.runs if run.name in done}
    grounds = sorted(found, key=lambda ground: list(HOW).index(ground[0]))
    alike = kind == "confusion" and len({ground[1:] for ground in grounds}) == 1  # one figure has both settings
    if len(grounds) > 1 and not alike:
        raise ValueError(
            f"a figure shows one cut of one data set with one backbone, and there are results of {len(grounds)}: "
            "choose with --setting, --dataset, --imbalance and --backbone."
        )
    ground = grounds[0] if grounds else plan.cells[0].ground
    setting, dataset, imbalance, _ = ground
    seeds = len({run.seed for run in plan.runs if run.name in done})
    cut = "" if imbalance is None else f", imbalance factor {imbalance:g}"
    how = f", {HOW[setting]}" if len(grounds) < 2 else ""
    shown = next(cell for cell in plan.cells if cell.ground == ground)
    title = f"{dataset}{cut}{how}, scale {plan.label(shown)}, {seeds} seed{'s' if seeds != 1 else ''}"
    if kind == "sweeps" and plan.experiment.name != "sweeps":
        runs = [read_run(_folder(done[run.name])) for run in plan.runs if run.name in done]
        validation = any(metric.startswith("val_") for metric in plan.experiment.metrics)
        save_curves(find_panels(runs, validation=validation), path)
    elif kind == "diagnostics":
        save(diagnostics(_folders(plan, done), title), path)
    elif kind == "confusion":
        save(confusions({HOW[place[0]]: _confused(_folders(plan, done, place)) for place in grounds}, title), path)
    else:
        rows, _ = make_rows(plan, records, any_code=any_code)
        save({"trade-off": trade_off, "sweeps": sweeps}.get(kind, worst_bars)(rows, title), path)


def _confused(folders: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """The methods that the paper draws; where not two of them are there, the first four of any."""
    papers = {label: folders[label] for label in CONFUSED if label in folders}
    return papers if len(papers) > 1 else dict(list(folders.items())[:4])


def _folders(plan: Plan, done: Mapping[str, Record], ground: Ground | None = None) -> dict[str, list[Path]]:
    """The folders of the finished runs of each method, on one ground if it is named."""
    found: dict[str, list[Path]] = {}
    for run in plan.runs:
        if run.name in done and ground in (None, run.cell.ground):
            found.setdefault(run.cell.label, []).append(_folder(done[run.name]))
    return found


def _folder(record: Record) -> Path:
    if record.folder is None or not Path(record.folder).is_dir():
        raise ValueError(
            f"the folder of {record.about['cell']}, seed {record.about['seed']}, is not here ({record.folder}); "
            "draw the figure where it was trained, or train it here."
        )
    return Path(record.folder)
