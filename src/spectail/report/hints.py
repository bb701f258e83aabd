"""What can be done about a classifier, from its test predictions alone; `spectail fit` knows more (advice.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.pairs import Pairs
from ..diagnosis.analysis import Analysis
from .mistakes import confidence, image_name

if TYPE_CHECKING:
    from .run_record import RunRecord

SHOWN = 5
LEAST, SHARE = 3, 0.1  # mistakes between two classes, and their share of the images, from which on they are named
BELOW = 10.0  # points below the mean of the classes that make a class one to collect
APART = 10.0  # points between frequent and rare classes that make tuning worth while
UNSURE = 10.0  # points of calibration error worth a temperature
SURE = 0.95  # of a wrong class: then look at the label
STILL_RISING = 1.0  # points gained in the last fifth of the epochs
BALANCED = ("balanced", "logit-adjustment", "tau-norm", "crt", "lws", "gml", "balms")  # in the names of methods


@dataclass(frozen=True)
class Pair:
    """Two classes that are mixed up."""

    first: int
    second: int
    taken: int
    images: int


@dataclass(frozen=True)
class Doubtful:
    """A test image that the classifier is sure about, and wrong."""

    name: str
    true: int
    predicted: int
    confidence: float
    """In percent."""


@dataclass(frozen=True)
class Hints:
    """What to do, each list with the most urgent first."""

    name: str
    unfinished: str | None
    """Why the classifier was not trained to the end."""
    collect: list[dict[str, Any]]
    """Entries of ``per_class``: rare classes that are recognised worse than most."""
    pairs: list[Pair]
    doubtful: list[Doubtful]
    tune: list[str]
    """Sentences, with commands in them."""

    def __bool__(self) -> bool:
        return bool(self.unfinished or self.collect or self.pairs or self.doubtful or self.tune)


def find_hints(analysis: Analysis, run: RunRecord | None) -> Hints:
    return Hints(
        analysis.predictions.name, None if run is None else unfinished(run.results), _collect(analysis),
        _pairs(analysis), _doubtful(analysis), _tune(analysis, run),
    )  # fmt: skip


def unfinished(results: dict[str, Any]) -> str | None:
    """Why a run was not trained to the end, in a sentence; None if nothing says so.

    Example:
        >>> unfinished({"late_gain": 3.2, "epochs": 12})
        'accuracy still rose by 3.2 points in the last fifth of the 12 epochs'
        >>> unfinished({"late_gain": 0.1, "worst_train": 71.0}) is None
        True
    """
    late, worst = results.get("late_gain"), results.get("worst_train")
    if late is not None and late > STILL_RISING:
        return f"accuracy still rose by {late:.1f} points in the last fifth of the {results.get('epochs')} epochs"
    if worst == 0:
        which = results.get("worst_train_class")
        name = f"class {which!r}" if which is not None else "one class"
        return f"even in training, {name} is never recognised"
    return None


def _collect(analysis: Analysis) -> list[dict[str, Any]]:
    if analysis.predictions.class_counts is None:
        return []
    limit = analysis.metrics["balanced"] - BELOW
    rare = [analysis.per_class[label] for label in analysis.worst if analysis.per_class[label]["group"] != "head"]
    return [entry for entry in rare if entry["accuracy"] < limit][:SHOWN]


def _pairs(analysis: Analysis) -> list[Pair]:
    found = analysis.predictions
    pairs = Pairs.of(found.predicted, found.labels, found.num_classes)
    wrong, total = pairs.wrong(), pairs.total
    both: dict[tuple[int, int], int] = {}
    for true, predicted, count in zip(wrong.true.tolist(), wrong.predicted.tolist(), wrong.count.tolist(), strict=True):
        key = (min(true, predicted), max(true, predicted))
        both[key] = both.get(key, 0) + count
    mixed = [Pair(*key, taken, int(total[list(key)].sum())) for key, taken in both.items()]
    named = [pair for pair in mixed if pair.taken >= LEAST and pair.taken >= SHARE * pair.images]
    return sorted(named, key=lambda pair: (-pair.taken / pair.images, -pair.taken))[:SHOWN]


def _doubtful(analysis: Analysis) -> list[Doubtful]:
    found = analysis.predictions
    wrong = np.flatnonzero(found.predicted != found.labels)
    sure = confidence(found, wrong)
    if sure is None:
        return []
    return [
        Doubtful(image_name(found, int(wrong[at])), int(found.labels[wrong[at]]), int(found.predicted[wrong[at]]),
                 100 * float(sure[at]))
        for at in np.argsort(-sure, kind="stable")[:SHOWN] if sure[at] >= SURE
    ]  # fmt: skip


def _tune(analysis: Analysis, run: RunRecord | None) -> list[str]:
    metrics, sentences = analysis.metrics, []
    head, tail, ece = metrics["head"], metrics["tail"], metrics["ece"]
    balanced = run is not None and any(word in str(run.results["method"]) for word in BALANCED)
    if head is not None and tail is not None and head - tail >= APART:
        sentences.append(
            f"Frequent classes are recognised in {head:.0f} % of their images, rare ones in {tail:.0f} %. "
            "`spectail adjust PREDICTIONS --on VALIDATION` shifts the balance without any training."
        )
        if not balanced:
            sentences.append(
                "If you can train again, try `--method balanced-softmax` or `car-balanced`, or let `spectail fit` "
                "choose."
            )
    if ece is not None and ece >= UNSURE:
        sentences.append(
            f"Its confidence is off by {ece:.0f} points on average; `spectail adjust` also finds a temperature."
        )
    return sentences
