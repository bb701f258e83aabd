r"""Images that are probably mislabelled, from predictions by heads that have not seen them.

Two questions are asked of an image. *Which class is it, if not its own?* As in confident learning (Northcutt et al.,
2021, the method of cleanlab): the class with the highest probability, which must reach the mean probability that
images of that class have for it. *How sure is it that the label is wrong?* Confident learning ranks by the probability
:math:`s` of the given label and counts what classes confuse; where classes overlap, that calls a third of a clean data
set wrong. So the share :math:`\varepsilon` of wrong labels is estimated instead, by maximum likelihood in

.. math:: P(y \mid x) = (1 - \varepsilon) \, p_y(x) + \varepsilon / K

and the confidence is the posterior :math:`(\varepsilon / K) / ((\varepsilon / K) + (1 - \varepsilon) s)`. Overlap gives
the label of a hard image a moderate :math:`s`, a wrong label gives one near zero, and calibrated predictions on clean
data have too few of the latter for any :math:`\varepsilon` above zero. Order is that of the self-confidence :math:`s`.
The probabilities are made fit for this first: temperature and multiple of the log prior are fitted by the same
likelihood, so that logits shifted for rare classes serve as well.

In a rare class every :math:`s` is low, because there was little to learn from, and not because its labels are wrong.
Therefore an image must be ten times less likely than the median of its class (which less than half of a class can be),
the median must be above chance, and of thresholds for suggestions those of rare classes lean on the others.

Features that are too weak make heads that are sure and wrong, and then :math:`\varepsilon` is large on clean data. A
share above a tenth is therefore believed only if it is most of all mistakes, and one above a half never; else nothing
is listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LISTED = 0.5  # probability of being wrong from which an image is listed
UNUSUAL = 0.1  # share of the class's median probability that an image must stay below
BORROWED = 5  # images that the mean of all classes is worth in the threshold of one
SAMPLE = 20_000  # images that the share of wrong labels is estimated on
STEPS = (0.4, 0.2, 0.1, 0.05)  # of the search for temperature and prior, on a logarithmic and a plain scale
PLAUSIBLE = 0.1  # share of wrong labels that is believed without further proof
EXPLAINED = 2 / 3  # of all mistakes, which a larger share must be
MOST_TRIED = 100  # points of that search
MOST_WRONG = 0.9  # share of wrong labels that is thought possible


@dataclass(frozen=True)
class Suspects:
    """Suspicious images, the most suspicious first."""

    places: NDArray[np.int64]
    suggested: NDArray[np.int64]
    confidence: Floats
    wrong_share: float
    """Estimated share of wrong labels in the whole, 0 to 1."""
    temperature: float
    multiple: float
    """Logits over the temperature plus this multiple of the log prior are calibrated."""
    reliable: bool = True
    """False: the predictions are too weak to judge labels, and nothing is listed."""


def find_label_issues(logits: NDArray[Any], labels: NDArray[np.int64]) -> Suspects:
    """Images whose label is more likely wrong than right.

    Args:
        logits: (N, K) out of fold, finite.
        labels: (N,) given classes.

    Example:
        >>> labels = np.arange(60) % 3
        >>> logits = 6.0 * np.eye(3)[labels]
        >>> labels[:4] = (labels[:4] + 1) % 3
        >>> sorted(find_label_issues(logits, labels).places.tolist())
        [0, 1, 2, 3]
    """
    number, classes = logits.shape
    sizes = np.bincount(labels, minlength=classes)
    prior = np.log(np.maximum(sizes, 1) / max(number, 1))
    temperature, multiple, share = _fit(logits, labels, prior)
    own, top, other = _probabilities(logits, labels, prior, temperature, multiple)
    explained = share >= EXPLAINED * float((top > own).mean()) and share <= 0.5
    if share > PLAUSIBLE and not explained:
        nothing = np.zeros(0, dtype=np.int64)
        return Suspects(nothing, nothing, np.zeros(0), share, temperature, multiple, reliable=False)
    background = share / classes
    confidence = background / (background + (1 - share) * own + 1e-300)
    means = np.bincount(labels, own, minlength=classes)
    overall = means.sum() / max(number, 1)
    thresholds = (means + BORROWED * overall) / (sizes + BORROWED)
    medians = np.array([np.median(own[labels == label]) if sizes[label] else 1.0 for label in range(classes)])
    usual = medians[labels]
    wrong = (top > own) & (top >= thresholds[other]) & (own < UNUSUAL * usual) & (usual > 1 / classes)
    places = np.flatnonzero(wrong & (confidence >= LISTED))
    places = places[np.argsort(own[places], kind="stable")]
    return Suspects(places, other[places], confidence[places], share, temperature, multiple)


def _probabilities(
    logits: NDArray[Any], labels: NDArray[np.int64], prior: Floats, temperature: float, multiple: float
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Probability of the given class, of the likeliest other class, and which that is."""
    scores = np.asarray(logits, dtype=np.float64) / temperature + multiple * prior
    scores -= scores.max(1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    own = scores[rows, labels].copy()
    scores[rows, labels] = -1.0
    other = scores.argmax(1)
    return own, scores[rows, other], other


def _fit(logits: NDArray[Any], labels: NDArray[np.int64], prior: Floats) -> tuple[float, float, float]:
    """Temperature, multiple of the log prior, and share of wrong labels with the highest likelihood."""
    if len(labels) > SAMPLE:
        chosen = np.random.default_rng(0).choice(len(labels), SAMPLE, replace=False)
        logits, labels = logits[chosen], labels[chosen]

    known: dict[tuple[float, float], tuple[float, float]] = {}

    def likelihood(point: tuple[float, float]) -> float:
        if point not in known:
            own = _probabilities(logits, labels, prior, math.exp(point[0]), point[1])[0]
            value, share = _share(own, 1 / logits.shape[1])
            # where classes hardly overlap many points are alike, and the nearest is meant
            known[point] = value - (point[0] ** 2 + point[1] ** 2) / (2 * max(len(labels), 1)), share
        return known[point][0]

    best = (0.0, 0.0)
    for step in STEPS:
        moved = True
        while moved and len(known) < MOST_TRIED:
            around = [(step, 0.0), (-step, 0.0), (0.0, step), (0.0, -step)]
            tried = [best, *((round(best[0] + one, 6), round(best[1] + two, 6)) for one, two in around)]
            best, before = max(tried, key=likelihood), best
            moved = best != before
    return math.exp(best[0]), best[1], known[best][1]


def _share(own: Floats, chance: float) -> tuple[float, float]:
    """The highest mean log-likelihood of given labels, and the share of wrong ones that has it.

    The likelihood is concave in the share, so that its slope is followed by halving.
    """

    def slope(share: float) -> float:
        return float(((chance - own) / ((1 - share) * own + share * chance + 1e-300)).mean())

    low, high = 0.0, MOST_WRONG
    if len(own) and slope(0.0) > 0:
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    value = np.log((1 - low) * own + low * chance + 1e-300).mean() if len(own) else 0.0
    return float(value), low
