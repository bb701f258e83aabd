"""Pairs of classes that are taken for each other more often than chance and their sizes explain."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .._core.pairs import wilson_limits
from ..diagnosis.advice import ClassPair

LEAST = 3  # images; fewer are an accident
SHARE = 0.05  # of the two classes' images, and no fewer
RISK = 0.05  # of naming any pair at all where mistakes fall at random
MADE_UP = 10  # mistakes that fall in proportion to the sizes of classes
LISTED = 200


def find_pairs(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], names: tuple[str, ...]
) -> tuple[ClassPair, ...]:
    r"""Pairs to merge or to look at, those with the largest certain share of mixed-up images first.

    What is to be expected: a mistake of class a falls on class b as often as mistakes of the *other* classes do, so
    that a class which is named often, for its size or otherwise, is expected to be named here too. With :math:`e_a`
    mistakes of a and the share :math:`q_b` of the mistakes of classes other than a and b that falls on b (ten made-up
    mistakes that fall in proportion to the classes' sizes are added to them), the two are expected to be mixed up in

    .. math:: E = e_a \frac{q_b}{1 - q_a} + e_b \frac{q_a}{1 - q_b}

    images, by chance as a Poisson number. A pair is named if as many or more as there are would be rarer than 5 % over
    all pairs together (Bonferroni), and if they are at least a twentieth of the two classes' images. With two classes
    there is nothing to compare with, and no pair is named.

    Example:
        >>> labels = np.repeat([0, 1, 2, 3], 20)
        >>> predicted = labels.copy()
        >>> predicted[:6], predicted[20:25] = 1, 0
        >>> print(find_pairs(predicted, labels, ("mug", "cup", "bowl", "jug"))[0])
        'mug' and 'cup' (11 of 40 images of the two are taken for the other)
    """
    number, wrong = len(names), predicted != labels
    if number < 3 or not wrong.any():
        return ()
    sizes = np.bincount(labels, minlength=number)
    mistakes = np.bincount(labels[wrong], minlength=number).tolist()
    fallen = np.bincount(predicted[wrong], minlength=number) + MADE_UP * sizes / len(labels)
    total = float(fallen.sum())
    directed = dict(zip(*_counted(labels[wrong] * number + predicted[wrong]), strict=True))
    first, second = np.minimum(labels, predicted)[wrong], np.maximum(labels, predicted)[wrong]
    limit = math.log(RISK / (number * (number - 1) / 2))
    found = []
    for code, taken in zip(*_counted(first * number + second), strict=True):
        a, b = divmod(code, number)
        images = int(sizes[a] + sizes[b])
        if taken < max(LEAST, SHARE * images):
            continue
        # shares of the mistakes of others; those of a fall on b and elsewhere, never on a
        others = max(total - mistakes[a] - mistakes[b], 1e-9)
        on_a = min((float(fallen[a]) - directed.get(b * number + a, 0)) / others, 0.99)
        on_b = min((float(fallen[b]) - directed.get(a * number + b, 0)) / others, 0.99)
        expected = mistakes[a] * on_b / (1 - on_a) + mistakes[b] * on_a / (1 - on_b)
        if log_at_least(taken, expected) < limit:
            low, high = (100 * float(value) for value in wilson_limits(taken, images))
            found.append(ClassPair(names[a], names[b], taken, images, low, high, expected))
    return tuple(sorted(found, key=lambda pair: -pair.low)[:LISTED])


def log_at_least(number: int, mean: float) -> float:
    """Logarithm of the probability that a Poisson number is so large or larger; 0 where it is no wonder.

    Example:
        >>> round(math.exp(log_at_least(3, 0.5)), 4)
        0.0144
    """
    if number <= mean:
        return 0.0
    term = total = 1.0
    at = number
    while term > 1e-12 * total:
        at += 1
        term *= mean / at
        total += term
    return number * math.log(max(mean, 1e-300)) - mean - math.lgamma(number + 1) + math.log(total)


def _counted(codes: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    values, counts = np.unique(codes, return_counts=True)
    return values.tolist(), counts.tolist()
