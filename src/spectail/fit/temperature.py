"""The temperature that makes probabilities fit: the lowest negative log likelihood on held-out logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.prior_line import blocks
from .figures import Floats

LOWEST, HIGHEST = 0.05, 20.0
BINS = 15


def class_weights(labels: NDArray[Any], num_classes: int, *, alike: bool) -> Floats:
    """Weights of images that sum to 1: each image alike, or each class alike."""
    totals = np.bincount(labels, minlength=num_classes)
    weights = 1 / totals[labels] if alike else np.ones(len(labels))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def fit_temperature(logits: NDArray[Any], labels: NDArray[Any], weights: Floats) -> float:
    """The temperature in [0.05, 20] with the lowest weighted negative log likelihood.

    One image that may be of any class is added, as Platt (1999) does: otherwise a few images that are all right would
    say that the classifier is always right. The likelihood is convex in 1 / temperature: Newton's steps, and halving
    where one would leave the bracket.
    """
    low, high = 1 / HIGHEST, 1 / LOWEST
    inverse = 1.0
    for _ in range(60):
        slope, curvature = _derivatives(logits, labels, weights, inverse)
        if slope > 0:
            high = inverse
        else:
            low = inverse
        following = inverse - slope / curvature if curvature > 0 else (low if slope > 0 else high)
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - inverse) <= 1e-7 * inverse:
            break
        inverse = following
    return float(np.clip(1 / inverse, LOWEST, HIGHEST))


def _derivatives(logits: NDArray[Any], labels: NDArray[Any], weights: Floats, inverse: float) -> tuple[float, float]:
    """First and second derivative of the mean negative log likelihood by the inverse temperature."""
    slope = curvature = 0.0
    for part in blocks(logits):
        block = logits[part].astype(np.float64)
        block -= block.max(1, keepdims=True)
        shares = np.exp(inverse * block)
        shares /= shares.sum(1, keepdims=True)
        mean = (shares * block).sum(1)
        own = np.take_along_axis(block, labels[part][:, None], 1)[:, 0]
        own = (len(labels) * own + block.mean(1)) / (len(labels) + 1)
        slope += float(weights[part] @ (mean - own))
        curvature += float(weights[part] @ ((shares * block**2).sum(1) - mean**2))
    return slope, curvature


def likelihood_and_error(logits: NDArray[Any], labels: NDArray[Any], weights: Floats) -> tuple[float, float]:
    """Weighted negative log likelihood, and expected calibration error in percent over 15 bins."""
    loss, sums = 0.0, np.zeros((2, BINS))
    for part in blocks(logits):
        block = logits[part].astype(np.float64)
        block -= block.max(1, keepdims=True)
        total = np.log(np.exp(block).sum(1))
        own = np.take_along_axis(block, labels[part][:, None], 1)[:, 0]
        loss += float(weights[part] @ (total - own))
        confidence = np.exp(-total)  # the largest logit is 0
        right = block.argmax(1) == labels[part]
        bins = np.clip(np.ceil(confidence * BINS).astype(int), 1, BINS) - 1
        for row, values in enumerate((confidence, right)):
            sums[row] += np.bincount(bins, weights[part] * values, BINS)
    return loss, 100 * float(np.abs(sums[0] - sums[1]).sum())
