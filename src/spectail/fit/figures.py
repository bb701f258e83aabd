"""Figures that a classifier is chosen by, in percent, from its right predictions per class.

- ``balanced``: the mean of the class accuracies, over classes that have predictions;
- ``overall``: the plain share of right predictions;
- ``tail``: the mean accuracy of the tail classes (fewer than 20 training images; where no such class has a prediction,
  the rarest third of those that have);
- ``worst``: the mean of the lowest 5 % of the *shrunk* class accuracies: at least three classes, but never more than
  half of them;
- ``lowest10``: the mean of the lowest tenth of the shrunk class accuracies, rounded up.

The last two are extremes. Among a hundred classes of five images the lowest share is the unluckiest class and not the
worst one, and a choice by it is a choice by noise. So class accuracies are first shrunk (empirical Bayes, see
:func:`shrunk_accuracies`): a class of five images borrows from classes of its size, a class of five hundred keeps its
own figure. ``worst`` is a mean over a few classes for the same reason: it still has a direction when one class moves.

All of them can be taken of predictions that are right or wrong, which is what is reported, and of predictions that are
more or less right (:func:`nearly_right`), which is what a choice between candidates rests on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._utils.names import nearest
from ..counts import ClassCounts, CountsLike, as_counts

Floats = NDArray[np.float64]
GOALS = ("balanced", "overall", "tail", "worst", "lowest10")
ENOUGH = 10  # classes that a line through accuracies and sizes needs
LARGEST = 1e4  # images that a prior may be worth; more is "all classes are alike"


SOFTNESS = 0.5
"""Set on small data sets made for that purpose (digits, a mixture of normals), and not on any that is reported."""


def leads(logits: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
    """How far the true class is ahead of all others, (N,); below 0 where another one is predicted.

    Example:
        >>> leads(np.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), np.array([0, 2]))
        array([ 1., -1.])
    """
    others, every = logits.copy(), np.arange(len(labels))
    others[every, labels] = -np.inf
    found: NDArray[np.floating[Any]] = logits[every, labels] - others.max(1)
    return found


def nearly_right(lead: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
    """Predictions as shares of a right one, (M, N), by the leads of M candidates.

    A class of five images has six possible accuracies, and which of them it gets is luck where leads are short. Counted
    by a sigmoid of the lead, a close decision is half a right one whichever way it falls. What is close is measured by
    the candidate's own usual lead, so that the scale of its logits does not matter, and becomes narrower with the root
    of the images that a class has: with many of them, right is right.

    Example:
        >>> nearly_right(np.array([[2.0, 0.0, -2.0], [20.0, 0.0, -20.0]]), np.array([0, 0, 0])).round(2).tolist()
        [[0.97, 0.5, 0.03], [0.97, 0.5, 0.03]]
    """
    images = np.bincount(labels)[labels].astype(lead.dtype)
    unit = SOFTNESS * np.median(np.abs(lead), axis=-1, keepdims=True) / np.sqrt(images)
    share = np.clip(lead / np.maximum(unit, np.finfo(np.float32).tiny), -30, 30)
    return np.asarray(1 / (1 + np.exp(-share)), dtype=lead.dtype)


def class_accuracies(
    correct: NDArray[Any], labels: NDArray[Any], num_classes: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Right predictions and predictions of each class: (K,) each, or (M, K) and (K,) for M candidates.

    Example:
        >>> class_accuracies(np.array([True, False, True]), np.array([0, 0, 2]), 3)
        (array([1., 0., 1.]), array([2, 0, 1]))
    """
    correct, labels = np.asarray(correct), np.asarray(labels)
    rows = [np.bincount(labels, row, minlength=num_classes) for row in np.atleast_2d(correct)]
    hits = np.array(rows, dtype=np.float64).reshape(*correct.shape[:-1], num_classes)
    return hits, np.bincount(labels, minlength=num_classes)


def score(name: str, correct: NDArray[Any], labels: NDArray[Any], class_counts: CountsLike) -> float:
    """The figure of one classifier, in percent.

    Args:
        name: one of :data:`GOALS`.
        correct: (N,) whether each prediction is right, or how nearly.
        labels: (N,) true classes.
        class_counts: training images per class, which say what the tail is and which classes are alike.

    Example:
        >>> right, labels = np.array([True, True, True, False, True]), np.array([0, 0, 0, 1, 1])
        >>> score("balanced", right, labels, [30, 2]), score("tail", right, labels, [30, 2])
        (75.0, 50.0)
    """
    return float(score_all(name, np.asarray(correct)[None], labels, class_counts)[0])


def score_all(name: str, correct: NDArray[Any], labels: NDArray[Any], class_counts: CountsLike) -> Floats:
    """The same for M classifiers on the same images: ``correct`` (M, N), result (M,)."""
    counts = as_counts(class_counts, on_empty="ignore")
    hits, totals = class_accuracies(correct, labels, len(counts))
    return score_hits(name, hits, totals, counts)


def score_hits(name: str, hits: NDArray[Any], totals: NDArray[np.int64], class_counts: ClassCounts) -> Floats:
    """The figure from right predictions per class, (..., K), and predictions per class, (K,)."""
    seen = np.flatnonzero(totals)
    if not len(seen):
        raise ValueError("there is nothing to score: no prediction was given.")
    sizes = np.asarray(class_counts.counts.numpy(), dtype=np.float64)
    if name == "overall":
        return np.asarray(100 * hits.sum(-1) / totals.sum(), dtype=np.float64)
    if name == "tail":
        seen = tail_classes(totals, class_counts)
    if name in ("balanced", "tail"):
        return np.asarray(100 * (hits[..., seen] / totals[seen]).mean(-1), dtype=np.float64)
    if name not in GOALS:
        raise ValueError(f"there is no goal {name!r}; {nearest(name, GOALS)}")
    shrunk = shrunk_accuracies(hits[..., seen], totals[seen], sizes[seen])
    number = lowest_number(name, len(seen))
    return np.asarray(100 * np.partition(shrunk, number - 1, axis=-1)[..., :number].mean(-1), dtype=np.float64)


def lowest_number(name: str, size: int) -> int:
    """How many of so many classes ``worst`` and ``lowest10`` look at.

    Example:
        >>> [lowest_number("worst", size) for size in (2, 5, 20, 100)], lowest_number("lowest10", 15)
        ([1, 2, 3, 5], 2)
    """
    if name == "lowest10":
        return math.ceil(size / 10)
    return max(1, min(max(3, math.ceil(size / 20)), size // 2))


def tail_classes(totals: NDArray[np.int64], class_counts: ClassCounts) -> NDArray[np.int64]:
    """The tail classes that have predictions; where there are none, the rarest third of the classes that have."""
    tail = np.array([label for label in class_counts.groups()["tail"] if totals[label]], dtype=np.int64)
    if len(tail):
        return tail
    seen = np.flatnonzero(totals)
    rarest = np.argsort(class_counts.counts.numpy()[seen], kind="stable")
    return np.sort(seen[rarest[: math.ceil(len(seen) / 3)]])


def shrunk_accuracies(hits: NDArray[Any], totals: NDArray[Any], sizes: Floats | None = None) -> Floats:
    r"""Class accuracies, each moved towards those of similar classes by as much as its few images call for.

    The accuracy of class j is taken as a draw from a Beta distribution with mean :math:`m_j` and strength s (worth s
    images), and the result is the posterior mean :math:`(h_j + s m_j) / (n_j + s)`. Both are fitted to the classes
    at hand by moments. :math:`m_j` is a straight line in the logarithm of the training images, because rare classes do
    worse and must not borrow from common ones (with fewer than ten classes, or sizes that are all equal, the mean of
    the classes). With :math:`s = 1 / \rho - 1`, over-dispersed binomial counts have

    .. math:: E (p_j - m_j)^2 = m_j (1 - m_j) \left( \frac{1}{n_j} + \rho \left(1 - \frac{1}{n_j}\right) \right)

    which, summed over classes, gives :math:`\rho`. Where the classes differ no more than chance would have them,
    :math:`\rho` is near 0 and every class gets :math:`m_j`; so it does where each class has a single image, which
    tells nothing of :math:`\rho`.

    Args:
        hits: (..., K) right predictions per class.
        totals: (K,) predictions per class, 1 or more.
        sizes: (K,) training images per class.

    Example:
        >>> shrunk_accuracies(np.array([1, 4, 2, 60]), np.array([5, 5, 5, 100])).round(2)
        array([0.41, 0.63, 0.48, 0.59])
    """
    strength, mean = shrinkage(hits, totals, sizes)
    return np.asarray((hits + strength * mean) / (totals + strength), dtype=np.float64)


def shrinkage(hits: NDArray[Any], totals: NDArray[Any], sizes: Floats | None = None) -> tuple[Floats, Floats]:
    """Strength, (..., 1), and means, (..., K) or (..., 1), of the prior in :func:`shrunk_accuracies`."""
    totals = np.asarray(totals, dtype=np.float64)
    shares, number = hits / totals, len(totals)
    weights = totals / (9 + totals)  # of a class of n images if rho is 0.1; the sum of squares is unbiased for any
    weights /= weights.sum()
    mean = (shares @ weights)[..., None]
    free = 1
    if sizes is not None and number >= ENOUGH:
        place = np.log1p(sizes) - np.log1p(sizes) @ weights
        spread = float(place**2 @ weights)
        if spread > 1e-9:
            mean = mean + ((shares - mean) @ (weights * place))[..., None] / spread * place
            free = 2
    mean = np.clip(mean, 0.5 / (totals.sum() + 1), 1 - 0.5 / (totals.sum() + 1))
    variance = mean * (1 - mean)
    squares = (shares - mean) ** 2 @ weights * number / max(number - free, 1)
    chance, more = (variance / totals) @ weights, (variance * (1 - 1 / totals)) @ weights
    rho = np.divide(squares - chance, more, out=np.zeros_like(squares), where=more > 0)
    return (1 / np.clip(rho, 1 / (1 + LARGEST), 1) - 1)[..., None], mean
