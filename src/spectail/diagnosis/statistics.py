"""The statistics behind the diagnosis: intervals and paired tests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.pairs import wilson_limits


def mean_interval(right: NDArray[Any], total: NDArray[Any]) -> tuple[float, float] | None:
    r"""95 % limits of the mean m of several classes' accuracies; None if no class has observations.

    Wilson's interval around m for as many observations as would give a plain proportion the variance of m:

    .. math:: n = 1 + \frac{m (1 - m)}{V}, \qquad V = \frac{1}{G^2} \sum_j \frac{p_j (1 - p_j)}{n_j - 1}

    V is unbiased, so the interval holds for thousands of classes with three images each, where combining intervals of
    the classes does not; for one class it is Wilson's own. Classes at 0 or 100 % show no variance: all of them
    together count as if one image more had been right and one more wrong. A class of one image counts with m (1 - m).

    Example:
        >>> low, high = mean_interval(np.array([0, 2, 9, 4]), np.array([10, 10, 10, 10]))
        >>> round(low, 3), round(high, 3)
        (0.265, 0.5)
    """
    seen = total > 0
    if not seen.any():
        return None
    right, total = right[seen].astype(np.float64), total[seen].astype(np.float64)
    share, size = right / total, len(total)
    mean = float(share.mean())
    if 0 < mean < 1:
        settled, single = (right == 0) | (right == total), total == 1
        rare = 1 / (total[settled].sum() + 2)
        parts = np.where(settled, rare * (1 - rare) / total, share * (1 - share) / np.maximum(total - 1, 1))
        parts = np.where(single, mean * (1 - mean), parts)
        equivalent = 1 + mean * (1 - mean) * size**2 / float(parts.sum())
    else:
        equivalent = size**2 / float((1 / total).sum())
    low, high = wilson_limits(mean * equivalent, equivalent)
    return min(float(low), mean), max(float(high), mean)  # rounding at 0 and 1


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with ``freedom`` degrees of freedom.

    The probability of [-t, t] is a finite sum for whole numbers (Abramowitz and Stegun 26.7.3 and 26.7.4); the
    quantile is where it is 95 %, found by halving.

    Example:
        >>> round(student(1), 3), round(student(2), 3), round(student(30), 3)
        (12.706, 4.303, 2.042)
    """

    def inside(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        term, total = (math.cos(angle), 0.0) if freedom % 2 else (1.0, 0.0)
        for k in range(1 + freedom % 2, freedom, 2):
            total += term
            term *= math.cos(angle) ** 2 * k / (k + 1)
        area = math.sin(angle) * total
        return 2 / math.pi * (angle + area) if freedom % 2 else area

    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < 0.95 else (low, middle)
    return high


def mcnemar(first_only: int, second_only: int) -> tuple[float, float]:
    """Exact and mid-p two-sided McNemar test that two classifiers are right equally often.

    Args:
        first_only: test images that only the first gets right.
        second_only: test images that only the second gets right.

    Example:
        >>> exact, mid = mcnemar(2, 8)
        >>> round(exact, 4), round(mid, 4)
        (0.1094, 0.0654)
    """
    low, total = min(first_only, second_only), first_only + second_only
    if not total:
        return 1.0, 1.0
    at = math.exp(math.lgamma(total + 1) - math.lgamma(low + 1) - math.lgamma(total - low + 1) - total * math.log(2))
    below, term = at, at
    for k in range(low, 0, -1):  # the terms fall at least geometrically away from the middle
        term *= k / (total - k + 1)
        below += term
        if term < 1e-18 * below:
            break
    return min(2 * below, 1.0), min(2 * below - at, 1.0)


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's adjusted p values: below 0.05 the family of all tests errs in at most 5 % of cases.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return adjusted
