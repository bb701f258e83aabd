"""The adjustment of any classifier's logits that serves a goal best: nothing, tau, or offsets; and a temperature.

Each is fitted on folds of the validation data and judged on the fold that was left out. The simplest one within one
standard error of the best is then fitted on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts import ClassCounts, CountsLike, as_counts
from ..models.adjustment import Adjustment
from ..models.prior_line import prior_shift
from .describe import describe
from .figures import Floats
from .goals import Choice, Goal, bootstrap_scores, decide, score_all
from .line import best_tau, right_between
from .offsets import STRENGTHS, fit_offsets
from .temperature import class_weights, fit_temperature

ENOUGH = 20_000  # images for a temperature: more change its third digit
NOTHING, TAU = "nothing", "tau"
OFFSETS = tuple(f"offsets, penalty {strength:g}" for strength in STRENGTHS)


@dataclass(frozen=True)
class AdjustmentTable:
    """What an adjustment does, on validation images that it was not fitted to."""

    before: dict[str, float | None]
    """Figures of the logits as they are, see :func:`~spectail.fit.describe.describe`."""
    after: dict[str, float | None]
    """Figures of the adjusted logits, each fold adjusted by what the others say."""
    scores: dict[str, float]
    """The goal's figure of every candidate, by name, cross-fitted."""
    choice: Choice
    """Of the candidates, in the order of ``scores``."""

    @property
    def chosen(self) -> str:
        return list(self.scores)[self.choice.index]


class Fitter:
    """Fits every kind of adjustment to any part of the validation data."""

    def __init__(
        self, logits: NDArray[Any], labels: NDArray[np.int64], counts: ClassCounts | None, goal: Goal, seed: int
    ) -> None:
        self.logits, self.labels, self.goal = logits, labels, goal
        self.counts = counts if counts is not None else ClassCounts(np.ones(logits.shape[1], dtype=np.int64))
        self.random = np.random.default_rng(seed)
        self.alike = goal.name != "overall"
        everything = np.arange(len(labels))
        self.unit = self.temperature(everything, np.zeros(logits.shape[1]))
        plain = (logits.argmax(1) == labels)[None]
        self.margins = {
            name: float(bootstrap_scores(name, plain, labels, self.counts, seed=seed).std()) for name, _ in goal.keep
        }
        self.shift = None if counts is None else prior_shift(counts)
        if self.shift is not None and np.ptp(self.shift) > 0:
            self.low, self.high = right_between(logits, labels, self.shift)
        else:
            self.shift = None  # the same for all classes: tau would do nothing
        self.kinds = (NOTHING, *((TAU,) if self.shift is not None else ()), *OFFSETS)

    def fit(self, kind: str, rows: NDArray[np.int64]) -> tuple[Floats, float | None]:
        """Offsets from these images, and tau where it has a part in them."""
        offsets, tau = np.zeros(self.logits.shape[1]), None
        if kind == NOTHING:
            return offsets, tau
        labels = self.labels[rows]
        if self.shift is not None:
            tau = best_tau(self.low[rows], self.high[rows], labels, self.counts, self.goal, self.margins)
            offsets = tau * self.shift
        if kind in OFFSETS:
            adjusted = self.logits[rows] + offsets.astype(np.float32)
            strength = STRENGTHS[OFFSETS.index(kind)]
            offsets = offsets + fit_offsets(adjusted, labels, self.counts, self.goal, self.margins, self.unit, strength)
        return offsets, tau

    def temperature(self, rows: NDArray[np.int64], offsets: Floats) -> float:
        """Of logits with these offsets. Classes count alike, unless the goal counts images."""
        if len(rows) > ENOUGH:
            rows = np.sort(self.random.choice(rows, ENOUGH, replace=False))
        weights = class_weights(self.labels[rows], self.logits.shape[1], alike=self.alike)
        return fit_temperature(self.logits[rows] + offsets.astype(np.float32), self.labels[rows], weights)


def choose_adjustment(
    logits: NDArray[Any],
    labels: NDArray[Any],
    class_counts: CountsLike | None,
    goal: Goal | None = None,
    folds: int = 5,
    seed: int = 0,
    class_names: tuple[str, ...] | None = None,
    source: str | None = None,
) -> tuple[Adjustment, AdjustmentTable]:
    """The adjustment that serves a goal best on validation images, and what it does there.

    Candidates, the simplest first: nothing; one tau, ``-tau log(n_j / N)``; and offsets for each class on top of it,
    with a strong and a weak penalty. The simplest within one standard error of the best is taken, judged on images that
    it was not fitted to (``folds`` parts of each class). A floor is aimed at with a margin of one standard error of the
    kept figure. The temperature is fitted in any case; it changes no prediction.

    Args:
        logits: (N, K) of validation images, on which the model was not trained.
        labels: (N,) their true classes.
        class_counts: training images per class; None leaves tau out.
        goal: by default the mean of the class accuracies.
        folds: parts that the images are cut into.
        seed: of the cut and of the bootstrap.
        class_names: K names for the adjustment; numbers by default.
        source: what it says about where it comes from.
    """
    goal = goal or Goal()
    logits, labels = np.asarray(logits, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    counts = None if class_counts is None else as_counts(class_counts, on_empty="ignore")
    _check(logits, labels, counts, goal)
    fitter = Fitter(logits, labels, counts, goal, seed)
    parts = cut(labels, folds, seed)
    correct = np.zeros((len(fitter.kinds), len(labels)), dtype=bool)
    fitted: dict[tuple[str, int], Floats] = {}
    for fold in range(int(parts.max()) + 1):
        rows, left_out = np.flatnonzero(parts != fold), np.flatnonzero(parts == fold)
        for at, kind in enumerate(fitter.kinds):
            fitted[kind, fold], _ = fitter.fit(kind, rows)
            moved = logits[left_out] + fitted[kind, fold].astype(np.float32)
            correct[at, left_out] = moved.argmax(1) == labels[left_out]
    choice = decide(goal, correct, labels, fitter.counts, range(len(fitter.kinds)), seed=seed)
    chosen = fitter.kinds[choice.index]
    honest = np.empty_like(logits)
    for fold in range(int(parts.max()) + 1):
        offsets, left_out = fitted[chosen, fold], parts == fold
        temperature = fitter.temperature(np.flatnonzero(~left_out), offsets)
        honest[left_out] = (logits[left_out] + offsets.astype(np.float32)) / np.float32(temperature)
    everything = np.arange(len(labels))
    offsets, tau = fitter.fit(chosen, everything)
    names = class_names or (counts.names if counts is not None else None) or tuple(map(str, range(logits.shape[1])))
    adjustment = Adjustment(
        names, tuple(offsets), fitter.temperature(everything, offsets), tau, str(goal), source
    )  # fmt: skip
    table = AdjustmentTable(
        describe(logits, labels, counts, goal),
        describe(honest, labels, counts, goal),
        dict(zip(fitter.kinds, score_all(goal, correct, labels, fitter.counts).tolist(), strict=True)),
        choice,
    )
    return adjustment, table


def cut(labels: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of each image: every class is spread over as many folds as it has images for."""
    folds = max(2, min(folds, len(labels)))
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    parts = np.empty(len(labels), dtype=np.int64)
    parts[order] = np.arange(len(labels)) % folds  # class after class: rare ones begin anywhere
    return parts


def _check(logits: NDArray[Any], labels: NDArray[np.int64], counts: ClassCounts | None, goal: Goal) -> None:
    if logits.ndim != 2 or logits.shape[1] < 2 or labels.shape != (len(logits),):
        raise ValueError(f"expected logits (N, K) and labels (N,); got {logits.shape} and {labels.shape}.")
    if len(labels) < 2:
        raise ValueError(f"cross-fitting needs two validation images or more; got {len(labels)}.")
    if not np.isfinite(logits).all():
        raise ValueError("validation logits must be finite numbers; some are NaN or infinite.")
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise ValueError(f"labels must lie in [0, {logits.shape[1]}); got {labels.min()} to {labels.max()}.")
    if counts is not None and len(counts) != logits.shape[1]:
        raise ValueError(f"there must be one class count for each of the {logits.shape[1]} classes; got {len(counts)}.")
    if counts is None and "tail" in {goal.name, *(name for name, _ in goal.keep)}:
        raise ValueError("which classes are tail follows from the training images per class, which are not known.")
