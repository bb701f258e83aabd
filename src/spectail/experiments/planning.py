"""From an experiment and a person's choice to runs: slices, what is done, what it will cost."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

from .catalog import Experiment
from .cells import Cell
from .record import Record
from .runs import Run, code_version
from .scales import Overrides, Scale, sized


@dataclass(frozen=True)
class Slice:
    """Which cells of an experiment; an empty choice takes all."""

    dataset: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    """Labels or names, with wildcards: ``"CAR*"``, ``cmo``."""
    backbone: tuple[str, ...] = ()
    imbalance: tuple[float, ...] = ()
    setting: tuple[str, ...] = ()

    def of(self, experiment: Experiment) -> list[Cell]:
        cells = list(experiment.cells)
        for name, asked in (("dataset", self.dataset), ("backbone", self.backbone), ("setting", self.setting)):
            cells = _chosen(experiment, cells, name, asked, _named(name))
        cells = _chosen(experiment, cells, "method", self.method, lambda cell: (cell.label, cell.method))
        factors = tuple(f"{factor:g}" for factor in self.imbalance)
        return _chosen(experiment, cells, "imbalance", factors, lambda cell: (f"{cell.imbalance or 0:g}",))


def _named(name: str) -> Callable[[Cell], tuple[str, ...]]:
    return lambda cell: (str(getattr(cell, name)),)


def _chosen(
    experiment: Experiment, cells: list[Cell], name: str, asked: Sequence[str], names: Callable[[Cell], tuple[str, ...]]
) -> list[Cell]:
    if not asked:
        return cells
    for pattern in asked:
        known = dict.fromkeys(text for cell in experiment.cells for text in names(cell))
        if not any(fnmatch(text.lower(), pattern.lower()) for text in known):
            close = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or list(known)[:12]
            raise ValueError(f"--{name} {pattern}: {experiment.name} has no such cell; near it are {', '.join(close)}.")
    kept = [
        cell
        for cell in cells
        if any(fnmatch(text.lower(), pattern.lower()) for text in names(cell) for pattern in asked)
    ]
    if not kept:
        raise ValueError(f"{experiment.name} has no cell with this --{name} among those that the other choices leave.")
    return kept


@dataclass(frozen=True)
class Plan:
    """The runs of a slice at a scale, and the cells that cannot run at it."""

    experiment: Experiment
    scale: Scale
    cells: list[Cell]
    runs: list[Run]
    refused: dict[Cell, str] = field(default_factory=dict)


def make_plan(
    experiment: Experiment, cells: Sequence[Cell], scale: Scale, seeds: Sequence[int], overrides: Overrides
) -> Plan:
    runs, refused = [], {}
    for cell in cells:
        at_scale = sized(cell, scale, overrides)
        if at_scale.refused is not None:
            refused[cell] = at_scale.refused
        else:
            runs += [Run(cell, scale, at_scale, seed) for seed in seeds]
    return Plan(experiment, scale, list(cells), runs, refused)


def by_name(records: Iterable[Record], *, any_code: bool = False) -> dict[str, list[Record]]:
    """Records by the name of their run, the newest first: those of this code only, unless any will do."""
    code = code_version() if not any_code else None
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.finished or 0.0, reverse=True):
        if code is None or record.about.get("code") == code:
            found.setdefault(record.about["name"], []).append(record)
    return found
