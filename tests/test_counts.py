import copy
import pickle
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from spectail import ClassCounts


class DataSet:
    targets = (2, 0, 0, 1, 0)


@pytest.mark.parametrize(
    "given",
    [
        [3, 1, 1],
        (3.0, 1.0, 1.0),
        iter([3, 1, 1]),
        np.array([3, 1, 1]),
        torch.tensor([3, 1, 1], dtype=torch.uint8),
        torch.tensor([3.0, 1.0, 1.0]),
    ],
)
def test_counts_from_numbers(given):
    counts = ClassCounts(given)
    assert counts.tolist() == [3, 1, 1]
    assert (len(counts), counts.num_classes, counts.total) == (3, 3, 5)
    assert counts.counts.dtype == torch.int64


@pytest.mark.parametrize(
    "labels", [[2, 0, 0, 1, 0], np.array([2, 0, 0, 1, 0]), torch.tensor([2, 0, 0, 1, 0]), DataSet()]
)
def test_counts_from_labels(labels):
    assert ClassCounts.from_targets(labels) == ClassCounts([3, 1, 1])
    assert ClassCounts.from_targets(labels, num_classes=5).tolist() == [3, 1, 1, 0, 0]
    assert ClassCounts.from_targets(labels, names=["a", "b", "c", "d"]).tolist() == [3, 1, 1, 0]


def test_derived_quantities():
    counts = ClassCounts([500, 100, 101, 20, 19, 5, 0])
    assert counts.groups() == {"head": [0, 2], "medium": [1, 3], "tail": [4, 5, 6]}
    assert counts.groups(head=400, tail=6) == {"head": [0], "medium": [1, 2, 3, 4], "tail": [5, 6]}
    assert counts.imbalance_factor == 100.0
    torch.testing.assert_close(counts.frequencies, torch.tensor(counts.tolist()).double() / 745)


def test_names_are_used_in_words():
    counts = ClassCounts([5, 1], names=["cat", "otter"])
    assert counts.describe(1) == "class 1 ('otter')"
    assert ClassCounts([5, 1]).describe(1) == "class 1"
    assert counts != ClassCounts([5, 1])
    assert repr(counts) == "ClassCounts([5, 1])"


def test_copies_are_equal():
    counts = ClassCounts([5, 1], names=["cat", "otter"])
    assert copy.deepcopy(counts) == counts
    assert pickle.loads(pickle.dumps(counts)) == counts


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([], ValueError, "two classes or more"),
        ([5], ValueError, "two classes or more"),
        ([[5, 1]], ValueError, "one number per class"),
        ([5, -1], ValueError, r"negative; class 1 has -1"),
        ([0, 0], ValueError, "all zero"),
        ([0.7, 0.3], ValueError, "whole numbers.*not frequencies"),
        ([5, float("nan")], ValueError, "NaN"),
        ([5, float("inf")], ValueError, "infinity"),
        (["five", 1], TypeError, "must be numbers"),
        (7, TypeError, "must be numbers"),
        ([True, False], TypeError, "whole numbers"),
        ([1 + 1j, 2], TypeError, "whole numbers"),
        (Counter([0, 0, 1]), TypeError, "class_counts"),
    ],
)
def test_bad_counts_are_refused_in_words(given, error, words):
    with pytest.raises(error, match=words):
        ClassCounts(given)


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        ([], {}, "non-empty"),
        ([[0, 1]], {}, "flat"),
        ([0.5, 1.0], {}, "whole numbers.*float64"),
        ([0, -1], {}, r"lie in .*found -1"),
        ([0, 3], {"num_classes": 3}, r"\[0, 3\).*found 3"),
        ([0, 1], {"names": ["a", "b"], "num_classes": 3}, "2 names for 3 counts"),
    ],
)
def test_bad_labels_are_refused_in_words(labels, options, words):
    with pytest.raises(ValueError, match=words):
        ClassCounts.from_targets(labels, **options)


def test_names_must_match():
    with pytest.raises(ValueError, match="1 names for 2 counts"):
        ClassCounts([1, 2], names=["a"])


def test_frequencies_are_shares_of_the_images():
    counts = ClassCounts([6, 3, 0, 1])
    assert counts.frequencies.dtype == torch.float64
    torch.testing.assert_close(counts.frequencies, torch.tensor([0.6, 0.3, 0.0, 0.1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("counts", "known"),
    [([7, 7, 7], 0.0), ([1, 2, 3, 4], 0.25), ([4, 1, 3, 2], 0.25), ([0, 1], 0.5), ([0, 0, 0, 9], 0.75), ([3, 1], 0.25)],
)
def test_gini_of_small_cases(counts, known):
    assert ClassCounts(counts).gini == pytest.approx(known, abs=1e-15)


def test_gini_is_half_the_relative_mean_difference():
    generator = np.random.default_rng(0)
    for size in (2, 3, 17, 60):
        counts = generator.integers(0, 3000, size).tolist()
        mean = sum(counts) / size
        difference = sum(abs(a - b) for a in counts for b in counts) / size**2
        assert ClassCounts(counts).gini == pytest.approx(difference / (2 * mean), rel=1e-12)


SHUFFLED = [20, 500, 5, 100, 101, 19, 21, 99, 300, 7]  # by size: 1 8 4 3 7 6 0 5 9 2


@pytest.mark.parametrize(
    ("convention", "head", "medium", "tail"),
    [
        ("count", [1, 4, 8], [0, 3, 6, 7], [2, 5, 9]),
        ("oltr", [1, 3, 4, 8], [6, 7], [0, 2, 5, 9]),
        # 500 299 179 107 64 38 23 13 8 5 is the profile: four above 100, three from 20 to 100
        ("if100", [1, 3, 4, 8], [0, 6, 7], [2, 5, 9]),
        ("ranges", [1, 4, 8], [0, 3, 6, 7], [2, 5, 9]),
        ("thirds", [1, 3, 4, 8], [0, 6, 7], [2, 5, 9]),
    ],
)
def test_conventions_go_by_count_and_not_by_label(convention, head, medium, tail):
    assert ClassCounts(SHUFFLED).groups(convention) == {"head": head, "medium": medium, "tail": tail}


@pytest.mark.parametrize("convention", ["count", "oltr", "if100", "ranges", "thirds"])
def test_every_class_is_in_one_group(convention):
    counts = ClassCounts(np.random.default_rng(1).integers(1, 300, 100))
    groups = counts.groups(convention)
    assert list(groups) == ["head", "medium", "tail"]
    assert sorted(label for labels in groups.values() for label in labels) == list(range(100))
    assert all(labels == sorted(labels) for labels in groups.values())
    least = [min(counts.tolist()[label] for label in groups[group]) for group in ("head", "medium")]
    most = [max(counts.tolist()[label] for label in groups[group]) for group in ("medium", "tail")]
    assert least[0] >= most[0]
    assert least[1] >= most[1]


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(2, (1, 1, 0)), (3, (1, 1, 1)), (4, (2, 1, 1)), (5, (2, 2, 1)), (10, (4, 3, 3)), (100, (34, 33, 33))],
)
def test_thirds_differ_by_one_class_at_most(size, sizes):
    groups = ClassCounts(range(size, 0, -1)).groups("thirds")
    assert tuple(map(len, groups.values())) == sizes
    assert list(chain.from_iterable(groups.values())) == list(range(size))


@pytest.mark.parametrize("size", [10, 100, 1000, 8142])
def test_ranges_are_those_of_mislas(size):
    known = {10: (3, 4, 3), 100: (36, 35, 29), 1000: (390, 445, 165), 8142: (842, 3701, 3599)}
    groups = ClassCounts(range(size, 0, -1)).groups("ranges")
    assert tuple(map(len, groups.values())) == known[size]
    assert groups["tail"][-1] == size - 1


@pytest.mark.parametrize("convention", ["if100", "ranges", "thirds"])
def test_classes_of_one_size_are_taken_in_label_order(convention):
    groups = ClassCounts([50] * 10).groups(convention)
    assert list(chain.from_iterable(groups.values())) == list(range(10))


def test_limits_move_the_count_rules_only():
    counts = ClassCounts(SHUFFLED)
    assert counts.groups("oltr", head=300, tail=7) == {"head": [1, 8], "medium": [0, 3, 4, 5, 6, 7], "tail": [2, 9]}
    assert counts.groups("if100", head=200, tail=10) == {"head": [1, 8], "medium": [0, 3, 4, 5, 6, 7], "tail": [2, 9]}
    assert counts.groups("thirds", head=1, tail=0) == counts.groups("thirds")
    assert counts.groups("ranges", head=1, tail=0) == counts.groups("ranges")


def test_bad_conventions_are_refused_in_words():
    with pytest.raises(ValueError, match=r"'ranges'.*10, 100, 1000, 8142 classes; got 3.*Use 'count' or 'thirds'"):
        ClassCounts([3, 2, 1]).groups("ranges")
    with pytest.raises(ValueError, match=r"one of 'count', 'oltr', 'if100', 'ranges', 'thirds'; got 'shots'"):
        ClassCounts([3, 2, 1]).groups("shots")
