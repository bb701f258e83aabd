import copy
import pickle
from collections import Counter

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
        ([0.5, 1.0], {}, "whole-number"),
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
