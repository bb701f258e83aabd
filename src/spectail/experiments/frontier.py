"""Does a method move the trade-off curve? How far its points lie above what one tuned number reaches anyway.

Two questions, two figures for each point. At the *same* tail accuracy: does it lie above the line of Balanced Softmax?
And since a line bends down at both ends: is it above the *best* point of that line whose tail is no worse?
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from .grids import CURVES, REFERENCE, is_plain
from .tables import Figure, Row

MEASURES = {"tail": "overall", "bottom_10pct": "overall", "val_tail": "val_balanced",
            "val_bottom_10pct": "val_balanced"}  # fmt: skip
"""What must not be given up, and what is compared then."""
Point = tuple[float, float]


def with_gains(rows: Sequence[Row]) -> list[Row]:
    """Rows with four more figures each: overall accuracy above the reference line of the same data, at the same tail
    accuracy and at that or more, and both for the lowest tenth of the classes. Without anything to compare, rows stay
    as they are."""
    lines: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if _value(row) is not None and row.seeds:
            lines.setdefault(row.cell.ground, []).append(row)
    lines = {at: sorted(line, key=lambda row: _value(row) or 0.0) for at, line in lines.items() if len(line) > 1}
    compared = [row for row in rows if row.cell.ground in lines and row not in lines[row.cell.ground]]
    if not compared:
        return list(rows)
    extended = []
    for row in rows:
        own = {figure.metric for figure in row.figures}
        line = lines[row.cell.ground] if row in compared else []
        gains = [gain(row, line, kept, whole, rule) for rule in RULES for kept, whole in MEASURES.items()
                 if {kept, whole} <= own]  # fmt: skip
        extended.append(replace(row, figures=(*row.figures, *gains)))
    return extended


def _value(row: Row) -> float | None:
    """Where a point stands along the line of the reference, which begins with cross entropy; None for other points."""
    return 0.0 if is_plain(row.cell) else CURVES[REFERENCE].value_of(row.cell)


def gain(row: Row, reference: Sequence[Row], kept: str, whole: str, rule: str) -> Figure:
    """Seed by seed; seeds at which the reference reaches no such point are left out."""
    line = [points(other, kept, whole) for other in reference]
    values = []
    for seed, (x, y) in points(row, kept, whole).items():
        height = RULES[rule]([point[seed] for point in line if seed in point], x)
        if height is not None:
            values.append(y - height)
    return Figure(f"gain_{rule}_{kept}", tuple(values), None)


def level(points: Sequence[Point], x: float) -> float | None:
    """The y at x of a line through the points in their order, the larger where it bends back; None where there is none.

    Example:
        >>> line = [(0.0, 10.0), (10.0, 20.0), (20.0, 16.0)]
        >>> level(line, 5.0), level(line, 15.0), level(line, 21.0)
        (15.0, 18.0, None)
    """
    heights = [y for at, y in points if at == x]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if min(x0, x1) < x < max(x0, x1):
            heights.append(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return max(heights, default=None)


def reachable(points: Sequence[Point], x: float) -> float | None:
    """The largest y of that line at x or further right.

    Example:
        >>> line = [(0.0, 10.0), (10.0, 20.0), (20.0, 16.0)]
        >>> reachable(line, 5.0), reachable(line, 15.0), reachable(line, 21.0)
        (20.0, 18.0, None)
    """
    here = level(points, x)
    further = [y for at, y in points if at >= x]
    return max(further if here is None else [*further, here], default=None)


RULES = {"same": level, "best": reachable}


def points(row: Row, kept: str, whole: str) -> dict[int, Point]:
    """Where each seed of a row lies."""
    x, y = (next(figure.values for figure in row.figures if figure.metric == name) for name in (kept, whole))
    if not len(row.seeds) == len(x) == len(y):  # a figure is missing for some seed, and nobody knows which
        return {}
    return dict(zip(row.seeds, zip(x, y, strict=True), strict=True))
