"""Comparisons against scipy's exact tests, a bootstrap of images one by one, and what must hold by symmetry."""

import json

import numpy as np
import pytest
import scipy.stats

from spectail.diagnosis import analyse, compare, make_predictions
from spectail.diagnosis.comparison import comparison_summary
from spectail.diagnosis.statistics import holm, mcnemar

CLASSES = 20
COUNTS = [max(int(500 * 0.01 ** (label / (CLASSES - 1))), 1) for label in range(CLASSES)]
LABELS = np.sort(np.random.default_rng(0).integers(0, CLASSES - 1, 800))  # the last class has no image


def guesses(skill, seed):
    """Predicted classes that are right with a chance that differs by class."""
    draw = np.random.default_rng(seed)
    right = draw.random(len(LABELS)) < np.clip(skill + 0.4 * np.cos(LABELS), 0.1, 0.95)
    return np.where(right, LABELS, (LABELS + draw.integers(1, CLASSES, len(LABELS))) % CLASSES)


def analysis(predicted, name="some", labels=LABELS, counts=COUNTS):
    return analyse(
        make_predictions(
            labels, predicted, class_names=[f"c{i}" for i in range(CLASSES)], class_counts=counts, name=name
        )
    )


@pytest.fixture(scope="module")
def three():
    return [analysis(guesses(skill, seed), name) for skill, seed, name in ((0.4, 1, "a"), (0.5, 2, "b"), (0.4, 3, "c"))]


# ---- tests


@pytest.mark.parametrize(("one", "two"), [(0, 0), (0, 1), (3, 3), (2, 8), (0, 40), (17, 5), (100, 130), (4000, 4100),
                                          (500, 9), (20_000, 20_001), (0, 3_000)])  # fmt: skip
def test_mcnemar_is_the_binomial_test(one, two):
    exact, mid = mcnemar(one, two)
    if one + two == 0:
        assert (exact, mid) == (1, 1)
        return
    low, total = min(one, two), one + two
    assert exact == pytest.approx(scipy.stats.binomtest(low, total, 0.5).pvalue, rel=1e-8, abs=1e-300)
    by_hand = 2 * scipy.stats.binom.cdf(low - 1, total, 0.5) + scipy.stats.binom.pmf(low, total, 0.5)
    assert mid == pytest.approx(min(by_hand, 1), rel=1e-8, abs=1e-300)
    assert mcnemar(two, one) == (exact, mid)


def test_holm_by_a_slow_loop():
    draw = np.random.default_rng(0)
    for size in (1, 2, 7, 40):
        values = draw.random(size) ** 4
        values[: size // 3] = values[0]  # ties
        order, wanted, before = np.argsort(values), np.empty(size), 0.0
        for place, at in enumerate(order):
            before = max(before, min(1.0, (size - place) * values[at]))
            wanted[at] = before
        np.testing.assert_allclose(holm(values), wanted)


def test_pairs_and_their_tests(three):
    found = compare(three)
    assert [(pair.baseline, pair.name) for pair in found.pairs] == [("a", "b"), ("a", "c")]
    for pair, other in zip(found.pairs, three[1:], strict=True):
        first, second = (entry.predictions.predicted == LABELS for entry in (three[0], other))
        assert pair.only_baseline == (first & ~second).sum()
        assert pair.only_other == (~first & second).sum()
        test = scipy.stats.binomtest(pair.only_baseline, pair.only_baseline + pair.only_other)
        assert pair.p_exact == pytest.approx(test.pvalue)
        assert pair.p_mid < pair.p_exact
        for key in ("overall", "balanced", "head", "medium", "tail", "bottom_10pct", "bottom_20pct"):
            gain = other.metrics[key] - three[0].metrics[key]
            assert pair.differences[key].value == pytest.approx(gain, abs=1e-9)
            assert pair.differences[key].low < gain < pair.differences[key].high


def test_classes_and_their_tests():
    """One class turned round, the others left to chance."""
    base = guesses(0.5, 1)
    other = guesses(0.5, 2)
    base[LABELS == 4], other[LABELS == 4] = 5, 4
    pair = compare([analysis(base), analysis(other)]).pairs[0]
    p_values = []
    for entry in pair.per_class:
        mine = np.equal(LABELS, entry["index"])
        if not mine.any():
            assert entry["p"] is entry["p_holm"] is entry["difference"] is entry["baseline"] is entry["other"] is None
            assert not entry["significant"]
            continue
        first, second = (base == LABELS)[mine], (other == LABELS)[mine]
        assert entry["baseline"] == pytest.approx(100 * first.mean())
        assert entry["other"] == pytest.approx(100 * second.mean())
        assert entry["difference"] == pytest.approx(100 * (second.mean() - first.mean()))
        changed = int((first != second).sum())
        only = int((first & ~second).sum())
        assert entry["p"] == pytest.approx(scipy.stats.binomtest(only, changed).pvalue if changed else 1)
        p_values.append(entry["p"])
    seen = [entry for entry in pair.per_class if entry["p"] is not None]
    adjusted = scipy_holm(p_values)
    assert [entry["p_holm"] for entry in seen] == pytest.approx(adjusted)
    assert [entry["significant"] for entry in seen] == [p < 0.05 for p in adjusted]
    assert [entry["name"] for entry in pair.per_class if entry["significant"]] == ["c4"]


def scipy_holm(values):
    """Holm by the closed-testing definition: the largest Bonferroni-adjusted p over what is at least as small."""
    ordered = sorted(values)
    return [min(1.0, max((len(values) - rank) * p for rank, p in enumerate(ordered) if p <= value)) for value in values]


# ---- intervals


def test_intervals_are_those_of_drawing_images(three):
    """A bootstrap of image numbers, class by class, one less than there are."""
    base, other = (entry.predictions.predicted == LABELS for entry in three[:2])
    found = compare(three[:2], draws=4_000).pairs[0].differences
    draw = np.random.default_rng(5)
    members = [np.flatnonzero(np.equal(LABELS, label)) for label in range(CLASSES - 1)]
    tail = [label for label in range(CLASSES - 1) if COUNTS[label] < 20]
    low_base, low_other = (
        np.argsort([right[rows].mean() for rows in members], kind="stable")[:2] for right in (base, other)
    )
    overall, in_tail, bottom = [], [], []
    for _ in range(800):
        rows = [draw.choice(mine, len(mine) - 1) for mine in members]
        first, second = (np.array([right[mine].mean() for mine in rows]) for right in (base, other))
        sizes = np.array([len(mine) for mine in members])
        overall.append(100 * ((second - first) * sizes).sum() / sizes.sum())
        in_tail.append(100 * (second - first)[tail].mean())
        bottom.append(100 * (second[low_other].mean() - first[low_base].mean()))
    for key, values in (("overall", overall), ("tail", in_tail), ("bottom_10pct", bottom)):
        low, high = np.quantile(values, [0.025, 0.975])
        width = high - low
        assert (found[key].low, found[key].high) == pytest.approx((low, high), abs=0.12 * width), key


def test_the_spread_is_right_for_three_images_per_class():
    """The unbiased variance of a class's mean divides by n - 1; a plain bootstrap would be 18 % too narrow."""
    draw = np.random.default_rng(0)
    labels = np.arange(600) // 3
    first, second = (draw.random(600) < share for share in (0.4, 0.6))
    some = [analyse(make_predictions(labels, np.where(right, labels, 199 - labels))) for right in (first, second)]
    gain = 100.0 * (second.astype(float) - first).reshape(200, 3)
    spread = np.sqrt((gain.var(1, ddof=1) / 3).sum()) / 200
    found = compare(some).pairs[0].differences["balanced"]
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=0.08)


def test_the_same_seed_gives_the_same_interval(three):
    first, again, other = compare(three), compare(three), compare(three, seed=1)
    assert first.pairs == again.pairs
    assert first.pairs[0].differences != other.pairs[0].differences
    assert first.draws == 2_000


def test_blocks_of_draws_do_not_change_what_is_found(three, monkeypatch):
    whole = compare(three[:2]).pairs[0].differences
    monkeypatch.setattr("spectail.diagnosis.comparison.CELLS", 700)
    assert compare(three[:2]).pairs[0].differences == whole


def test_turned_round_everything_changes_sign(three):
    there, back = compare([three[0], three[1]]).pairs[0], compare([three[1], three[0]]).pairs[0]
    assert (there.only_baseline, there.only_other) == (back.only_other, back.only_baseline)
    assert (there.p_exact, there.p_mid) == (back.p_exact, back.p_mid)
    for key, found in there.differences.items():
        opposite = back.differences[key]
        assert found.value == pytest.approx(-opposite.value)
        assert found.low == pytest.approx(-opposite.high, abs=0.15 * (found.high - found.low))


def test_a_twin_differs_in_nothing(three):
    pair = compare([three[0], three[0]]).pairs[0]
    assert (pair.only_baseline, pair.only_other, pair.p_exact, pair.p_mid) == (0, 0, 1, 1)
    assert {(found.value, found.low, found.high, found.clear) for found in pair.differences.values()} == {
        (0, 0, 0, False)
    }
    assert not any(entry["significant"] for entry in pair.per_class)


def test_without_counts_there_are_no_groups(three):
    bare = [analysis(entry.predictions.predicted, counts=None) for entry in three]
    found = compare(bare).pairs[0].differences
    assert found["head"] is found["medium"] is found["tail"] is None
    assert found["overall"] == compare(three).pairs[0].differences["overall"]


def test_one_image():
    one = [analyse(make_predictions([1], [guess], class_names="abc")) for guess in (1, 2)]
    found = compare(one).pairs[0]
    assert (found.only_baseline, found.p_exact, found.differences["overall"].value) == (1, 1.0, -100)


# ---- what is refused


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: analysis(guesses(0.5, 1)[:-1], "b", LABELS[:-1]), "a and b must be of the same test images; they hav"),
        (lambda: analysis(guesses(0.5, 1), "b", LABELS[::-1]), "same order; row 0 .* agree: write both without shu"),
        (lambda: analysis(guesses(0.5, 1), "b", (LABELS + 1) % CLASSES), r"row 0 is 0 in one and 1 in the other\.$"),
        (lambda: analyse(make_predictions(LABELS, guesses(0.5, 1), class_names=range(21))), "same classes; they have"),
    ],
)  # fmt: skip
def test_other_images_are_refused(three, other, words):
    with pytest.raises(ValueError, match=words):
        compare([three[0], other()])


def test_one_alone_is_refused(three):
    with pytest.raises(ValueError, match="two sets of predictions or more; got 1"):
        compare(three[:1])


def test_the_summary_is_json(three):
    content = json.loads(json.dumps(comparison_summary(compare(three)), allow_nan=False))
    assert content["baseline"] == "a"
    assert [pair["name"] for pair in content["pairs"]] == ["b", "c"]
    assert content["pairs"][0]["differences"]["overall"].keys() == {"value", "low", "high"}
