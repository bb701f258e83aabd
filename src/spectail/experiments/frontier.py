"""Does a method move the trade-off curve? How far its points lie above what one tuned number reaches anyway."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from .grids import REFERENCE
from .tables import Figure, Row

MEASURES = {"tail": "overall", "bottom_10pct": "overall", "val_tail": "val_balanced",
            "val_bottom_10pct": "val_balanced"}  # fmt: skip
"""What must not be given up, and what is compared where it is equal."""


def with_gains(rows: Sequence[Row]) -> list[Row]:
    """Rows with two more figures each: overall accuracy above the reference line of the same data at equal tail
    accuracy, and at equal accuracy of the lowest tenth of the classes. Without anything to compare, rows stay as
    they are."""
    lines: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.cell.label.rpartition(" ")[0] == REFERENCE and row.seeds:
            lines.setdefault(_place(row), []).append(row)
    lines = {place: line for place, line in lines.items() if len(line) > 1}
    compared = [row for row in rows if _place(row) in lines and row not in lines[_place(row)]]
    if not compared:
        return list(rows)
    found = []
    for row in rows:
        own = {figure.metric for figure in row.figures}
        line = lines[_place(row)] if row in compared else []
        gains = [gain(row, line, kept, whole) for kept, whole in MEASURES.items() if {kept, whole} <= own]
        found.append(replace(row, figures=(*row.figures, *gains)))
    return found


def _place(row: Row) -> tuple[object, ...]:
    """What two rows must share to be compared."""
    return row.cell.setting, row.cell.dataset, row.cell.imbalance, row.cell.backbone


def gain(row: Row, reference: Sequence[Row], kept: str, whole: str) -> Figure:
    """Seed by seed; seeds at which the reference reaches no such point are left out."""
    line = [points(other, kept, whole) for other in reference]
    values = []
    for seed, (x, y) in points(row, kept, whole).items():
        best = reachable([found[seed] for found in line if seed in found], x)
        if best is not None:
            values.append(y - best)
    return Figure(f"above_{kept}", tuple(values), None)


def reachable(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The largest y that a line through the points has at x or further right; None where the line ends before x.

    Example:
        >>> line = [(0.0, 10.0), (10.0, 20.0), (20.0, 16.0)]
        >>> reachable(line, 5.0), reachable(line, 15.0), reachable(line, 21.0)
        (20.0, 18.0, None)
    """
    ordered = sorted(points)
    if not ordered or x > ordered[-1][0]:
        return None
    best = max(value for place, value in ordered if place >= x)
    for (x0, y0), (x1, y1) in itertools.pairwise(ordered):
        if x0 <= x <= x1 and x0 < x1:
            best = max(best, y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return best


def points(row: Row, kept: str, whole: str) -> dict[int, tuple[float, float]]:
    """Where each seed of a row lies."""
    x, y = (next(figure.values for figure in row.figures if figure.metric == name) for name in (kept, whole))
    if not len(row.seeds) == len(x) == len(y):  # a figure is missing for some seed, and nobody knows which
        return {}
    return dict(zip(row.seeds, zip(x, y, strict=True), strict=True))
