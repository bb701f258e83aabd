"""From an experiment and a person's choice to runs: slices, what is done, what it will cost."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

from .catalog import Experiment
from .cells import Cell
from .grids import FROM_THE_START
from .index import Record
from .runs import Run, code_version
from .scales import Overrides, Scale, sized

Option = tuple[str, Sequence[str], Callable[[Cell], tuple[str, ...]]]
"""Name of an option, what was asked for, and what of a cell it is compared with."""


@dataclass(frozen=True)
class Slice:
    """Which cells of an experiment; an empty choice takes all."""

    dataset: tuple[str, ...] = ()
    """Data sets of the cells to take, such as cifar100-lt. By default all."""
    method: tuple[str, ...] = ()
    """Labels or names of methods, which may have wildcards, such as "CAR*" or cmo. By default all."""
    backbone: tuple[str, ...] = ()
    """Backbones, such as vit_small or resnet. By default all."""
    imbalance: tuple[float, ...] = ()
    """Imbalance factors; 0 is for data that are long-tailed by nature. By default all."""
    setting: tuple[str, ...] = ()
    """scratch or pretrained. By default both."""

    def of(self, experiment: Experiment) -> list[Cell]:
        """The cells of an experiment that were asked for; an error that names the nearest where there are none."""
        self._check(experiment.cells, experiment.name)
        cells = self._matching(experiment.cells)
        if not cells:
            given = ", ".join(f"--{name}" for name, asked, _ in self._choices() if asked)
            raise ValueError(f"{experiment.name} has no cell to which all of {given} apply; leave one of them out.")
        return cells

    def of_all(self, experiments: Iterable[Experiment]) -> list[tuple[Experiment, list[Cell]]]:
        """The experiments that have such cells; an error only where none has."""
        known = list(experiments)
        self._check([cell for experiment in known for cell in experiment.cells], "no experiment")
        found = [(experiment, cells) for experiment in known if (cells := self._matching(experiment.cells))]
        if not found:
            given = ", ".join(f"--{name}" for name, asked, _ in self._choices() if asked)
            raise ValueError(f"no experiment has a cell to which all of {given} apply; leave one of them out.")
        return found

    def _choices(self) -> list[Option]:
        return [
            ("dataset", self.dataset, lambda cell: (cell.dataset,)),
            ("backbone", self.backbone, lambda cell: (cell.backbone,)),
            ("setting", self.setting, lambda cell: (cell.setting,)),
            ("method", self.method, _method_names),
            ("imbalance", tuple(f"{factor:g}" for factor in self.imbalance),
             lambda cell: (f"{cell.imbalance or 0:g}",)),  # 0: long-tailed by nature
        ]  # fmt: skip

    def _matching(self, cells: Iterable[Cell]) -> list[Cell]:
        choices = [(asked, names) for _, asked, names in self._choices() if asked]
        return [cell for cell in cells if all(_any_match(names(cell), asked) for asked, names in choices)]

    def _check(self, cells: Sequence[Cell], where: str) -> None:
        """Every word must fit some cell: a word that fits none is a slip of the pen."""
        for name, asked, names in self._choices():
            known = list(dict.fromkeys(text for cell in cells for text in names(cell)))
            for pattern in asked:
                if not _any_match(known, [pattern]):
                    close = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or known[:12]
                    has = "has such a cell" if where.startswith("no ") else "has no such cell"
                    raise ValueError(f"--{name} {pattern}: {where} {has}; near it are {', '.join(close)}.")


def _method_names(cell: Cell) -> tuple[str, ...]:
    """Ours, the paper's, and that of the command line; a row that is a method with other options has its label only."""
    names = (cell.label, cell.place[-1])
    return names if cell.label in FROM_THE_START else (*names, cell.method)


def _any_match(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch(text.lower(), pattern.lower()) for text in names for pattern in patterns)


@dataclass(frozen=True)
class Plan:
    """The runs of a slice at a scale, and the cells that cannot run at it."""

    experiment: Experiment
    scale: Scale
    cells: list[Cell]
    runs: list[Run]
    refused: dict[Cell, str] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)

    def label(self, cell: Cell) -> str:
        """What a number of a cell may be called: its scale, unless something about it is not that scale's.

        Numbers of the embedded data set are no one's but ours, and changed ones not those of the scale.
        """
        words: list[str] = [self.scale]
        if cell.dataset == "glyphs-lt":
            words.append("own set")
        if self.overrides != Overrides():
            usual, ours = sized(cell, self.scale), sized(cell, self.scale, self.overrides)
            words += ["changed"] if (usual.base, usual.own) != (ours.base, ours.own) else []
        return ", ".join(words)


def make_plan(
    experiment: Experiment, cells: Sequence[Cell], scale: Scale, seeds: Sequence[int], overrides: Overrides
) -> Plan:
    runs, refused = [], {}
    backbones: dict[str, set[str]] = {}
    for cell in cells:
        at_scale = sized(cell, scale, overrides)
        if at_scale.refused is not None:
            refused[cell] = at_scale.refused
            continue
        of_cell = [Run(cell, scale, at_scale, seed) for seed in seeds]
        runs += of_cell
        backbones.setdefault(of_cell[0].name, set()).add(cell.backbone)
    for run in runs:
        if len(backbones.get(run.name, ())) > 1:
            refused[run.cell] = (f"it would be the same run for {len(backbones[run.name])} backbones, of "
                                 f"{run.sized.model}; choose one with --backbone, or a larger --scale")  # fmt: skip
    runs = [run for run in runs if run.cell not in refused]
    return Plan(experiment, scale, list(cells), runs, refused, overrides)


def in_order(runs: Iterable[Run]) -> list[Run]:
    """All cells of the first seed, then of the second: a table is whole early, then grows more certain."""
    return sorted(runs, key=lambda run: run.seed)


def by_name(records: Iterable[Record], *, any_code: bool = False) -> dict[str, list[Record]]:
    """Records by the name of their run, the newest first: those of this code only, unless any will do."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.finished or 0.0, reverse=True):
        if any_code or record.about.get("code") == code_version():
            found.setdefault(record.about["name"], []).append(record)
    return found


def outside(plans: Iterable[Plan], records: Iterable[Record], *, any_code: bool = False) -> list[Record]:
    """Records of runs that the plans do not have: of other seeds, scales and options."""
    known = {run.name for plan in plans for run in plan.runs}
    found = by_name(records, any_code=any_code)
    return [record for name, group in found.items() if name not in known for record in group]
