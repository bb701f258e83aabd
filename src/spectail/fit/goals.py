"""What a classifier is chosen for, and which of several candidates to take for it: floors, a paired bootstrap, and the
one-standard-error rule. What the figures are: :mod:`spectail.fit.figures`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._utils.names import nearest
from ..counts import CountsLike, as_counts
from . import figures
from .figures import GOALS, Floats, class_accuracies, score, score_hits

__all__ = ["GOALS", "Choice", "Goal", "bootstrap_scores", "choose", "class_accuracies", "decide", "score", "score_all"]

DRAWS = 200
BLOCK = 1 << 23  # figures kept at a time: draws x candidates x classes


@dataclass(frozen=True)
class Goal:
    """One figure to make as large as possible, while others stay above floors.

    Example:
        >>> Goal.parse("tail", ["overall=80"])
        Goal(name='tail', keep=(('overall', 80.0),))
    """

    name: str = "balanced"
    keep: tuple[tuple[str, float], ...] = ()
    """Figures that must not fall below so many percent."""

    @classmethod
    def parse(cls, name: str = "balanced", keep: Iterable[str] = ()) -> Goal:
        """A goal as it is typed: a name, and floors as in ``overall=80``, in percent."""
        if name not in GOALS:
            raise ValueError(f"there is no goal {name!r}; {nearest(name, GOALS)}")
        floors: dict[str, float] = {}
        for text in keep:
            figure, equals, value = (part.strip() for part in text.partition("="))
            if not equals or not value:
                raise ValueError(f"a floor is a figure and a number of percent, such as overall=80; got {text!r}.")
            if figure not in GOALS:
                raise ValueError(f"there is no figure {figure!r} to keep; {nearest(figure, GOALS)}")
            if figure in floors:
                raise ValueError(f"the floor of {figure} is given twice; give one.")
            floors[figure] = _percent(figure, value)
        return cls(name, tuple(floors.items()))

    def __str__(self) -> str:
        floors = " and ".join(f"{name} at least {value:g} %" for name, value in self.keep)
        return self.name + (f", with {floors}" if floors else "")


def _percent(figure: str, text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:
        raise ValueError(f"the floor of {figure} must be a number of percent from 0 to 100; got {text!r}.")
    if 0 < value < 1:
        raise ValueError(f"floors are in percent: write {figure}={100 * value:g} if {100 * value:g} % is meant.")
    return value


def score_all(goal: Goal | str, correct: NDArray[Any], labels: NDArray[Any], class_counts: CountsLike) -> Floats:
    """Scores of M candidates on the same images, in percent: ``correct`` (M, N), result (M,)."""
    return figures.score_all(_figure(goal), correct, labels, class_counts)


@dataclass(frozen=True)
class Choice:
    """The candidate to take, and why."""

    index: int
    """The candidate taken."""
    best: int
    """The one with the highest score among those that keep the floors."""
    error: float
    """Standard error of the difference between the two, in points; 0 if they are one."""
    within: tuple[int, ...]
    """All candidates that are within one standard error of the best, and keep the floors."""
    floor_met: bool
    """Whether the candidate keeps all floors."""
    note: str
    """Why it was taken, in a sentence."""


def bootstrap_scores(
    goal: Goal | str,
    correct: NDArray[Any],
    labels: NDArray[Any],
    class_counts: CountsLike,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """Scores of M candidates if other images had come, (draws, M); a draw has the same images for all candidates.

    Images are drawn within each class. From a class of n images n - 1 are drawn with replacement and weighted up, which
    makes the variance right for small n too (Rao and Wu 1988; n draws would halve it for n = 2). A class of one image
    shows no variance at all: such classes exchange their images (collapsed strata), which rather overstates it.

    Args:
        goal: the goal, or its name.
        correct: (M, N) whether the prediction of each candidate is right, or how nearly.
        labels: (N,) true classes.
        class_counts: training images per class.
        draws: how often images are drawn.
        seed: of the draws.
    """
    counts, labels, name = as_counts(class_counts, on_empty="ignore"), np.asarray(labels), _figure(goal)
    totals = np.bincount(labels, minlength=len(counts))
    order = np.argsort(labels, kind="stable")
    right = np.ascontiguousarray(np.asarray(correct, dtype=np.float32)[:, order])
    ends = np.cumsum(totals)
    single, several, random = np.flatnonzero(totals == 1), np.flatnonzero(totals > 1), np.random.default_rng(seed)
    at_once = max(1, min(draws, BLOCK // max(len(right) * len(counts), 1)))
    scores = np.empty((draws, len(right)))
    for start in range(0, draws, at_once):
        size = min(at_once, draws - start)
        hits = np.zeros((size, len(right), len(counts)), dtype=np.float32)
        for label in several.tolist():
            number = int(totals[label])
            drawn = random.integers(number, size=(size, number - 1)) + number * np.arange(size)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=size * number).reshape(size, number).astype(np.float32)
            hits[:, :, label] = weights @ right[:, ends[label] - number : ends[label]].T * (number / (number - 1))
        if len(single):
            picked = ends[single[random.integers(len(single), size=(size, len(single)))]] - 1
            hits[:, :, single] = right[:, picked].transpose(1, 0, 2)
        scores[start : start + size] = score_hits(name, hits, totals, counts)
    return scores


def choose(
    goal: Goal,
    scores: Floats,
    draws: Floats,
    simplicity: Sequence[float] | Floats,
    kept: Mapping[str, Floats] | None = None,
) -> Choice:
    """The simplest candidate that is not clearly worse than the best.

    Floors come first: only candidates that keep them all are looked at. If there is none, the one whose largest
    shortfall is smallest is taken. Among the others the best is found, and the simplest within one standard error of it
    (of the paired difference to it, from ``draws``) is taken; of equally simple ones the one with the highest score.

    Args:
        goal: with the floors.
        scores: (M,) by the goal's figure.
        draws: (D, M) of :func:`bootstrap_scores`.
        simplicity: (M,) the lower, the simpler.
        kept: (M,) for each figure that has a floor.
    """
    scores, rank = np.asarray(scores, dtype=np.float64), np.asarray(simplicity, dtype=np.float64)
    short = np.zeros(len(scores))
    for name, floor in goal.keep:
        short = np.maximum(short, floor - (kept or {})[name])
    allowed = np.flatnonzero(short <= 1e-9)
    if not len(allowed):
        closest = min(range(len(scores)), key=lambda one: (round(float(short[one]), 9), -scores[one], rank[one]))
        reached = [f"{name} {(kept or {})[name][closest]:.1f} % of {floor:g} %" for name, floor in goal.keep]
        note = f"No candidate keeps the floor: the nearest reaches {' and '.join(reached)}, and it was taken."
        return Choice(closest, closest, 0.0, (closest,), False, note)
    best = int(allowed[np.lexsort((rank[allowed], -scores[allowed]))[0]])
    errors = np.std(draws - draws[:, [best]], axis=0, ddof=1) if len(draws) > 1 else np.zeros(len(scores))
    within = allowed[scores[best] - scores[allowed] <= errors[allowed] + 1e-9]
    # the best of that simplicity: one with a higher score may have a smaller error, and so be just outside
    alike = allowed[rank[allowed] == rank[within].min()]
    index = int(alike[np.argmax(scores[alike])])
    if index == best:
        note = "It has the highest score, and nothing simpler comes within one standard error of it."
    else:
        below = f"{scores[best] - scores[index]:.1f} points below it"
        note = f"It is simpler than the best and {below}, within one standard error ({errors[index]:.1f})."
    return Choice(index, best, float(errors[index]), tuple(within.tolist()), True, note)


def decide(
    goal: Goal,
    correct: NDArray[Any],
    labels: NDArray[Any],
    class_counts: CountsLike,
    simplicity: Sequence[float] | Floats,
    draws: int = DRAWS,
    seed: int = 0,
) -> Choice:
    """:func:`choose` from predictions: ``correct`` (M, N) tells which candidate is right on which image."""
    scores = score_all(goal, correct, labels, class_counts)
    drawn = bootstrap_scores(goal, correct, labels, class_counts, draws, seed)
    kept = {name: score_all(name, correct, labels, class_counts) for name, _ in goal.keep}
    return choose(goal, scores, drawn, simplicity, kept)


def _figure(goal: Goal | str) -> str:
    return goal if isinstance(goal, str) else goal.name
