"""Folds for cross-fitting: every image is predicted by a head that has not seen it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALWAYS_TRAINED = -1


def make_folds(labels: NDArray[np.int64], folds: int = 5, seed: int = 0) -> NDArray[np.int64]:
    """The fold in which each image is held out; -1 for the only image of a class, which is always trained on.

    The images of a class are spread over the folds as evenly as they go, and classes begin at different folds, so that
    folds are alike in size and every class keeps at least one image to train on.

    Example:
        >>> make_folds(np.array([0, 0, 0, 1, 2, 2]), folds=2).tolist()
        [1, 0, 0, -1, 0, 1]
    """
    random = np.random.default_rng(seed)
    result = np.full(len(labels), ALWAYS_TRAINED, dtype=np.int64)
    begin = 0
    for label in np.unique(labels):
        places = random.permutation(np.flatnonzero(labels == label))
        if len(places) > 1:
            result[places] = (begin + np.arange(len(places))) % folds
            begin += len(places)
    return result
