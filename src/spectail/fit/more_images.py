"""Classes for which more images would help most, from one learning curve through all classes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..diagnosis.advice import MoreImages
from .figures import shrunk_accuracies

Floats = NDArray[np.float64]
ENOUGH = 8  # classes that a learning curve needs
SPREAD = 4.0  # times the images of the smallest class that the largest must have
ALIKE = 0.1  # correlation of the images of a class
LEAST = 1.0  # points of gain that are worth the work
Z = 1.959964


def find_more_images(
    hits: NDArray[np.int64], totals: NDArray[np.int64], counts: NDArray[np.int64], names: tuple[str, ...]
) -> tuple[tuple[MoreImages, ...], str | None]:
    r"""Classes by what twice the images would gain per image, and a sentence where that cannot be said.

    Cross-fitting trains on one size of the data only, so the learning curve is drawn through classes of different
    sizes instead of through sizes of one class: a quasi-binomial regression

    .. math:: \operatorname{logit} P(\text{right}) = a + b \log n

    whose standard error counts classes that are harder or easier than their size says (over-dispersion). Twice the
    images move a class by :math:`b \log 2` from where it stands, which is its own accuracy, shrunk towards the curve
    (:func:`~spectail.fit.figures.shrunk_accuracies`): so a class gains most where it is near one half and the curve is
    steep. The limits carry the uncertainty of b and of the accuracy. A class is listed if the slope is certainly
    positive, the gain at least one point and any of its images mistaken; first comes the one with the most gain per
    image to collect, and no more than a third of the classes is listed.

    What this cannot know: whether rare classes are also harder to recognise. If so, part of the slope is theirs and the
    gain is too high. On half of the images of CIFAR-100-LT (features, two splits that the method was not made on) it
    promised the 34 classes it listed 5.9 and 5.8 points. When all classes got the other half, these gained 12.2 and
    11.5 (standard errors 4.5 and 3.3) and the others 4.1 and 3.4. Part of that is chance that evens out, since a class
    without a mistake is not listed. Read the gain as an order.

    Args:
        hits: (K,) images recognised out of fold, all classes being equally likely beforehand. Otherwise frequent
            classes are right more often because they are named more often, and the curve is too steep.
        totals: (K,) images judged.
        counts: (K,) training images.
        names: K names.
    """
    seen = np.flatnonzero(totals)
    if len(seen) < ENOUGH or counts[seen].max() < SPREAD * counts[seen].min():
        return (), (
            f"Which classes need more images cannot be estimated: that takes {ENOUGH} classes or more, the largest "
            f"with {SPREAD:g} times the images of the smallest."
        )
    right, number, images = (part[seen].astype(np.float64) for part in (hits, totals, counts))
    slope, error = _slope(right, number, np.log(images))
    if slope - Z * error <= 0:
        return (), "More images of rare classes are not expected to help: classes with many images do no better."
    share = np.clip(shrunk_accuracies(right, number, images), 1e-3, 1 - 1e-3)
    moved = 1 / (1 + np.exp(-np.log(share / (1 - share)) - slope * math.log(2)))
    gain, steep = moved - share, moved * (1 - moved)
    by_share = steep / (share * (1 - share)) - 1
    deviation = np.sqrt((steep * math.log(2) * error) ** 2 + by_share**2 * share * (1 - share) / (number + 1))
    low, high = 100 * np.maximum(gain - Z * deviation, 0), 100 * np.minimum(gain + Z * deviation, 1 - share)
    entries = [
        MoreImages(names[label], int(counts[label]), 100 * float(share[at]), 100 * float(gain[at]),
                   float(low[at]), float(high[at]))
        for at, label in enumerate(seen.tolist()) if 100 * gain[at] >= LEAST and right[at] < number[at]
    ]  # fmt: skip
    ranked = sorted(entries, key=lambda entry: -entry.gain / entry.images)
    return tuple(ranked[: math.ceil(len(seen) / 3)]), None


def _slope(right: Floats, number: Floats, place: Floats) -> tuple[float, float]:
    """Slope of a quasi-binomial regression and its standard error, by iterated weighted least squares.

    Classes differ by more than their size, so that a class of thousands counts as ten images: it is one class, and
    its own ease or difficulty must not bend the curve. A quarter of an image more is right and wrong in each class, so
    that perfect classes have a place on the curve.
    """
    counted = 1 / (1 + ALIKE * (number - 1))
    right, number = right * counted + 0.25, number * counted + 0.5
    design = np.stack([np.ones_like(place), place - place.mean()], axis=1)
    solution = np.array([math.log(right.sum() / (number - right).sum()), 0.0])
    for _ in range(50):
        fitted = 1 / (1 + np.exp(-np.clip(design @ solution, -30, 30)))
        weights = number * fitted * (1 - fitted)
        information = (design * weights[:, None]).T @ design
        step = np.linalg.solve(information, design.T @ (right - number * fitted))
        solution = solution + np.clip(step, -1, 1)
        if float(np.abs(step).max()) < 1e-9:
            break
    pearson = float(((right - number * fitted) ** 2 / weights).sum()) / (len(right) - 2)
    covariance = np.linalg.inv(information) * max(pearson, 1.0)
    return float(solution[1]), math.sqrt(covariance[1, 1])
