"""Goals against slow loops and scikit-learn, the bootstrap against formulas, and the choice on figures made by hand."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from spectail import ClassCounts
from spectail.fit.figures import lowest_number, score_hits, shrunk_accuracies
from spectail.fit.goals import GOALS, Goal, bootstrap_scores, choose, class_accuracies, decide, score, score_all


def drawn(seed=0, images=400, classes=12, candidates=3):
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=images)
    labels[labels == 4] = 5  # a class without predictions
    predicted = np.where(random.random((candidates, images)) < 0.6, labels, random.integers(classes, size=images))
    predicted[predicted == 4] = 5
    return labels, predicted, predicted == labels


COUNTS = ClassCounts([300, 200, 150, 90, 60, 40, 30, 19, 15, 10, 6, 3])


def test_figures_are_those_of_slow_loops_and_of_scikit_learn():
    labels, predicted, correct = drawn()
    shares = [[row[labels == j].mean() for j in range(12) if (labels == j).any()] for row in correct]
    np.testing.assert_allclose(
        score_all(Goal(), correct, labels, COUNTS), [100 * balanced_accuracy_score(labels, row) for row in predicted]
    )
    np.testing.assert_allclose(score_all("overall", correct, labels, COUNTS), 100 * correct.mean(1))
    tail = [100 * np.mean(row[-5:]) for row in shares]  # 19, 15, 10, 6 and 3 images
    np.testing.assert_allclose(score_all("tail", correct, labels, COUNTS), tail)
    many = ClassCounts([count + 20 for count in COUNTS.tolist()])  # no class is tail: the rarest third of eleven
    np.testing.assert_allclose(score_all("tail", correct, labels, many), [100 * np.mean(row[-4:]) for row in shares])
    hits, totals = class_accuracies(correct, labels, 12)
    assert hits.tolist() == [[int(row[labels == j].sum()) for j in range(12)] for row in correct]
    assert totals.tolist() == [int((labels == j).sum()) for j in range(12)]
    for name in GOALS:
        one = [score(name, row, labels, COUNTS) for row in correct]
        np.testing.assert_allclose(score_all(name, correct, labels, COUNTS), one)


def slow_shrunk(hits, totals, sizes):
    """The formulas of the docstring, one class at a time."""
    shares = [h / n for h, n in zip(hits, totals, strict=True)]
    raw = [n / (9 + n) for n in totals]
    weights = [w / sum(raw) for w in raw]
    logs = [np.log(1 + size) for size in sizes]
    middle = sum(w * x for w, x in zip(weights, logs, strict=True))
    mean = sum(w * p for w, p in zip(weights, shares, strict=True))
    spread = sum(w * (x - middle) ** 2 for w, x in zip(weights, logs, strict=True))
    slope = sum(w * (p - mean) * (x - middle) for w, p, x in zip(weights, shares, logs, strict=True)) / spread
    edge = 0.5 / (sum(totals) + 1)
    prior = [min(max(mean + slope * (x - middle), edge), 1 - edge) for x in logs]
    number = len(totals)
    squares = sum(w * (p - m) ** 2 for w, p, m in zip(weights, shares, prior, strict=True)) * number / (number - 2)
    chance = sum(w * m * (1 - m) / n for w, m, n in zip(weights, prior, totals, strict=True))
    more = sum(w * m * (1 - m) * (1 - 1 / n) for w, m, n in zip(weights, prior, totals, strict=True))
    rho = min(max((squares - chance) / more, 1 / 10_001), 1)
    worth = 1 / rho - 1
    return [(h + worth * m) / (n + worth) for h, n, m in zip(hits, totals, prior, strict=True)]


def test_shrunk_accuracies_are_those_of_a_slow_loop():
    random = np.random.default_rng(1)
    totals = random.integers(1, 30, size=12)
    hits = random.binomial(totals, random.beta(2, 2, size=12))
    sizes = np.array(COUNTS.tolist(), dtype=float)
    expected = slow_shrunk(hits.tolist(), totals.tolist(), sizes.tolist())
    np.testing.assert_allclose(shrunk_accuracies(hits, totals, sizes), expected)
    lowest = 100 * np.sort(expected)[:2].mean()
    assert float(score_hits("lowest10", hits, totals, COUNTS)) == pytest.approx(lowest)
    assert float(score_hits("worst", hits, totals, COUNTS)) == pytest.approx(100 * np.sort(expected)[:3].mean())


def test_the_estimate_is_closer_to_the_truth_than_the_shares_are():
    random = np.random.default_rng(2)
    counts = ClassCounts([max(int(500 * 0.01 ** (j / 59)), 5) for j in range(60)])
    totals = np.array(counts.tolist()) // 5 + 2
    truth = 1 / (1 + np.exp(-random.normal(0.4 * (np.log(totals) - 3), 0.8, size=(200, 60))))
    hits = random.binomial(totals, truth)
    real = 100 * np.sort(truth, 1)[:, :6].mean(1)
    plain = 100 * np.sort(hits / totals, 1)[:, :6].mean(1)
    estimate = score_hits("lowest10", hits, totals, counts)
    assert np.square(estimate - real).mean() < 0.4 * np.square(plain - real).mean()


@pytest.mark.parametrize("size", [2, 5, 30])
def test_alike_and_single_images_give_the_mean(size):
    same = shrunk_accuracies(np.full(size, 3), np.full(size, 6))
    np.testing.assert_allclose(same, 0.5, atol=1e-3)
    single = shrunk_accuracies(np.arange(size) % 2, np.ones(size, dtype=int))
    np.testing.assert_allclose(single, np.mean(np.arange(size) % 2), atol=1e-3)
    assert 1 <= lowest_number("worst", size) <= max(1, size // 2)
    assert lowest_number("lowest10", size) >= 1


def test_the_bootstrap_has_the_variance_of_the_mean_and_is_paired():
    labels, _, correct = drawn(images=200)
    correct = np.vstack([correct, correct[:1]])
    scores = bootstrap_scores("balanced", correct, labels, COUNTS, draws=4000, seed=3)
    assert (scores[:, 0] == scores[:, 3]).all()
    seen = [j for j in range(12) if (labels == j).any()]
    for row, column in zip(correct[:3], scores.T[:3], strict=True):
        variance = sum(np.var(row[labels == j], ddof=1) / (labels == j).sum() for j in seen) / len(seen) ** 2
        assert column.std() == pytest.approx(100 * variance**0.5, rel=0.06)
        assert column.mean() == pytest.approx(score("balanced", row, labels, COUNTS), abs=0.3)
    assert (bootstrap_scores("worst", correct, labels, COUNTS, 5, seed=1).shape) == (5, 4)
    again = bootstrap_scores("worst", correct, labels, COUNTS, 5, seed=1)
    np.testing.assert_array_equal(again, bootstrap_scores("worst", correct, labels, COUNTS, 5, seed=1))


def test_classes_of_one_image_still_vary(monkeypatch):
    labels, correct = np.arange(12), (np.arange(12) % 2 == 0)[None]
    scores = bootstrap_scores("balanced", correct, labels, COUNTS, draws=2000)
    assert scores.std() == pytest.approx(100 * (0.25 / 12) ** 0.5, rel=0.1)
    monkeypatch.setattr("spectail.fit.goals.BLOCK", 1)  # draw by draw
    assert bootstrap_scores("balanced", correct, labels, COUNTS, draws=50).std() > 5


def test_the_simplest_within_one_standard_error_is_taken():
    random = np.random.default_rng(4)
    noise = random.normal(size=(500, 1))
    draws = np.array([50.0, 53.0, 54.0, 54.5]) + 9 * noise + random.normal(size=(500, 4)) * [0.1, 0.1, 1.5, 0.1]
    scores = draws.mean(0)
    choice = choose(Goal(), scores, draws, [0, 1, 2, 3])
    assert (choice.index, choice.best, choice.floor_met) == (2, 3, True)  # paired: the common noise of 9 is no excuse
    assert choice.within == (2, 3)
    assert choice.error == pytest.approx(1.5, rel=0.1)
    assert "within one standard error" in choice.note
    assert choose(Goal(), scores, draws, [0, 3, 2, 1]).index == 3
    assert choose(Goal(), scores[:2], draws[:, :2], [0, 1]).within == (1,)


def test_floors_come_first():
    draws = np.tile([[50.0, 60.0, 70.0]], (10, 1)) + np.arange(10)[:, None]
    kept = {"overall": np.array([80.0, 75.0, 60.0]), "tail": np.array([10.0, 20.0, 30.0])}
    floor = Goal.parse("worst", ["overall=70"])
    choice = choose(floor, draws[0], draws, [0, 1, 2], kept)
    assert (choice.index, choice.best, choice.floor_met) == (1, 1, True)
    both = choose(Goal.parse("worst", ["overall=70", "tail=25"]), draws[0], draws, [0, 1, 2], kept)
    assert (both.index, both.floor_met) == (1, False)
    assert "overall 75.0 % of 70 % and tail 20.0 % of 25 %" in both.note
    labels, _, correct = drawn()
    assert not decide(Goal.parse("balanced", ["overall=99"]), correct, labels, COUNTS, [0, 1, 2]).floor_met
    assert decide(Goal.parse("balanced", ["overall=20"]), correct, labels, COUNTS, [0, 0, 0]).floor_met


@pytest.mark.parametrize(
    ("name", "keep", "words"),
    [
        ("balnced", [], "there is no goal 'balnced'; did you mean 'balanced'?"),
        ("tail", ["overall"], "a floor is a figure and a number of percent, such as overall=80; got 'overall'."),
        ("tail", ["all=80"], "there is no figure 'all' to keep"),
        ("tail", ["overall=many"], "must be a number of percent from 0 to 100; got 'many'."),
        ("tail", ["overall=nan"], "must be a number of percent from 0 to 100"),
        ("tail", ["overall=101"], "must be a number of percent from 0 to 100"),
        ("tail", ["overall=0.8"], "write overall=80 if 80 % is meant"),
        ("tail", ["overall=8", "overall=9"], "is given twice"),
    ],
)
def test_goals_that_cannot_be(name, keep, words):
    with pytest.raises(ValueError, match="[.?]$") as error:
        Goal.parse(name, keep)
    assert words in str(error.value)


def test_goals_as_they_are_typed():
    goal = Goal.parse("worst", ["overall=80%", "tail = 12.5"])
    assert goal.keep == (("overall", 80.0), ("tail", 12.5))
    assert str(goal) == "worst, with overall at least 80 % and tail at least 12.5 %"
    with pytest.raises(ValueError, match="nothing to score"):
        score("balanced", np.zeros(0, dtype=bool), np.zeros(0, dtype=int), [3, 2])
