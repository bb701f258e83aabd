"""The diagnosis against scikit-learn, numpy's SVD, the project's metrics and slow loops."""

import json
import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from spectail._core.pairs import Pairs, wilson_limits
from spectail._core.sparse_svd import leading
from spectail.diagnosis import analyse, make_predictions, summary
from spectail.diagnosis import analysis as module
from spectail.diagnosis.statistics import mean_interval
from spectail.functional import class_weights
from spectail.functional import confusion as hard_confusion
from spectail.metrics import Metrics, wilson_interval


def sample(classes=12, count=400, present=None, seed=0, skill=1.5):
    """Scores of a model that leans to the first classes, and labels of the classes ``present``."""
    draw = np.random.default_rng(seed)
    labels = draw.choice(present if present is not None else classes, count)
    scores = draw.normal(size=(count, classes)) * 1.5 - 1.5 * np.arange(classes) / classes
    scores[np.arange(count), labels] += draw.normal(skill, 1.5, count)
    return labels, scores.astype(np.float32)


def tail_counts(classes):
    return [max(int(500 * 0.01 ** (label / (classes - 1))), 1) for label in range(classes)]


CASES = {
    "all classes": sample(),
    "absent classes": sample(present=[0, 2, 3, 7, 11]),
    "one class has images": sample(present=[4], count=30),
    "two classes": sample(classes=2, count=50),
    "few images": sample(count=15),
    "one image": sample(count=1),
    "all right": (np.arange(36) // 3, np.eye(12, dtype=np.float32)[np.arange(36) // 3] * 9),
    "all wrong": (np.arange(36) // 3, np.eye(12, dtype=np.float32)[(np.arange(36) // 3 + 1) % 12] * 9),
    "always one answer": (sample()[0], np.eye(12, dtype=np.float32)[np.full(400, 5)] * 9),
    "many classes": sample(classes=300, count=2_000, skill=3),
}  # fmt: skip
case = pytest.mark.parametrize(("labels", "scores"), CASES.values(), ids=CASES.keys())


def found_in(labels, scores, **options):
    return analyse(make_predictions(labels, scores, class_counts=tail_counts(scores.shape[1])), **options)


# ---- accuracies


@case
@pytest.mark.parametrize("convention", ["count", "thirds"])
def test_metrics_are_those_of_a_run(labels, scores, convention):
    metrics = Metrics(tail_counts(scores.shape[1]), convention)
    metrics.update(torch.from_numpy(scores), torch.from_numpy(labels))
    wanted = metrics.compute()
    found = found_in(labels, scores, convention=convention).metrics
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == (pytest.approx(value, rel=1e-7, abs=1e-7) if isinstance(value, float) else value), key


@case
def test_blocks_do_not_matter(labels, scores, monkeypatch):
    whole = found_in(labels, scores)
    monkeypatch.setattr(module, "BLOCK", 7 * scores.shape[1])
    parts = found_in(labels, scores)
    assert parts.metrics["nll"] == pytest.approx(whole.metrics["nll"], rel=1e-6)
    assert parts.calibration["ece"] == pytest.approx(whole.calibration["ece"], abs=1e-4)
    assert [entry["count"] for entry in parts.calibration["bins"]] == [
        entry["count"] for entry in whole.calibration["bins"]
    ]


@case
def test_classes_equal_those_of_scikit_learn(labels, scores):
    found, size, predicted = found_in(labels, scores), scores.shape[1], scores.argmax(1)
    matrix = sklearn.metrics.confusion_matrix(labels, predicted, labels=range(size)).T  # theirs has true rows
    np.testing.assert_array_equal(found.confusion, matrix)
    assert found.confusion.dtype == np.int32
    report = sklearn.metrics.classification_report(
        labels, predicted, labels=range(size), output_dict=True, zero_division=0
    )
    for entry in found.per_class:
        theirs = report[str(entry["index"])]
        assert entry["test_count"] == theirs["support"]
        if not entry["test_count"]:
            assert entry["accuracy"] is entry["low"] is entry["high"] is None
        else:
            assert entry["accuracy"] == pytest.approx(100 * theirs["recall"])
            right = round(theirs["recall"] * theirs["support"])
            interval = wilson_interval(right, entry["test_count"])
            assert (entry["low"], entry["high"]) == pytest.approx([100 * bound for bound in interval], abs=1e-9)
        if not matrix[entry["index"]].sum():
            assert entry["precision"] is None
        else:
            assert entry["precision"] == pytest.approx(100 * theirs["precision"])
    total, right = matrix.sum(), np.trace(matrix)
    named, seen = matrix.sum(1).astype(float), matrix.sum(0).astype(float)
    spread = math.sqrt(total**2 - named @ named) * math.sqrt(total**2 - seen @ seen)
    matthews = (right * total - named @ seen) / spread if spread else 0.0
    assert matthews == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predicted))


@case
def test_confusions_equal_those_of_a_slow_loop(labels, scores):
    found, predicted = found_in(labels, scores), scores.argmax(1).tolist()
    images = {label: labels.tolist().count(label) for label in set(labels.tolist())}
    pairs = {}
    for true, guess in zip(labels.tolist(), predicted, strict=True):
        if true != guess:
            pairs[true, guess] = pairs.get((true, guess), 0) + 1
    wanted = sorted(
        ((true, guess, count, 100 * count / images[true]) for (true, guess), count in pairs.items()),
        key=lambda row: (-row[2], -row[3], row[0], row[1]),
    )
    shown = [(entry.true, entry.predicted, entry.count, entry.share) for entry in found.top_confusions]
    assert shown == wanted[:50]
    for entry in found.per_class:
        own = sorted((row for row in wanted if row[0] == entry["index"]), key=lambda row: (-row[2], row[1]))[:3]
        assert [(taken.predicted, taken.count) for taken in entry["taken_for"]] == [row[1:3] for row in own]
    order = sorted(images, key=lambda label: (found.per_class[label]["accuracy"], -images[label], label))
    assert found.worst == order


def test_groups_follow_the_counts_and_the_convention():
    labels, scores = CASES["all classes"]
    counts = [500, 101, 100, 20, 19, 5, 0, 60, 60, 60, 60, 60]
    found = analyse(make_predictions(labels, scores, class_counts=counts))
    groups = [entry["group"] for entry in found.per_class]
    assert groups[:7] == ["head", "head", "medium", "medium", "tail", "tail", "tail"]
    assert [entry["train_count"] for entry in found.per_class] == counts
    other = analyse(make_predictions(labels, scores, class_counts=counts), convention="oltr")
    assert [entry["group"] for entry in other.per_class][2:4] == ["head", "tail"]
    for known in (counts, None):
        with pytest.raises(ValueError, match="convention must be one of .* got 'halves'"):
            analyse(make_predictions(labels, scores, class_counts=known), convention="halves")


def test_without_counts_there_are_no_groups():
    labels, scores = CASES["all classes"]
    found = analyse(make_predictions(labels, scores))
    for key in ("head", "medium", "tail", "groups", "spectral_norm"):
        assert found.metrics[key] is None
    assert all(found.intervals[key] is None for key in ("head", "medium", "tail"))
    assert (
        {entry["group"] for entry in found.per_class} == {entry["train_count"] for entry in found.per_class} == {None}
    )
    assert found.metrics["overall"] == found_in(labels, scores).metrics["overall"]
    matrix = hard_confusion(torch.from_numpy(scores.argmax(1)), torch.from_numpy(labels), 12)
    assert found.spectrum.singular_values[0] == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-5)
    assert found.spectrum.weights.tolist() == [1.0] * 12


def test_predicted_classes_alone():
    labels, scores = CASES["all classes"]
    with_scores = found_in(labels, scores)
    alone = analyse(make_predictions(labels, scores.argmax(1), class_names=range(12), class_counts=tail_counts(12)))
    for key in with_scores.metrics.keys() - {"ece", "nll", "brier"}:
        assert alone.metrics[key] == with_scores.metrics[key]
    assert alone.metrics["ece"] is alone.calibration is None


# ---- intervals


@case
def test_intervals(labels, scores):
    found = found_in(labels, scores)
    right = int((labels == scores.argmax(1)).sum())
    assert found.intervals["overall"] == pytest.approx([100 * bound for bound in wilson_interval(right, len(labels))])
    assert found.intervals["worst"] == tuple(found.metrics["worst_test_interval"])
    assert found.intervals.keys() == {"overall", "balanced", "head", "medium", "tail", "worst"}
    for key in ("overall", "balanced", "head", "medium", "tail"):
        value, interval = found.metrics[key], found.intervals[key]
        assert (value is None) == (interval is None)
        if interval is not None:
            assert 0 <= interval[0] <= value + 1e-9
            assert value - 1e-9 <= interval[1] <= 100
            assert interval[0] < interval[1]


def test_the_interval_of_one_class_is_wilsons():
    assert mean_interval(np.array([7, 0]), np.array([30, 0])) == pytest.approx(wilson_interval(7, 30))
    assert mean_interval(np.array([0, 0]), np.array([0, 0])) is None
    low, high = wilson_limits(np.array([3, 0]), np.array([5, 0]))
    assert (low[0], high[0]) == pytest.approx(wilson_interval(3, 5))
    assert np.isnan(low[1])
    assert np.isnan(high[1])


SHARES = {
    "few images each": (np.linspace(0, 1, 20), 10),
    "a bad tail": (np.full(30, 0.02), 50),
    "CIFAR-100": (np.linspace(0.1, 0.6, 35), 100),
    "iNaturalist, good": (np.full(200, 0.9), 3),
    "iNaturalist, mixed": (np.linspace(0, 0.5, 300), 3),
    "two classes": (np.array([0.3, 0.8]), 20),
    "two extremes": (np.array([0.02, 0.98]), 20),
    "mostly 0 or 1": (np.random.default_rng(0).beta(0.2, 0.2, 200), 50),
    "one image each": (np.full(200, 0.3), 1),
}


@pytest.mark.parametrize(("shares", "images"), SHARES.values(), ids=SHARES.keys())
def test_the_interval_of_a_mean_covers_the_truth(shares, images):
    """In about 95 % of repetitions, and it is hardly wider than the true spread of the mean asks for."""
    draw = np.random.default_rng(0)
    total = np.full(len(shares), images)
    limits = [mean_interval(draw.binomial(images, shares), total) for _ in range(1_000)]
    assert np.mean([low <= shares.mean() <= high for low, high in limits]) > 0.93
    spread = math.sqrt((shares * (1 - shares) / images).sum()) / len(shares)
    assert np.mean([high - low for low, high in limits]) < 1.4 * 2 * 1.96 * spread


def test_the_interval_of_a_mean_never_vanishes():
    for right in ([0, 0, 0], [10, 10, 10], [0, 10, 10], [0, 1, 10]):
        low, high = mean_interval(np.array(right), np.full(3, 10))
        assert low <= np.mean(right) / 10 <= high
        assert high - low > 0.03


# ---- the spectrum


def weighted(labels, predicted, counts):
    """C with zero diagonal times Lambda, by the definition."""
    size = len(counts)
    matrix, images = np.zeros((size, size)), np.zeros(size)
    for true, guess in zip(labels, predicted, strict=True):
        images[true] += 1
        matrix[guess, true] += true != guess
    return matrix / np.maximum(images, 1) * (np.array(counts) / sum(counts) + 0.2) ** -0.5


@case
def test_the_spectrum_is_that_of_the_whole_svd(labels, scores):
    found, counts = found_in(labels, scores), tail_counts(scores.shape[1])
    matrix = weighted(labels, scores.argmax(1), counts)
    if not matrix.any():
        assert found.spectrum is None
        assert found.metrics["spectral_norm"] == 0
        return
    spectrum, values = found.spectrum, np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(spectrum.singular_values, values[:10], atol=1e-7 * values[0])
    assert found.metrics["spectral_norm"] == spectrum.singular_values[0]
    np.testing.assert_allclose(matrix @ spectrum.right, values[0] * spectrum.left, atol=1e-9)
    np.testing.assert_allclose(matrix.T @ spectrum.left, values[0] * spectrum.right, atol=1e-9)
    assert min(spectrum.left.min(), spectrum.right.min()) >= 0
    np.testing.assert_allclose(spectrum.energy, 100 * (matrix.T @ spectrum.left) ** 2 / values[0] ** 2, atol=1e-8)
    assert spectrum.energy.sum() == pytest.approx(100)
    np.testing.assert_allclose(spectrum.weights, class_weights(counts, dtype=torch.float64).numpy())
    for top, direction in ((spectrum.top_true, spectrum.right), (spectrum.top_predicted, spectrum.left)):
        order = np.argsort(-direction, kind="stable")[: len(top)]
        assert top == order.tolist()
        assert len(top) == 10 or (direction[top] ** 2).sum() >= 0.8 - 1e-9
        assert len(top) == 1 or (direction[top[:-1]] ** 2).sum() < 0.8


def entries(matrix):
    rows, columns = np.nonzero(matrix)
    return rows, columns, matrix[rows, columns], len(matrix)


def stars(draw, size):
    """Three images per class, errors towards a few classes: many equal and many close values."""
    true = np.repeat(np.arange(size), 3)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (draw.zipf(1.5, 3 * size) % size, true), 1 / 3)
    return matrix


MATRICES = {
    "random": lambda draw: draw.random((300, 300)) * (draw.random((300, 300)) < 0.02),
    "stars": lambda draw: stars(draw, 400),
    "permutation": lambda draw: np.roll(np.eye(300), 1, axis=0),
    "two equal blocks": lambda draw: np.kron(np.eye(2), draw.random((150, 150)) < 0.1).astype(float),
    "one entry": lambda draw: np.eye(1, 90_000, 301).reshape(300, 300),
    "rank two": lambda draw: np.outer(draw.random(300), draw.random(300)) + np.outer(draw.random(300), np.ones(300)),
    "nearly equal": lambda draw: np.diag(1 - 1e-6 * np.arange(300.0)),
    "graded": lambda draw: np.diag(0.5 ** np.arange(300.0)),
    "dense": lambda draw: draw.random((300, 300)),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("size", [300, 40])
def test_leading_singular_values(name, size):
    """By the search (300 classes or more) and by the SVD (40)."""
    matrix = MATRICES[name](np.random.default_rng(0))
    matrix = matrix if size == 300 else matrix[:size, :size]
    values, left, right = leading(*entries(matrix), count=10)
    whole, best = np.linalg.svd(matrix, compute_uv=False), np.linalg.norm(matrix, 2)
    np.testing.assert_allclose(values, whole[:10], atol=1e-7 * best)
    if best:
        assert np.linalg.norm(matrix @ right - best * left) < 1e-6 * best
        assert np.linalg.norm(matrix.T @ left - best * right) < 1e-5 * best
        assert np.linalg.norm(left) == pytest.approx(1)
        assert min(left.min(), right.min()) >= 0


def test_of_equal_directions_none_is_preferred():
    """Two blocks of one norm: the direction shows both, whatever the order of the classes."""
    _, left, right = leading(*entries(np.array([[0, 2.0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2.0], [0, 0, 0, 0]])))
    np.testing.assert_allclose(right, [0, 0.5**0.5, 0, 0.5**0.5])
    np.testing.assert_allclose(left, [0.5**0.5, 0, 0.5**0.5, 0])


def test_a_made_up_direction():
    """Every cat is taken for a dog and nothing else goes wrong: the direction is that pair."""
    labels = np.repeat(np.arange(3), 4)
    predicted = np.where(labels == 1, 2, labels)
    found = analyse(make_predictions(labels, predicted, class_names=["otter", "cat", "dog"], class_counts=[80, 15, 5]))
    assert (found.spectrum.top_true, found.spectrum.top_predicted) == ([1], [2])
    assert found.spectrum.singular_values.tolist() == pytest.approx([(0.15 + 0.2) ** -0.5, 0, 0])
    assert found.spectrum.energy.tolist() == pytest.approx([0, 100, 0])


# ---- calibration


@case
def test_calibration(labels, scores):
    found = found_in(labels, scores).calibration
    shares = torch.from_numpy(scores).double().softmax(1).numpy()
    sure, right = shares.max(1), scores.argmax(1) == labels
    gap = 0.0
    for place, entry in enumerate(found["bins"]):
        inside = (sure > place / 15) & (sure <= (place + 1) / 15)
        assert entry["count"] == inside.sum()
        assert (entry["low"], entry["high"]) == pytest.approx((100 * place / 15, 100 * (place + 1) / 15))
        if not inside.any():
            assert entry["confidence"] is entry["accuracy"] is None
            continue
        assert entry["confidence"] == pytest.approx(100 * sure[inside].mean(), abs=1e-4)
        assert entry["accuracy"] == pytest.approx(100 * right[inside].mean())
        gap += inside.sum() * abs(sure[inside].mean() - right[inside].mean())
    assert found["ece"] == pytest.approx(100 * gap / len(labels), abs=1e-4)
    assert found["mean_confidence"] == pytest.approx(100 * sure.mean(), abs=1e-4)
    assert found["accuracy"] == pytest.approx(100 * right.mean())


# ---- the view


def slow_view(matrix, worst, size=10):
    """Greedy by the definition, on the whole matrix of shares."""
    shares = matrix / np.maximum(matrix.sum(0), 1)
    np.fill_diagonal(shares, 0)
    chosen = []
    while len(chosen) < min(size, len(matrix)):
        rest = [label for label in range(len(matrix)) if label not in chosen]
        mass = {label: sum(shares[label, other] + shares[other, label] for other in chosen) for label in rest}
        best = max(mass.values())
        if best > 0:
            chosen.append(next(label for label in rest if mass[label] > best - 1e-12))
            continue
        left = [label for label in worst if label not in chosen]
        if not left:
            break
        chosen.append(left[0])
    return chosen


@case
def test_the_view(labels, scores):
    found = found_in(labels, scores)
    assert found.view == slow_view(found.confusion.astype(float), found.worst)
    assert found.view[0] == found.worst[0]
    assert len(set(found.view)) == len(found.view) <= 10


# ---- large sets, and JSON


def test_many_classes_have_no_whole_matrix():
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(2_001), 2)
    predicted = np.where(draw.random(len(labels)) < 0.6, labels, draw.zipf(1.5, len(labels)) % 2_001)
    found = analyse(make_predictions(labels, predicted, class_counts=tail_counts(2_001)))
    assert found.confusion is None
    metrics = Metrics(tail_counts(2_001))
    metrics.update_predicted(torch.from_numpy(predicted), torch.from_numpy(labels))
    assert found.metrics["spectral_norm"] == pytest.approx(metrics.spectral_norm(), rel=1e-8)
    assert found.metrics["tail"] == metrics.compute()["tail"]
    assert len(found.view) == 10


def test_pairs_are_the_matrix():
    labels, scores = CASES["absent classes"]
    pairs = Pairs.of(scores.argmax(1), labels, 12)
    matrix = np.zeros((12, 12), dtype=int)
    matrix[pairs.predicted, pairs.true] = pairs.count
    theirs = sklearn.metrics.confusion_matrix(labels, scores.argmax(1), labels=range(12)).T
    np.testing.assert_array_equal(matrix, theirs)
    np.testing.assert_array_equal(pairs.right, np.diag(theirs))
    np.testing.assert_array_equal(pairs.total, theirs.sum(0))
    np.testing.assert_array_equal(pairs.named, theirs.sum(1))


@case
def test_the_summary_is_complete_json(labels, scores):
    found = found_in(labels, scores)
    content = json.loads(json.dumps(summary(found), allow_nan=False))
    matrix = np.diag([round((entry["accuracy"] or 0) * entry["test_count"] / 100) for entry in content["per_class"]])
    for true, predicted, count in content["confusions"]:
        matrix[predicted, true] += count
    np.testing.assert_array_equal(matrix, found.confusion)
    assert content["metrics"]["overall"] == found.metrics["overall"]
    assert content["samples"] == len(labels)
    assert [content["classes"].index(name) for name in content["worst"]] == found.worst
    assert content["top_confusions"] == [
        {"true": str(entry.true), "predicted": str(entry.predicted), "count": entry.count, "share": entry.share}
        for entry in found.top_confusions
    ]
    assert content.keys() >= {"intervals", "spectrum", "calibration", "view", "class_counts", "name"}
