"""Distances from the line that Balanced Softmax draws, against a fine grid of points along that line."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from spectail.experiments.cells import Cell
from spectail.experiments.frontier import level, reachable, with_distances
from spectail.experiments.measures import TITLES
from spectail.experiments.tables import Figure, Row, shown

SHIFTS = (-1.0, 0.0, 1.0)


def row(label, lines, seeds=None, names=("tail", "overall")):
    """A row whose seeds draw the given lines of three points (tail, overall), the one in the middle as trained."""
    cell = Cell("pretrained", "cifar100-lt", 100.0, "vit_small", METHODS.get(label, "car"), label)
    seeds = tuple(range(len(lines))) if seeds is None else seeds
    both = [tuple(tuple(point[at] for point in line) for line in lines) for at in (0, 1)]
    figures = tuple(Figure(name, tuple(line[1] for line in values), None, values)
                    for name, values in zip(names, both, strict=True))  # fmt: skip
    return Row(cell, "quick", seeds, figures, "model", 12, (), shifts=SHIFTS)


METHODS = {"Balanced Softmax": "balanced-softmax", "CE": "ce"}
LINES = [[(0.0, 40.0), (10.0, 50.0), (20.0, 44.0)], [(0.0, 30.0), (10.0, 40.0), (20.0, 34.0)]]


def found(rows, label="CAR"):
    """The distances of a row by what they are of."""
    (own,) = (entry for entry in with_distances(rows) if entry.cell.label == label)
    return {figure.metric.removeprefix("above_"): figure.values for figure in own.figures[2:]}


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


def test_distances_are_paired_by_seed():
    car = row("CAR", [[(2.0, 45.0), (5.0, 47.0), (12.0, 46.0)], [(8.0, 45.0), (15.0, 36.0), (18.0, 30.0)]])
    assert found([row("Balanced Softmax", LINES), car]) == {
        "same_tail_overall": (2.0, -1.0),  # the line is at 45 and 37 there
        "best_tail_overall": (-3.0, -1.0),  # its best with that tail or more is 50 and 37
        "shifted_tail_overall": pytest.approx((46 + 2 / 7 - 50, 45 - 9 * 2 / 7 - 40)),  # at tail 10
    }


def test_the_line_does_not_compete_with_itself_and_lies_on_itself():
    rows = [row("Balanced Softmax", LINES), row("CAR", LINES)]
    assert {*found(rows, "Balanced Softmax").values()} == {()}
    assert {*found(rows).values()} == {(0.0, 0.0)}


def test_a_method_that_only_moves_along_the_line_gains_nothing():
    """Cross entropy is Balanced Softmax shifted by -1: a parabola that both draw, each from its own place."""
    grid = np.round(np.arange(-1.5, 2.6, 0.1), 10)

    def drawn(tau):
        return [(10 * (tau + delta) + seed, 50 - 3 * (tau + delta - 1) ** 2) for delta in grid for seed in (0,)]

    def whole(label, tau):
        entry = row(label, [drawn(tau)])
        return replace(entry, figures=tuple(replace(one, values=(one.line[0][15],)) for one in entry.figures))

    rows = [whole("Balanced Softmax", 1.0), whole("CE", 0.0), whole("CAR", 0.55)]
    for label in ("CE", "CAR"):
        distances = found(rows, label)
        assert distances["same_tail_overall"] == pytest.approx((0.0,), abs=0.01)
        assert distances["shifted_tail_overall"] == pytest.approx((0.0,), abs=0.01)


@pytest.mark.parametrize("kept", ["bottom_10pct", "bottom_20pct", "worst_test"])
def test_the_same_is_asked_of_the_lowest_classes(kept):
    names = (kept, "overall")
    rows = [row("Balanced Softmax", LINES, names=names), row("CAR", [[(0.0, 0.0), (5.0, 47.0), (9.0, 0.0)]],
                                                              names=names)]  # fmt: skip
    assert found(rows) == {f"same_{kept}_overall": (2.0,)}


@pytest.mark.parametrize("what", ["bottom_10pct", "bottom_20pct", "worst_test"])
def test_and_of_the_lowest_classes_at_the_same_tail(what):
    names = ("tail", what)
    rows = [row("Balanced Softmax", LINES, names=names), row("CAR", [[(0.0, 0.0), (5.0, 47.0), (9.0, 0.0)]],
                                                              names=names)]  # fmt: skip
    assert found(rows)[f"same_tail_{what}"] == (2.0,)


def test_on_held_out_images_the_mean_of_the_classes_is_compared():
    names = ("val_tail", "val_balanced")
    rows = [row("Balanced Softmax", LINES, names=names), row("CAR", LINES, names=names)]
    assert set(found(rows)) == {f"{rule}_val_tail_val_balanced" for rule in ("same", "best", "shifted")}
    assert TITLES["above_same_val_tail_val_balanced"] == "val mean of classes above the line, same tail"


def test_a_point_beyond_the_line_has_no_distance():
    car = row("CAR", [[(0.0, 40.0), (21.0, 60.0), (30.0, 50.0)]])
    distances = found([row("Balanced Softmax", LINES), car])
    assert distances["same_tail_overall"] == distances["best_tail_overall"] == ()
    assert distances["shifted_tail_overall"] == pytest.approx((40 + 20 * 10 / 21 - 50,))


def test_seeds_without_a_reference_are_left_out():
    car = row("CAR", [[(0.0, 40.0), (5.0, value), (30.0, 50.0)] for value in (47.0, 99.0)], seeds=(1, 7))
    assert found([row("Balanced Softmax", LINES), car])["same_tail_overall"] == (12.0,)


def test_runs_without_a_line_are_compared_with_one_that_has_it():
    car = row("CAR", LINES)
    bare = replace(car, shifts=(), figures=tuple(replace(figure, line=()) for figure in car.figures))
    distances = found([row("Balanced Softmax", LINES), bare])
    assert (distances["same_tail_overall"], distances["shifted_tail_overall"]) == ((0.0, 0.0), ())


def test_a_row_is_compared_with_the_line_of_its_own_data():
    base, car = row("Balanced Softmax", LINES), row("CAR", [LINES[0]])
    other, lower = (replace(entry, cell=replace(entry.cell, imbalance=50.0))
                    for entry in (row("Balanced Softmax", LINES[1:]), car))  # fmt: skip
    alone = replace(car, cell=replace(car.cell, dataset="glyphs-lt"))
    distances = with_distances([base, car, other, lower, alone])
    assert [distances[at].figures[2].values for at in (1, 3, 4)] == [(0.0,), (10.0,), ()]


def test_no_line_no_distance():
    base = row("Balanced Softmax", LINES)
    for rows in ([row("CE", LINES), row("CAR", LINES)], [base], [replace(base, shifts=()), row("CAR", LINES)]):
        assert with_distances(rows) == rows


def test_a_distance_is_shown_with_half_of_its_interval():
    values = (1.0, 2.0, 3.0)
    assert shown(Figure("above_same_tail_overall", values, None)) == "+2.0 ± 2.5"
    assert shown(Figure("gain_same_tail", values, None)) == "+2.0 ± 1.0"  # of an older file: the deviation


def test_interval_of_the_mean():
    """Of 1, 2, 3: t(0.975, 2) = 4.303 times 1 / sqrt(3)."""
    assert Figure("overall", (1.0, 2.0, 3.0), None).half == pytest.approx(4.303 / 3**0.5, rel=2e-4)
    assert Figure("overall", (1.0,), None).half == 0.0


@pytest.mark.parametrize("seeds", [2, 10, 11, 20, 41])
def test_interval_of_the_mean_for_any_number_of_seeds(seeds):
    values = np.random.default_rng(0).normal(50, 3, seeds)
    low, high = scipy.stats.t.interval(0.95, seeds - 1, values.mean(), scipy.stats.sem(values))
    assert Figure("overall", tuple(values.tolist()), None).half == pytest.approx((high - low) / 2, rel=1e-9)


def test_a_row_is_compared_with_the_line_of_its_own_way_of_training():
    """Weight decay is a way to train, alpha is not."""

    def with_(entry, *changes):
        return replace(entry, cell=replace(entry.cell, changes=changes, label=f"{entry.cell.label} {changes}"))

    decay, alpha = ("optim.weight_decay", 3.0), ("car.alpha", 9.0)
    plain, strong = row("Balanced Softmax", LINES[:1]), with_(row("Balanced Softmax", LINES[1:]), decay)
    car = row("CAR", LINES[:1])
    rows = [plain, strong, with_(car, alpha), with_(car, decay, alpha), with_(car, ("features", "raw"))]
    same = [next((one.values for one in entry.figures if one.metric == "above_same_tail_overall"), None)
            for entry in with_distances(rows)]  # fmt: skip
    assert same == [(), (), (0.0,), (10.0,), ()]
