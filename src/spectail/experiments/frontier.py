"""Does a method move the trade-off curve? How far it lies above what one tuned number reaches anyway.

The reference is Balanced Softmax with tau 1, its logits shifted by ``-delta log(n_j / N)`` after training: one training
gives the line of every tau. Three questions, each seed against the line of the same seed:

- ``same``: is a point above the line where their tail (or another figure) is the same?
- ``best``: since a line bends down at both ends, is it above the *best* point of the line whose tail is no worse?
- ``shifted``: with its own logits shifted until its tail is that of Balanced Softmax, is it above Balanced Softmax?
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .grids import is_reference, way_of
from .measures import DISTANCES, Distance
from .tables import Figure, Row

Point = tuple[float, float]


def with_distances(rows: Sequence[Row]) -> list[Row]:
    """Rows with their distances from the reference line of the same data and the same way of training. Without one, or
    without anything to compare with it, rows stay as they are."""
    references = {_ground(row): row for row in rows if is_reference(row.cell) and row.shifts}
    if all(row in references.values() or _ground(row) not in references for row in rows):
        return list(rows)
    metrics = {figure.metric for row in rows for figure in row.figures}
    shown = [one for one in DISTANCES if {one.kept, one.what} <= metrics]
    extended = []
    for row in rows:
        base = references.get(_ground(row))
        values = (() if base is None or base is row else distance(row, base, one) for one in shown)
        figures = (Figure(one.metric, found, None) for one, found in zip(shown, values, strict=True))
        extended.append(replace(row, figures=(*row.figures, *figures)))
    return extended


def _ground(row: Row) -> tuple[Any, ...]:
    return (*row.cell.ground, way_of(row.cell))


def distance(row: Row, base: Row, rule: Distance) -> tuple[float, ...]:
    """Seed by seed; seeds at which the line reaches no such point are left out."""
    shifted = rule.rule == "shifted"
    points, lines = (_points(base, rule), _lines(row, rule)) if shifted else (_points(row, rule), _lines(base, rule))
    values = []
    for seed, (x, y) in points.items():
        height = RULES[rule.rule](lines.get(seed, ()), x)
        if height is not None:
            values.append(height - y if shifted else y - height)
    return tuple(values)


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


RULES = {"same": level, "best": reachable, "shifted": level}


def _points(row: Row, rule: Distance) -> dict[int, Point]:
    """Where each seed of a row lies."""
    x, y = (figure.values for figure in _figures(row, rule))
    if not len(row.seeds) == len(x) == len(y):  # a figure is missing for some seed, and nobody knows which
        return {}
    return dict(zip(row.seeds, zip(x, y, strict=True), strict=True))


def _lines(row: Row, rule: Distance) -> dict[int, list[Point]]:
    """The line that each seed of a row draws."""
    lines = [figure.line for figure in _figures(row, rule)]
    if not all(lines):
        return {}
    return {seed: list(zip(*both, strict=True)) for seed, *both in zip(row.seeds, *lines, strict=True)}


def _figures(row: Row, rule: Distance) -> tuple[Figure, Figure]:
    named = {figure.metric: figure for figure in row.figures}
    return named[rule.kept], named[rule.what]
