"""From out-of-fold predictions to one candidate for a goal, with what it gains and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosis.comparison import Difference
from ..models.adjustment import Adjustment
from .candidates import Candidate, Training, shifted
from .crossfit import CrossFit, Fitted
from .figures import nearly_right
from .goals import GOALS, Choice, Goal, bootstrap_scores, choose, score_all
from .temperature import class_weights, fit_temperature

INTERVAL = (2.5, 97.5)


@dataclass(frozen=True)
class Chosen:
    """What was chosen from out-of-fold predictions."""

    candidate: Candidate
    fitted: Fitted
    choice: Choice
    adjustment: Adjustment
    figures: dict[str, float]
    """Of the choice, out of fold, by name of the goal."""
    plain: Training
    """Cross entropy, which the choice is compared with."""
    baseline: dict[str, float]
    """Its figures, without a shift."""
    differences: dict[str, Difference]
    """Of the choice minus cross entropy, over images."""
    menu: list[dict[str, Any]]
    """The best shift of every training for the goal, best first, with all figures."""
    others: dict[str, dict[str, Any]]
    """For every other goal, what would be chosen then."""
    lines: list[dict[str, Any]]
    """The figures of every training at all shifts."""


def choose_candidate(result: CrossFit, goal: Goal, plain: Training, seed: int = 0) -> Chosen:
    """Apply the one-standard-error rule to all candidates that have predicted every fold.

    Args:
        result: of cross-fitting.
        goal: what to choose for.
        plain: the training that the choice is compared with.
        seed: of the bootstrap.
    """
    candidates, lead = result.candidates()
    if not candidates:
        raise ValueError("no candidate has predicted all images in the time that it had.")
    labels, counts, right = result.labels[result.judged], result.counts, lead > 0
    nearly = nearly_right(lead, labels)
    scores = {name: score_all(name, right, labels, counts) for name in GOALS}
    simplicity = [candidate.simplicity for candidate in candidates]
    smooth = {name: score_all(name, nearly, labels, counts) for name in GOALS}

    def taken(wanted: Goal) -> Choice:
        drawn = bootstrap_scores(wanted, nearly, labels, counts, seed=seed)
        return choose(wanted, smooth[wanted.name], drawn, simplicity, scores)

    choice = taken(goal)
    candidate = candidates[choice.index]
    base = next(at for at, one in enumerate(candidates) if one.training == plain and one.shift == 0)
    others = {name: taken(Goal(name)).index for name in GOALS if name != goal.name}
    draws = {name: bootstrap_scores(name, right[[choice.index, base]], labels, counts, seed=seed)
             for name in (goal.name, "overall")}  # fmt: skip
    return Chosen(
        candidate,
        result.fitted[candidate.training.title],
        replace(choice, note=_why(choice, candidates)),
        _adjustment(result, candidate, goal),
        {name: float(values[choice.index]) for name, values in scores.items()},
        plain,
        {name: float(values[base]) for name, values in scores.items()},
        {name: _difference(scores[name][[choice.index, base]], drawn) for name, drawn in draws.items()},
        _menu(candidates, scores, smooth[goal.name]),
        {name: _entry(candidates[at], at, scores) for name, at in others.items()},
        _lines(candidates, scores),
    )


def _why(choice: Choice, candidates: list[Candidate]) -> str:
    """The reason, with the best by its name, and why the table's figures are not quite those of the choice."""
    if not choice.floor_met:
        return choice.note
    best = f" The best is {candidates[choice.best].title}." if choice.best != choice.index else ""
    return f"{choice.note}{best} Close decisions count in part here, so the points are not quite those of the table."


def _difference(scores: NDArray[np.float64], draws: NDArray[np.float64]) -> Difference:
    """Of the first to the second."""
    low, high = np.percentile(draws[:, 0] - draws[:, 1], INTERVAL)
    return Difference(float(scores[0] - scores[1]), float(low), float(high))


def _entry(candidate: Candidate, at: int, scores: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    training = candidate.training
    return {
        "title": candidate.title,
        "training": training.title,
        "method": training.method,
        "features": training.features,
        "weight_decay": training.decay,
        "shift": candidate.shift,
        "figures": {name: round(float(values[at]), 3) for name, values in scores.items()},
    }


def _menu(
    candidates: list[Candidate], scores: dict[str, NDArray[np.float64]], by: NDArray[np.float64]
) -> list[dict[str, Any]]:  # fmt: skip
    best: dict[str, int] = {}
    order = np.argsort(-by, kind="stable")
    for at in order.tolist():
        best.setdefault(candidates[at].training.title, at)
    return [_entry(candidates[at], at, scores) for at in best.values()]


def _lines(candidates: list[Candidate], scores: dict[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    places: dict[str, list[int]] = {}
    for at, candidate in enumerate(candidates):
        places.setdefault(candidate.training.title, []).append(at)
    return [
        {"title": title, "shifts": [candidates[place].shift for place in own]}
        | {name: values[own].round(3).tolist() for name, values in scores.items()}
        for title, own in places.items()
    ]


def _adjustment(result: CrossFit, candidate: Candidate, goal: Goal) -> Adjustment:
    """The shift, and the temperature that fits out-of-fold logits. Classes count alike, unless the goal is overall."""
    logits = result.fitted[candidate.training.title].logits[result.judged]
    labels, counts = result.labels[result.judged], result.counts
    moved = shifted(logits, candidate.shift, counts)
    weights = class_weights(labels, len(counts), alike=goal.name != "overall")
    names = counts.names or tuple(map(str, range(len(counts))))
    offsets = -candidate.shift * counts.frequencies.log().numpy()
    tau = candidate.shift if candidate.shift else None
    return Adjustment(names, tuple(map(float, offsets)), fit_temperature(moved, labels, weights), tau, str(goal),
                      "out-of-fold predictions of the training images")  # fmt: skip
