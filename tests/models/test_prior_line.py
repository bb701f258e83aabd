"""The line of one classifier, against a loop that shifts and counts, and against metrics of the shifted logits."""

import numpy as np
import pytest
import torch

from spectail import ClassCounts
from spectail.metrics import Metrics
from spectail.models import prior_line
from spectail.models.adjustment import Adjustment
from spectail.models.prior_line import ALONG, SHIFTS, figures_along, prior_shift

COUNTS = ClassCounts([400, 150, 90, 60, 30, 19, 8, 8, 3, 1, 0])


def drawn(number=300, seed=0):
    """Logits that are right about half the time and lean to frequent classes; class 4 has no test image."""
    generator, classes = np.random.default_rng(seed), len(COUNTS)
    labels = generator.choice([label for label in range(classes) if label != 4], number)
    logits = generator.normal(size=(number, classes)) + 2.5 * np.eye(classes)[labels] - prior_shift(COUNTS)
    return logits.astype(np.float32), labels


def test_every_figure_is_that_of_a_slow_loop():
    logits, labels = drawn()
    line = figures_along(logits, labels, COUNTS)
    priors = [max(count, 1) / 769 for count in COUNTS.counts.tolist()]
    groups = {"head": (0, 1), "medium": (2, 3), "tail": (5, 6, 7, 8, 9, 10)}
    assert line["shifts"] == list(SHIFTS)
    for at, delta in enumerate(SHIFTS):
        hits, images = [0] * len(COUNTS), [0] * len(COUNTS)
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
            shifted = [value - delta * np.log(prior) for value, prior in zip(row, priors, strict=True)]
            hits[label] += shifted.index(max(shifted)) == label
            images[label] += 1
        shares = {label: 100 * hits[label] / images[label] for label in range(len(COUNTS)) if images[label]}
        ordered = sorted(shares.values())
        expected = {name: np.mean([shares[label] for label in members]) for name, members in groups.items()}
        expected |= {"overall": 100 * sum(hits) / len(labels), "balanced": np.mean(ordered), "worst_test": ordered[0],
                     "bottom_10pct": ordered[0], "bottom_20pct": np.mean(ordered[:2])}  # fmt: skip
        assert {name: line[name][at] for name in ALONG} == pytest.approx(expected)


@pytest.mark.parametrize("shift", [-1.5, 0.0, 0.7, 2.5])
def test_a_point_of_the_line_is_what_the_shifted_model_has(shift):
    logits, labels = drawn(seed=1)
    names = tuple(map(str, range(len(COUNTS))))
    metrics = Metrics(COUNTS)
    shifted = Adjustment(names, tuple(shift * prior_shift(COUNTS))).apply(logits)
    metrics.update(torch.from_numpy(shifted), torch.from_numpy(labels))
    line, found = figures_along(logits, labels, COUNTS), metrics.compute()
    assert {name: line[name][SHIFTS.index(shift)] for name in ALONG} == {name: found[name] for name in ALONG}


def test_ties_fall_as_they_do_in_the_evaluation():
    """Half precision has many: the first of the tied classes is predicted, also where logits are not shifted."""
    logits = np.zeros((4, 3), dtype=np.float32)
    line = figures_along(logits, np.array([0, 0, 1, 2]), ClassCounts([9, 9, 9]))
    assert line["overall"] == [50.0] * len(SHIFTS)


def test_a_head_trained_without_tau_has_the_line_of_one_with_it():
    """Balanced Softmax with tau 1 differs from cross entropy by the log of the prior: the lines are one, moved by 1."""
    logits, labels = drawn(seed=2)
    plain = figures_along(logits, labels, COUNTS)
    balanced = figures_along((logits + prior_shift(COUNTS)).astype(np.float32), labels, COUNTS)
    for name in ALONG:
        assert plain[name][10:] == pytest.approx(balanced[name][:-10], abs=100 / len(labels) * 3)


def test_blocks_change_nothing(monkeypatch):
    logits, labels = drawn()
    whole = figures_along(logits, labels, COUNTS)
    monkeypatch.setattr(prior_line, "BLOCK", 7 * len(COUNTS))
    assert figures_along(logits, labels, COUNTS) == whole


def test_a_group_without_images_is_none():
    line = figures_along(np.eye(2, dtype=np.float32), np.array([0, 1]), ClassCounts([500, 400]))
    assert (line["head"][15], line["tail"]) == (100.0, [None] * len(SHIFTS))
