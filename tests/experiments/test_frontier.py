"""Gains over the line of Balanced Softmax, against a fine grid of points along that line."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from spectail.experiments.cells import Cell
from spectail.experiments.frontier import reachable, with_gains
from spectail.experiments.grids import CURVES, REFERENCE
from spectail.experiments.tables import Figure, Row


def row(label, points, seeds=None):
    """A row whose seeds lie at the given places (tail, overall)."""
    cell = Cell("pretrained", "cifar100-lt", 100.0, "vit_small", "ce", label)
    tail, overall = zip(*points, strict=True)
    seeds = tuple(range(len(points))) if seeds is None else seeds
    figures = (Figure("overall", overall, None), Figure("tail", tail, None))
    return Row(cell, "quick", seeds, figures, "model", 12, ())


def slow_reachable(points, x):
    """Walk along the line in small steps, and keep the best of what is far enough right."""
    points = sorted(points)
    best = None
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        for share in np.linspace(0, 1, 4001):
            place = x0 + share * (x1 - x0)
            if place >= x - 1e-9:
                y = y0 + share * (y1 - y0)
                best = y if best is None else max(best, y)
    return best


@pytest.mark.parametrize("seed", range(8))
def test_reachable_is_the_best_point_at_or_right_of_x(seed):
    generator = np.random.default_rng(seed)
    points = [tuple(point) for point in generator.uniform(0, 60, (6, 2))]
    for x in generator.uniform(-5, 65, 6):
        fast, slow = reachable(points, x), slow_reachable(points, x)
        assert (fast is None) == (slow is None)
        if fast is not None:
            assert fast == pytest.approx(slow, abs=0.05)


def test_gains_are_paired_by_seed():
    line = [row(f"{REFERENCE} 0", [(10.0, 40.0), (0.0, 30.0)]), row(f"{REFERENCE} 1", [(30.0, 50.0), (20.0, 40.0)])]
    own = row("CAR class-wise, alpha 2", [(20.0, 52.0), (10.0, 38.0)])
    found = {entry.cell.label: entry.figures[-1] for entry in with_gains([*line, own])}
    assert found["CAR class-wise, alpha 2"].metric == "above_tail"
    assert found["CAR class-wise, alpha 2"].values == (2.0, -2.0)  # the line's best with that tail or more: 50, 40
    assert found[f"{REFERENCE} 0"].values == ()  # the line does not compete with itself


def test_a_point_beyond_the_line_has_no_gain():
    line = [row(f"{REFERENCE} 0", [(10.0, 40.0)]), row(f"{REFERENCE} 1", [(30.0, 50.0)])]
    (*_, own) = with_gains([*line, row("CAR, alpha 5", [(31.0, 60.0)])])
    assert own.figures[-1].values == ()


def test_seeds_without_a_reference_are_left_out():
    line = [row(f"{REFERENCE} 0", [(10.0, 40.0)]), row(f"{REFERENCE} 1", [(30.0, 50.0)])]
    (*_, own) = with_gains([*line, row("CAR, alpha 5", [(20.0, 51.0), (20.0, 99.0)])])
    assert own.figures[-1].values == (1.0,)


def test_a_row_is_compared_with_the_line_of_its_own_data():
    line = [row(f"{REFERENCE} 0", [(10.0, 40.0)]), row(f"{REFERENCE} 1", [(30.0, 50.0)])]
    own = row("CAR, alpha 5", [(20.0, 51.0)])
    elsewhere = [replace(entry, cell=replace(entry.cell, imbalance=50.0)) for entry in (*line, own)]
    higher = [replace(entry, figures=(Figure("overall", (90.0,), None), entry.figures[1])) for entry in elsewhere[:2]]
    alone = replace(own, cell=replace(own.cell, dataset="glyphs-lt"))
    found = with_gains([*line, own, *higher, elsewhere[2], alone])
    assert [entry.figures[-1].values for entry in (found[2], found[5], found[6])] == [(1.0,), (-39.0,), ()]


def test_no_line_no_gain():
    rows = [row("CE", [(10.0, 40.0)]), row(f"{REFERENCE} 1", [(10.0, 40.0)])]
    assert with_gains(rows) == rows
    assert REFERENCE in CURVES


def test_interval_of_the_mean():
    """Of 1, 2, 3: t(0.975, 2) = 4.303 times 1 / sqrt(3)."""
    assert Figure("overall", (1.0, 2.0, 3.0), None).half == pytest.approx(4.303 / 3**0.5)
    assert Figure("overall", (1.0,), None).half == 0.0
