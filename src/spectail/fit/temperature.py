"""The temperature of a classifier, from predictions of rows that it was not trained on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLDEST, HOTTEST = 0.1, 10.0
SHARE = (math.sqrt(5) - 1) / 2  # golden section
ROUNDS = 24  # which leave 5e-5 of the logarithm


def best_temperature(logits: NDArray[Any], labels: NDArray[np.int64], *, by_class: bool = False) -> float:
    """The temperature, from 0.1 to 10, at which logits (N, K) have the lowest negative log-likelihood.

    One row that may be of any class is added, as Platt (1999) does: otherwise a few rows that are all right would say
    that the classifier is always right.

    Args:
        logits: of held-out rows.
        labels: (N,) their classes.
        by_class: whether all classes count alike; otherwise all rows do.

    Example:
        >>> logits = np.array([[4.0, 0.0]] * 4)
        >>> best_temperature(logits, np.array([0, 0, 0, 1])) > 2  # three of four are right, not 98 of 100
        True
    """
    rows, size = np.asarray(logits, dtype=np.float64), len(labels)
    weights = 1 / np.bincount(labels)[labels] if by_class else np.ones(size)
    weights /= weights.sum()
    rows = rows - rows.max(axis=1, keepdims=True)
    gained = (size * rows[np.arange(size), labels] + rows.mean(axis=1)) @ weights

    def cost(place: float) -> float:
        inverse = math.exp(-place)
        return float(weights @ np.log(np.exp(rows * inverse).sum(axis=1)) * (size + 1) - gained * inverse)

    low, high = math.log(COLDEST), math.log(HOTTEST)
    first, second = high - SHARE * (high - low), low + SHARE * (high - low)
    costs = [cost(first), cost(second)]
    for _ in range(ROUNDS):
        if costs[0] <= costs[1]:
            high, second = second, first
            first = high - SHARE * (high - low)
            costs = [cost(first), costs[0]]
        else:
            low, first = first, second
            second = low + SHARE * (high - low)
            costs = [costs[1], cost(second)]
    return math.exp((low + high) / 2)
