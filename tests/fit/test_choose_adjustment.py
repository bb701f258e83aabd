"""Tau, offsets and temperature: what was planted is found, what is noise is left alone."""

import numpy as np
import pytest

from spectail import ClassCounts
from spectail.fit.adjust import choose_adjustment, cut
from spectail.fit.goals import Goal, score
from spectail.fit.line import right_between
from spectail.fit.temperature import class_weights, fit_temperature, likelihood_and_error
from spectail.models.prior_line import prior_shift

COUNTS = ClassCounts([max(int(200 * 0.02 ** (j / 19)), 4) for j in range(20)])


def drawn(images=1200, seed=0, prior=1.0, signal=4.0, counts=COUNTS, equal=False):
    """Logits of a model that is right about the likelihood and adds ``prior`` times the logarithm of the prior."""
    random = np.random.default_rng(seed)
    size = len(counts)
    labels = random.choice(size, images, p=None if equal else counts.frequencies.numpy())
    logits = random.normal(size=(images, size)) * signal**0.5
    logits[np.arange(images), labels] += signal  # the log likelihood ratio of unit normals, shifted, times signal
    return (logits + prior * counts.frequencies.log().numpy()).astype(np.float32), labels


def test_the_line_of_tau_is_that_of_argmax():
    logits, labels = drawn(200)
    shift = prior_shift(COUNTS)
    low, high = right_between(logits, labels, shift)
    for tau in np.linspace(-3, 4, 41):
        moved = logits.astype(np.float64) + tau * shift
        np.testing.assert_array_equal((low < tau) & (tau < high), moved.argmax(1) == labels)
    empty = prior_shift(ClassCounts([8, 2, 0]))
    np.testing.assert_allclose(empty, [np.log(10 / 8), np.log(5), np.log(5)])
    beaten = right_between(np.array([[0.0, 1.0, 2.0]]), np.array([1]), empty)
    assert beaten[0] > beaten[1]  # by a class that moves as far


@pytest.mark.parametrize("alike", [True, False])
def test_the_temperature_is_that_of_a_grid(alike):
    logits, labels = drawn(400, prior=0.5)
    logits *= 3
    weights = class_weights(labels, 20, alike=alike)
    assert weights.sum() == pytest.approx(1)
    found = fit_temperature(logits, labels, weights)
    grid = np.exp(np.linspace(np.log(found) - 0.2, np.log(found) + 0.2, 81))
    losses, likely = [], []
    for one in grid:
        shares = np.exp(logits / one - (logits / one).max(1, keepdims=True))
        surprise = -np.log(shares / shares.sum(1, keepdims=True))
        own = surprise[np.arange(400), labels]
        likely.append(np.sum(weights * own))
        losses.append(np.sum(weights * (400 * own + surprise.mean(1))))  # one image more, which may be of any class
    assert abs(np.argmin(losses) - 40) <= 1
    losses = likely
    assert likelihood_and_error(logits / grid[40], labels, weights)[0] == pytest.approx(losses[40], rel=1e-5)


def test_temperatures_have_limits():
    labels = np.arange(6) % 3
    right = np.eye(3, dtype=np.float32)[labels]
    weights = class_weights(labels, 3, alike=True)
    assert 0.05 < fit_temperature(right, labels, weights) < 1  # all right, but of six images only
    many = np.tile(labels, 10**8 // 6 // 10**4)
    assert fit_temperature(3 * np.eye(3)[many], many, class_weights(many, 3, alike=True)) < 0.4
    assert fit_temperature(right[::-1].copy(), labels, weights) == pytest.approx(20, rel=1e-3)
    assert fit_temperature(np.zeros((6, 3)), labels, weights) > 0


def test_the_prior_that_was_planted_is_taken_off():
    logits, labels = drawn(1500, prior=1.0)
    adjustment, table = choose_adjustment(logits * 2, labels, COUNTS, folds=3)
    assert adjustment.tau == pytest.approx(2.0, abs=0.5)  # twice the logits, twice the prior
    np.testing.assert_allclose(adjustment.offsets, adjustment.tau * prior_shift(COUNTS), atol=1.5)
    assert adjustment.temperature == pytest.approx(2, abs=0.3)
    assert table.after["balanced"] > table.before["balanced"] + 5
    assert table.after["calibration error"] < table.before["calibration error"]
    test, true = drawn(2500, seed=1, prior=1.0, equal=True)
    shares = [score("balanced", one.argmax(1) == true, true, COUNTS) for one in (2 * test, adjustment.apply(2 * test))]
    assert shares[1] > shares[0] + 5
    assert shares[1] == pytest.approx(table.after["balanced"], abs=5)  # cross-fitted: no flattery
    only = choose_adjustment(logits * 2, labels, COUNTS, Goal.parse("overall"), folds=3)[0]
    assert abs(only.tau or 0) < 0.5  # the prior is right for the images as they come


def test_nothing_is_done_without_a_reason():
    """Of a model that needs no adjustment; now and then chance exceeds one standard error."""
    found = [choose_adjustment(*drawn(500, seed, prior=0.0, equal=True), COUNTS, folds=3) for seed in (1, 2, 3, 5)]
    left = [(adjustment, table) for adjustment, table in found if table.chosen == "nothing"]
    assert len(left) >= 2
    for adjustment, table in left:
        assert set(adjustment.offsets) == {0.0}
        assert adjustment.tau is None
        assert [table.after[name] for name in ("overall", "tail")] == [
            table.before[name] for name in ("overall", "tail")
        ]


@pytest.mark.parametrize("counted", [True, False])
def test_an_offset_that_was_planted_is_found(counted):
    """Three classes of all sizes that the model neglects, for a reason that is not their size."""
    logits, labels = drawn(1000, prior=0.0, equal=True)
    planted = np.zeros(20, dtype=np.float32)
    planted[[1, 10, 18]] = -6
    adjustment, table = choose_adjustment(logits + planted, labels, COUNTS if counted else None, folds=3)
    assert table.chosen.startswith("offsets")
    assert (adjustment.tau is None) == (not counted)
    offsets = np.array(adjustment.offsets)
    assert offsets[[1, 10, 18]].min() > np.delete(offsets, [1, 10, 18]).max()
    assert table.after["balanced"] > table.before["balanced"] + 3
    worst, shown = choose_adjustment(logits + planted, labels, COUNTS if counted else None, Goal("worst"), folds=3)
    assert shown.after["worst classes, estimated"] > shown.before["worst classes, estimated"] + 10
    assert worst.goal == "worst"


def test_a_class_without_validation_images_stays_on_the_line():
    logits, labels = drawn(1000, prior=0.0, equal=True)
    planted = np.where(np.arange(20) % 3 == 0, -6, 0).astype(np.float32)
    kept = labels != 6
    adjustment, table = choose_adjustment((logits + planted)[kept], labels[kept], COUNTS, folds=3)
    assert table.chosen.startswith("offsets")
    assert adjustment.offsets[6] == pytest.approx(adjustment.tau * prior_shift(COUNTS)[6])
    assert adjustment.offsets[9] > adjustment.offsets[8] + 1


def test_a_floor_is_kept_or_the_note_says_what_can_be_had():
    logits, labels = drawn(1500, prior=1.0)
    free, without = choose_adjustment(logits, labels, COUNTS, Goal("tail"), folds=3)
    before = without.before["overall"]
    assert without.after["overall"] < before - 5
    floor = Goal.parse("tail", [f"overall={before - 3:.0f}"])
    bound, table = choose_adjustment(logits, labels, COUNTS, floor, folds=3)
    assert table.choice.floor_met
    assert table.after["overall"] >= before - 3.5
    assert table.before["tail"] < table.after["tail"] < without.after["tail"]
    assert bound.tau < free.tau
    out, table = choose_adjustment(logits, labels, COUNTS, Goal.parse("tail", ["overall=99"]), folds=3)
    assert not table.choice.floor_met
    assert f"the nearest reaches overall {table.after['overall']:.1f} % of 99 %" in table.choice.note
    assert np.isfinite(out.offsets).all()


@pytest.mark.parametrize("goal", ["overall", "tail", "worst"])
def test_corners(goal):
    """One image per class, two classes, two images, equal counts: an answer, whatever it is worth."""
    random = np.random.default_rng(0)
    for counts, labels in (([30, 3], [0, 1]), ([5, 5, 5], [0, 1, 2]), ([50, 9, 4, 0], [0, 1, 2, 3]), ([9, 2], [0] * 6)):
        logits = random.normal(size=(len(labels), len(counts)))
        adjustment, table = choose_adjustment(logits, labels, counts, Goal(goal), folds=2)
        assert np.isfinite(adjustment.apply(logits)).all()
        assert (len(set(counts)) == 1) == ("tau" not in table.scores)
        assert all(0 <= value <= 100 for value in table.scores.values())


def test_the_same_twice():
    logits, labels = drawn(100)
    first, second = (choose_adjustment(logits, labels, COUNTS, Goal("worst"), folds=2, seed=7)[0] for _ in range(2))
    assert first == second


def test_folds_have_their_share_of_every_class():
    labels = np.repeat(np.arange(6), [1, 2, 4, 5, 11, 40])
    parts = cut(labels, 5, seed=0)
    for label in range(6):
        sizes = np.bincount(parts[labels == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    assert len(set(cut(labels, 5, seed=1)[labels == 5]) | set(parts)) == 5
    assert sorted(cut(np.array([0, 1]), 5, seed=0)) == [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda logits, labels: (np.where(logits > 2, np.nan, logits), labels, COUNTS, Goal()), "must be finite"),
        (lambda logits, labels: (logits, labels + 1, COUNTS, Goal()), r"labels must lie in \[0, 20\)"),
        (lambda logits, labels: (logits, labels[1:], COUNTS, Goal()), r"expected logits \(N, K\)"),
        (lambda logits, labels: (logits[:1], labels[:1], COUNTS, Goal()), "two validation images or more; got 1"),
        (lambda logits, labels: (logits, labels, [3, 2], Goal()), "one class count for each of the 20 classes; got 2"),
        (lambda logits, labels: (logits, labels, None, Goal("tail")), "which are not known"),
    ],
)
def test_refusals(change, words):
    logits, labels = drawn(100)
    labels[0] = 19
    with pytest.raises(ValueError, match=words):
        choose_adjustment(*change(logits, labels))
