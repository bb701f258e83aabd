"""One number for all classes: logits shifted by ``-tau log(n_j / N)``, with tau chosen for a goal.

A prediction is right for the taus of one interval: the true class must beat each other class, and each of those
conditions is linear in tau. The intervals of all images, found in one pass, give the whole line exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts import ClassCounts
from ..models.prior_line import blocks
from .figures import Floats, class_accuracies, score_hits
from .goals import Goal

TAUS = np.round(np.arange(-2, 3.0001, 0.05), 10)
SMOOTH = 2  # neighbours on each side that a score is averaged with: single images make steps


def right_between(logits: NDArray[Any], labels: NDArray[Any], shift: Floats) -> tuple[Floats, Floats]:
    """Limits between which tau makes each prediction right, (N,) and (N,); the upper one is lower where none does.

    Example:
        >>> right_between(np.array([[2.0, 1.0]]), np.array([1]), np.array([0.5, 2.5]))
        (array([0.5]), array([inf]))
    """
    low, high = np.empty(len(labels)), np.empty(len(labels))
    for part in blocks(logits):
        block, own = logits[part].astype(np.float64), labels[part]
        lead = np.take_along_axis(block, own[:, None], 1) - block  # of the true class over each other, at tau 0
        slope = shift[own][:, None] - shift
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = -lead / slope
        low[part] = np.where(slope > 0, crossing, -np.inf).max(1)
        high[part] = np.where(slope < 0, crossing, np.inf).min(1)
        beaten = ((slope == 0) & (lead < 0)).any(1)  # by a class that every tau moves as far
        high[part] = np.where(beaten, -np.inf, high[part])
    return low, high


def best_tau(
    low: Floats, high: Floats, labels: NDArray[Any], class_counts: ClassCounts, goal: Goal, margins: dict[str, float]
) -> float:
    """The tau with the highest score, averaged with its neighbours, among those that keep the floors.

    Args:
        low: limits of :func:`right_between`.
        high: the same.
        labels: (N,) true classes.
        class_counts: training images per class.
        goal: with its floors.
        margins: how far above its floor each kept figure must be.
    """
    correct = (low < TAUS[:, None]) & (high > TAUS[:, None])
    hits, totals = class_accuracies(correct, labels, len(class_counts))
    short = np.zeros(len(TAUS))
    for name, floor in goal.keep:
        figure = _smooth(score_hits(name, hits, totals, class_counts))
        short = np.maximum(short, floor + margins.get(name, 0.0) - figure)
    scores = _smooth(score_hits(goal.name, hits, totals, class_counts))
    order = np.lexsort((np.abs(TAUS), -scores.round(9), np.maximum(short, 0).round(9)))
    return float(TAUS[order[0]])


def _smooth(line: Floats) -> Floats:
    padded = np.pad(line, SMOOTH, mode="edge")
    return np.asarray(np.convolve(padded, np.full(2 * SMOOTH + 1, 1 / (2 * SMOOTH + 1)), mode="valid"))
