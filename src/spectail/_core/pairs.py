"""Counted predictions, and the interval of a share that was counted. Needs nothing but numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054  # 95 %


@dataclass(frozen=True)
class Pairs:
    """A confusion matrix by its entries: how often a true class was predicted as another, or as itself.

    The matrix of 8,142 classes takes half a gigabyte, its entries are never more than the test images.
    """

    predicted: NDArray[np.int64]
    true: NDArray[np.int64]
    count: NDArray[np.int64]
    size: int
    """Number of classes."""

    @classmethod
    def of(cls, predicted: NDArray[np.int64], labels: NDArray[np.int64], size: int) -> Pairs:
        codes, count = np.unique(predicted * size + labels, return_counts=True)
        return cls(codes // size, codes % size, count.astype(np.int64), size)

    @property
    def right(self) -> NDArray[np.int64]:
        """(K,) test images of each class that were recognised."""
        return self._sums(self.true, self.count * (self.predicted == self.true))

    @property
    def total(self) -> NDArray[np.int64]:
        """(K,) test images of each class."""
        return self._sums(self.true, self.count)

    @property
    def named(self) -> NDArray[np.int64]:
        """(K,) how often each class was predicted."""
        return self._sums(self.predicted, self.count)

    def wrong(self) -> Pairs:
        """The entries off the diagonal."""
        off = self.predicted != self.true
        return Pairs(self.predicted[off], self.true[off], self.count[off], self.size)

    def dense(self) -> NDArray[np.int32]:
        """The (K, K) matrix, rows predicted, columns true."""
        matrix = np.zeros((self.size, self.size), dtype=np.int32)
        matrix[self.predicted, self.true] = self.count
        return matrix

    def _sums(self, classes: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(self.size, dtype=np.int64)
        np.add.at(sums, classes, values)
        return sums


def wilson_limits(right: Any, total: Any, z: float = Z) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % limits of many proportions, see :func:`spectail.metrics.wilson_interval`; NaN without observations.

    Example:
        >>> low, high = wilson_limits([10, 0], [100, 3])
        >>> low.round(3), high.round(3)
        (array([0.055, 0.   ]), array([0.174, 0.561]))
    """
    right, total = np.asarray(right, dtype=np.float64), np.asarray(total, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        share, spread = right / total, z * z / total
        centre = (share + spread / 2) / (1 + spread)
        half = z / (1 + spread) * np.sqrt(share * (1 - share) / total + spread / (4 * total))
        return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)
