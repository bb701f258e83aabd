"""FeatureSet: features in place of images, for training heads on a frozen backbone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..counts import ClassCounts


class FeatureSet:
    """Features (N, D) with labels and class names."""

    pixels = None

    def __init__(self, features: Tensor, labels: NDArray[np.int64], names: Sequence[str]) -> None:
        if features.ndim != 2 or len(features) != len(labels):
            raise ValueError(
                f"features must be (N, D) with one label each; got {tuple(features.shape)}, {len(labels)}."
            )
        self.features, self.labels, self.names = features, np.asarray(labels, dtype=np.int64), tuple(names)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.features[index], int(self.labels[index])

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts(np.bincount(self.labels, minlength=len(self.names)), self.names)
