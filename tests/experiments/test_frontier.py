"""Gains over the line of Balanced Softmax, against a fine grid of points along that line."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from spectail.experiments.cells import Cell
from spectail.experiments.frontier import level, reachable, with_gains
from spectail.experiments.grids import CURVES, REFERENCE
from spectail.experiments.tables import Figure, Row


def row(label, points, seeds=None):
    """A row whose seeds lie at the given places (tail, overall)."""
    method, changes = "ce" if label == "CE" else "car", ()
    if label.startswith(REFERENCE):
        method, changes = "balanced-softmax", (("options.tau", float(label.split()[-1])),)
    cell = Cell("pretrained", "cifar100-lt", 100.0, "vit_small", method, label, changes)
    tail, overall = zip(*points, strict=True)
    seeds = tuple(range(len(points))) if seeds is None else seeds
    figures = (Figure("overall", overall, None), Figure("tail", tail, None))
    return Row(cell, "quick", seeds, figures, "model", 12, ())


def walk(points):
    """Every place on the line, in small steps."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        for share in np.linspace(0, 1, 4001):
            yield x0 + share * (x1 - x0), y0 + share * (y1 - y0)


@pytest.mark.parametrize("seed", range(8))
def test_heights_are_those_of_a_walk_along_the_line(seed):
    """The line goes to and fro, as the tail does when tau is too large."""
    generator = np.random.default_rng(seed)
    points = [tuple(point) for point in generator.uniform(0, 60, (6, 2))]
    for x in generator.uniform(-5, 65, 6):
        right = [y for place, y in walk(points) if place >= x - 1e-9]
        here = [y for place, y in walk(points) if abs(place - x) < 0.02]
        for found, expected in ((reachable(points, x), right), (level(points, x), here)):
            assert (found is None) == (not expected)
            if expected:
                assert found == pytest.approx(max(expected), abs=0.5)


def test_gains_are_paired_by_seed():
    line = [row(f"{REFERENCE} 0", [(10.0, 40.0), (0.0, 30.0)]), row(f"{REFERENCE} 1", [(30.0, 50.0), (20.0, 40.0)])]
    own = row("CAR class-wise, alpha 2", [(20.0, 52.0), (10.0, 38.0)])
    found = {entry.cell.label: entry.figures[-2:] for entry in with_gains([*reversed(line), own])}
    same, best = found["CAR class-wise, alpha 2"]
    assert (same.metric, best.metric) == ("gain_same_tail", "gain_best_tail")
    assert same.values == (7.0, 3.0)  # the line is at 45 and 35 there
    assert best.values == (2.0, -2.0)  # its best with that tail or more is 50 and 40
    assert found[f"{REFERENCE} 0"][0].values == ()  # the line does not compete with itself


def test_a_point_of_the_line_is_not_above_it():
    line = [row(f"{REFERENCE} {tau}", [(10.0 * tau, 40.0 + tau)]) for tau in (0, 1, 2)]
    (*_, own) = with_gains([*line, row("CAR, alpha 0", [(0.0, 40.0)])])
    assert [figure.values for figure in own.figures[-2:]] == [(0.0,), (-2.0,)]


def test_the_line_begins_with_cross_entropy():
    """It is Balanced Softmax with tau 0."""
    line = [row(f"{REFERENCE} 1", [(20.0, 50.0)]), row("CE", [(0.0, 40.0)])]
    (*_, own) = with_gains([*line, row("CAR, alpha 5", [(10.0, 46.0)])])
    assert [figure.values for figure in own.figures[-2:]] == [(1.0,), (-4.0,)]


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
    rows = [row("CE", [(10.0, 40.0)]), row("CAR, alpha 5", [(10.0, 40.0)])]
    assert with_gains(rows) == rows
    assert REFERENCE in CURVES


def test_interval_of_the_mean():
    """Of 1, 2, 3: t(0.975, 2) = 4.303 times 1 / sqrt(3)."""
    assert Figure("overall", (1.0, 2.0, 3.0), None).half == pytest.approx(4.303 / 3**0.5, rel=2e-4)
    assert Figure("overall", (1.0,), None).half == 0.0


@pytest.mark.parametrize("seeds", [2, 10, 11, 20, 41])
def test_interval_of_the_mean_for_any_number_of_seeds(seeds):
    values = np.random.default_rng(0).normal(50, 3, seeds)
    low, high = scipy.stats.t.interval(0.95, seeds - 1, values.mean(), scipy.stats.sem(values))
    assert Figure("overall", tuple(values.tolist()), None).half == pytest.approx((high - low) / 2, rel=1e-9)
