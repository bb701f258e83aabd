"""The table of an experiment: mean and deviation over seeds, the published number, the difference, what deviates."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from .._utils.plain_text import cell as harmless
from ..diagnosis.text_table import MINUS, Table
from .catalog import EXPERIMENTS
from .cells import Cell, Setting
from .index import Record
from .measures import TITLES
from .planning import Plan, by_name
from .published import value_of
from .released import remarks as about_published

COLUMNS = ("experiment", "scale", "setting", "dataset", "imbalance", "backbone", "method", "name", "metric", "mean",
           "std", "seeds", "published", "difference", "model", "epochs", "notes", "seed numbers", "values", "code",
           "data", "shifts", "line")  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One metric of a cell."""

    metric: str
    values: tuple[float, ...]
    published: float | None
    line: tuple[tuple[float, ...], ...] = ()
    """For each seed its values along the shifts of the row; empty where the runs have no such line."""

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval of the mean (Student's t)."""
        from ..diagnosis.statistics import student  # noqa: PLC0415 - planning does without numpy

        n = len(self.values)
        return student(n - 1) * (self.std or 0.0) / n**0.5 if n > 1 else 0.0

    @property
    def difference(self) -> float | None:
        """Ours minus published."""
        mean = self.mean
        return None if mean is None or self.published is None else mean - self.published


@dataclass(frozen=True)
class Row:
    """A cell with what its runs gave."""

    cell: Cell
    scale: str
    """What its numbers may be called, see :meth:`Plan.label`."""
    seeds: tuple[int, ...]
    figures: tuple[Figure, ...]
    model: str
    epochs: int
    notes: tuple[str, ...]
    refused: str | None = None
    code: tuple[str, ...] = ()
    """Versions of the code that its records were made with."""
    data: tuple[str, ...] = ()
    """Identities of the images that its records saw."""
    shifts: tuple[float, ...] = ()
    """Of the logits, along the lines of its figures."""


def make_rows(plan: Plan, records: Iterable[Record], *, any_code: bool = False) -> tuple[list[Row], list[str]]:
    """The rows of a plan, and sentences about results that were left out because they do not belong together."""
    known, remarks = chosen_records(plan, records, any_code=any_code)
    rows = []
    for cell in plan.cells:
        runs = [run for run in plan.runs if run.cell == cell]
        done = {run.seed: known[run.name] for run in runs if run.name in known}
        results = [record.results or {} for record in done.values()]
        figures = tuple(
            Figure(metric, tuple(value for found in results if (value := metric_of(found, metric)) is not None),
                   value_of(cell.place, metric), _lines(results, metric))
            for metric in plan.experiment.metrics
        )  # fmt: skip
        split = "val_" * any(metric.startswith("val_") for metric in plan.experiment.metrics)
        shifts = set(_lines(results, f"{split}shifts"))
        if len(shifts) > 1:  # of different versions of the code
            figures = tuple(replace(figure, line=()) for figure in figures)
        sized = runs[0].sized if runs else None
        notes = sized.notes if sized else ()
        if any(figure.published is not None for figure in figures):
            notes += about_published(cell)
        rows.append(
            Row(cell, plan.label(cell), tuple(sorted(done)), figures, sized.model if sized else "",
                sized.epochs if sized else 0, notes, plan.refused.get(cell),
                _all_of(done.values(), "code"), _all_of(done.values(), "data"),
                shifts.pop() if len(shifts) == 1 else ())
        )  # fmt: skip
    return rows, remarks


def _all_of(records: Iterable[Record], name: str) -> tuple[str, ...]:
    return tuple(sorted({record.about[name] for record in records}))


def metric_of(results: dict[str, Any], metric: str) -> float | None:
    """A figure of results.json; ``val_`` for that of the validation data."""
    value: float | None = _split(results, metric).get(metric.removeprefix("val_"))
    return value


def _split(results: dict[str, Any], metric: str) -> dict[str, Any]:
    return (results.get("val") or {}) if metric.startswith("val_") else results


def _lines(results: Iterable[dict[str, Any]], metric: str) -> tuple[tuple[float, ...], ...]:
    """The values of a figure along the line of each run; none at all where one run lacks them."""
    found = [(_split(one, metric).get("line") or {}).get(metric.removeprefix("val_")) or [None] for one in results]
    return () if any(None in line for line in found) else tuple(map(tuple, found))


def chosen_records(
    plan: Plan, records: Iterable[Record], *, any_code: bool = False
) -> tuple[dict[str, Record], list[str]]:
    """One finished record for each run by its name, all runs on one cut of a data set from the same images."""
    found = by_name(records, any_code=any_code)
    cuts: dict[str, Counter[str]] = {}
    of_run: dict[str, tuple[str, list[Record]]] = {}
    for run in plan.runs:
        done = [record for record in found.get(run.name, []) if record.status == "done"]
        cut = str(run.settings["own"]["data"])
        of_run[run.name] = (cut, done)
        cuts.setdefault(cut, Counter()).update({record.about["data"] for record in done})
    chosen = {cut: counter.most_common(1)[0][0] for cut, counter in cuts.items() if counter}
    remarks = [
        f"{sum(counter.values()) - counter[chosen[cut]]} results of other images than {chosen[cut]} are left out: {cut}"
        for cut, counter in cuts.items() if len(counter) > 1
    ]  # fmt: skip
    kept = {}
    for name, (cut, done) in of_run.items():
        same = [record for record in done if record.about["data"] == chosen.get(cut)]
        if same:
            kept[name] = same[0]
    codes = {record.about["code"] for record in kept.values()}
    if len(codes) > 1:
        remarks.append(f"results of {len(codes)} versions of the code are mixed: {', '.join(sorted(codes))}")
    return kept, remarks


def as_table(plan: Plan, rows: list[Row]) -> Table:
    """For terminal, Markdown and LaTeX. Every number is under the name of its scale: in the heading where published
    ones stand beside it, else in a column."""
    fixed = {name: len({getattr(row.cell, name) for row in rows}) == 1 for name in ("setting", "dataset", "imbalance",
                                                                                   "backbone")}  # fmt: skip
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    marks = {note: chr(ord("a") + place % 26) * (1 + place // 26) for place, note in enumerate(notes)}
    scales = list(dict.fromkeys(row.scale for row in rows)) or [plan.scale]
    words = [name for name, same in fixed.items() if not same]
    metrics = [figure.metric for figure in rows[0].figures] if rows else list(plan.experiment.metrics)
    enough = 1 if plan.experiment.printed else max(1, len(rows) / 2)  # in our own tables only where most have one
    with_printed = [sum(row.figures[place].published is not None for row in rows) >= enough
                    for place in range(len(metrics))]  # fmt: skip
    several, below = len(scales) > 1, len(scales) == 1 and not any(with_printed)
    header = ["method", *words] + ["scale"] * several
    for metric, printed in zip(metrics, with_printed, strict=True):
        title = TITLES.get(metric, metric.replace("val_", "val ").replace("_test", ""))
        ours = f"{title} ({scales[0]})" if len(scales) == 1 else f"{title}, ours"
        header += [ours, "published", "difference"] if printed else [title]
    header += ["scale"] * below + ["seeds", "notes"]
    lines = []
    for row in rows:
        line = [row.cell.label, *(_word(getattr(row.cell, name)) for name in words)]
        line += [row.scale] * several
        for figure, printed in zip(row.figures, with_printed, strict=True):
            line += [shown(figure, len(row.seeds))] + (
                [_plain(figure.published, figure), _signed(figure)] if printed else []
            )
        line += [row.scale] * below
        lines.append((*line, str(len(row.seeds)), row.refused or " ".join(marks[note] for note in row.notes)))
    same = ", ".join(_word(getattr(rows[0].cell, name)) for name, one in fixed.items() if one) if rows else ""
    legend = "; ".join(f"{mark}: {note}" for note, mark in marks.items())
    if any(metric.startswith("above_") for metric in metrics):
        legend += "; what is above: mean over seeds, paired, ± half of its 95 % interval; in brackets: of so many seeds"
    title = f"{plan.experiment.title}. Scale {' and '.join(scales)}" + (f"; {same}" if same else "")
    return Table(title, tuple(header), lines, text_columns=1 + len(words) + several, notes=legend)


Column = tuple[int, int]
"""Which column of a table, and how wide."""


def layout(table: Table, width: int) -> list[list[Column]]:
    """The columns of a table in as many parts as a console of this width needs, each with the columns of words first.

    Headings, long names and notes may go over several lines, but no word and no figure is cut. A column and the
    published number beside it stay together.

    Example:
        >>> table = Table("", ("method", "overall", "tail", "notes"), [("CAR", "41.5 ± 0.3", "12.0 ± 1.1", "a b")])
        >>> [[place for place, _ in part] for part in (*layout(table, 80), *layout(table, 36))]
        [[0, 1, 2, 3], [0, 1, 2], [0, 3]]
    """
    places = range(len(table.header))
    cells = [[row[place] for row in table.rows] for place in places]
    full = [max(map(len, (table.header[place], *cells[place]))) for place in places]
    if _width(full) <= width:
        return [list(zip(places, full, strict=True))]
    words = [max(map(_longest_word, (table.header[place], *cells[place]))) for place in places]
    narrow = [max(_longest_word(table.header[place]), *map(len, cells[place]), 1) for place in places]
    for place, limit in ((0, 2 * width // 5), (len(places) - 1, 24)):  # long names and notes go over several lines
        narrow[place] = max(words[place], min(narrow[place], limit))
    groups: list[list[int]] = []
    for place in places[table.text_columns :]:
        if table.header[place] in ("published", "difference") and groups:
            groups[-1].append(place)
        else:
            groups.append([place])
    widest = max((_width([narrow[place] for place in group]) for group in groups), default=0)
    if _width(narrow[: table.text_columns]) + widest > width:
        narrow[: table.text_columns] = words[: table.text_columns]
    parts = [list(places[: table.text_columns])]
    for group in groups:
        if _width([narrow[place] for place in (*parts[-1], *group)]) > width and len(parts[-1]) > table.text_columns:
            parts.append(list(places[: table.text_columns]))
        parts[-1] += group
    return [[(place, narrow[place]) for place in part] for part in parts]


def _width(columns: Sequence[int]) -> int:
    """Of a table with a line and a space on both sides of each column."""
    return sum(columns) + 3 * len(columns) + 1


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def as_csv(plan: Plan, rows: list[Row]) -> str:
    """One line for each cell and metric, every figure in full, seed by seed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        cell = row.cell
        for figure in row.figures:
            writer.writerow(
                [plan.experiment.name, row.scale, cell.setting, cell.dataset, cell.imbalance, cell.backbone, cell.label,
                 cell.method, figure.metric, figure.mean, figure.std, len(figure.values), figure.published,
                 figure.difference, harmless(row.model), row.epochs, harmless(row.refused or "; ".join(row.notes)),
                 " ".join(map(str, row.seeds)), " ".join(map(str, figure.values)), harmless(" ".join(row.code)),
                 harmless(" ".join(row.data)), " ".join(f"{shift:g}" for shift in row.shifts if figure.line),
                 "; ".join(" ".join(f"{value:.6g}" for value in line) for line in figure.line)]
            )  # fmt: skip
    return file.getvalue()


def from_csv(text: str) -> list[Row]:
    """The rows that :func:`as_csv` wrote; the settings of cells, which are not in it, are those of their experiment."""
    found: dict[Cell, Row] = {}
    known: dict[str, dict[tuple[Any, ...], Cell]] = {}
    for line in csv.DictReader(io.StringIO(text)):
        imbalance = float(line["imbalance"]) if line["imbalance"] else None
        cell = Cell(cast("Setting", line["setting"]), line["dataset"], imbalance, line["backbone"], line["name"],
                    line["method"])  # fmt: skip
        name = line["experiment"]
        if name not in known:
            known[name] = {entry.place: entry for entry in EXPERIMENTS[name]().cells} if name in EXPERIMENTS else {}
        cell = known[name].get(cell.place, cell)
        lines = tuple(_floats(part) for part in (line.get("line") or "").split(";") if part)
        published = float(line["published"]) if line["published"] else None
        figure = Figure(line["metric"], _floats(line["values"]), published, lines)
        row = found.get(cell) or Row(
            cell,
            line["scale"],
            tuple(map(int, line["seed numbers"].split())),
            (),
            line["model"],
            int(line["epochs"]),
            tuple(filter(None, line["notes"].split("; "))),
            code=tuple((line.get("code") or "").split()),  # older files lack these
            data=tuple((line.get("data") or "").split()),
        )
        shifts = row.shifts or _floats(line.get("shifts") or "")
        found[cell] = replace(row, figures=(*row.figures, figure), shifts=shifts)
    return list(found.values())


def _floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


def _format(figure: Figure) -> str:
    return {"worst_ratio": ".2f", "cm_gap": ".3f", "cm_gap_relative": ".2f", "car_gradient_norm": ".1e",
            "steps": ",.0f"}.get(figure.metric, ".1f")  # fmt: skip


def shown(figure: Figure, seeds: int | None = None) -> str:
    """Mean and deviation, as a table has them; of a distance from the line the mean and half of its interval.

    Where ``seeds`` were run and some have no such figure, the number of those that have one stands behind it.

    Example:
        >>> shown(Figure("overall", (50.0, 52.0), None), 2), shown(Figure("above_same_tail_overall", (0.5,), None), 3)
        ('51.0 ± 1.4', '+0.5 (1)')
    """
    if figure.mean is None:
        return ""
    above = figure.metric.startswith("above_")
    form, sign = _format(figure), "+" if above or figure.metric.startswith("gain_") else ""
    mean = f"{figure.mean:{sign}{form}}"
    if mean.startswith("-"):
        mean = MINUS + mean[1:]
    of = "" if seeds in (None, len(figure.values)) else f" ({len(figure.values)})"
    return (mean if figure.std is None else f"{mean} ± {figure.half if above else figure.std:{form}}") + of


def _plain(value: float | None, figure: Figure) -> str:
    """With all the digits that the paper prints."""
    if value is None:
        return ""
    ours, printed = f"{value:{_format(figure)}}", str(value)
    return max(ours, printed, key=len)


def _signed(figure: Figure) -> str:
    value = figure.difference
    return "" if value is None else f"{value:+{_format(figure)}}".replace("-", MINUS)


def _word(value: Any) -> str:
    if value is None:
        return "natural"
    return f"IF {value:g}" if isinstance(value, float) else str(value)
