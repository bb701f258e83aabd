"""The diagnosis of one set of predictions: what is right, what is taken for what, and along which direction."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._core.pairs import Pairs, wilson_limits
from .._core.sparse_svd import confusion_spectrum
from .._utils.checks import check_choice
from ..counts import CONVENTIONS, ClassCounts
from ..functional import class_weights
from ..metrics import BINS, add_calibration, figures_of
from .predictions import BLOCK, Predictions
from .statistics import mean_interval
from .text_table import TITLES, Table, number, to_html

DENSE = 2_000  # most classes for which the whole confusion matrix is kept
TOP = 50
VIEW = 10
GROUPS = ("head", "medium", "tail")
STANDS_OUT = 50.0  # percent of a direction that its first classes must hold to be called a group


@dataclass(frozen=True)
class Confusion:
    """One class taken for another."""

    true: int
    predicted: int
    count: int
    share: float
    """Of the true class's test images, in percent."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values and top direction of the hard confusion matrix C with zero diagonal, times Lambda at r0 0.2.

    The largest value is ``spectral_norm`` of ``results.json``. Where the training counts are unknown, Lambda is 1.
    """

    singular_values: NDArray[np.float64]
    """Up to ten, in falling order."""
    left: NDArray[np.float64]
    """(K,) weight of each predicted class."""
    right: NDArray[np.float64]
    """(K,) weight of each true class."""
    energy: NDArray[np.float64]
    """(K,) what each true class adds to the square of the norm, in percent; sums to 100."""
    weights: NDArray[np.float64]
    """(K,) lambda."""
    top_true: list[int]
    """Classes that make up 80 % of the squares of ``right``, ten at most."""
    top_predicted: list[int]
    """The same for ``left``."""

    @property
    def share_true(self) -> float:
        """How much of the direction ``top_true`` holds, in percent."""
        return float(self.energy[self.top_true].sum())

    @property
    def share_predicted(self) -> float:
        """The same for ``top_predicted``."""
        return 100 * float(np.square(self.left[self.top_predicted]).sum())


@dataclass(frozen=True)
class Analysis:
    """What :func:`analyse` finds. Accuracies and shares in percent, None where there is nothing to measure."""

    predictions: Predictions
    metrics: dict[str, Any]
    """The accuracy fields of ``results.json``; head, medium, tail, groups and spectral_norm are None without counts."""
    intervals: dict[str, tuple[float, float] | None]
    """95 % intervals of overall, balanced, head, medium, tail and worst. Overall and worst are Wilson's (that of worst
    ignores that the class was picked for being worst); means over classes take Wilson's with the variance of the
    mean, see :func:`~spectail.diagnosis.statistics.mean_interval`."""
    per_class: list[dict[str, Any]]
    """index, name, train_count, test_count, accuracy, low, high, precision, group, taken_for (three at most)."""
    confusion: NDArray[np.int32] | None
    """(K, K) counts, rows predicted, columns true; None above 2,000 classes."""
    top_confusions: list[Confusion]
    """The fifty most frequent, then those with the larger share."""
    worst: list[int]
    """Classes by accuracy, lowest first; of equal ones that with more test images first."""
    view: list[int]
    """Up to ten classes that show how the worst one fails, see :func:`choose_view`."""
    spectrum: Spectrum | None
    """None if nothing is confused."""
    calibration: dict[str, Any] | None
    """bins (low, high, confidence and accuracy in percent, count), ece, mean_confidence, accuracy; None without
    scores."""

    @property
    def tied(self) -> int:
        """How many classes share the lowest accuracy."""
        lowest = self.per_class[self.worst[0]]["accuracy"]
        return sum(self.per_class[label]["accuracy"] == lowest for label in self.worst)

    def to_pandas(self) -> Any:
        """One row per class: everything of ``per_class``, with the names of the classes it is taken for."""
        import pandas as pd  # noqa: PLC0415 - not needed otherwise

        names = self.predictions.class_names
        rows = [entry | {"taken_for": [names[one.predicted] for one in entry["taken_for"]]} for entry in self.per_class]
        return pd.DataFrame(rows).set_index("name")

    def _repr_html_(self) -> str:
        """What a notebook shows: the accuracies, and the lowest classes with what they are taken for."""
        names = self.predictions.class_names
        values = {**self.metrics, "worst": self.metrics["worst_test"]}
        titles = {**TITLES, "worst": f"{TITLES['worst']}, {self.metrics['worst_test_class']}"}
        figures = [(titles.get(key, key), number(values[key]), _between(interval))
                   for key, interval in self.intervals.items() if values[key] is not None]  # fmt: skip
        lowest = []
        for entry in (self.per_class[label] for label in self.worst[:VIEW]):
            taken = ", ".join(f"{names[one.predicted]} {number(one.share, 0)} %" for one in entry["taken_for"])
            right = (entry["name"], number(entry["accuracy"]), _between((entry["low"], entry["high"])))
            lowest.append((*right, str(entry["test_count"]), taken))
        header = ("percent right", "95 % interval")
        title = f"{self.predictions.name}: {len(self.predictions):,} test images of {len(names):,} classes"
        below = Table("Lowest classes", ("class", *header, "test images", "taken for"), lowest)
        return to_html(Table(title, ("", *header), figures)) + to_html(below)


def analyse(predictions: Predictions, *, convention: str = "count") -> Analysis:
    """Diagnose predictions.

    Args:
        predictions: from :func:`~spectail.diagnosis.read_predictions` or :func:`~spectail.diagnosis.make_predictions`.
        convention: rule for head, medium and tail, see :meth:`spectail.ClassCounts.groups`.

    Example:
        >>> from spectail.diagnosis import make_predictions
        >>> analysis = analyse(make_predictions([0, 0, 1, 1, 2], [0, 0, 1, 2, 1], class_counts=[500, 60, 5]))
        >>> analysis.metrics["overall"], analysis.metrics["tail"], analysis.worst
        (60.0, 0.0, [2, 1, 0])
        >>> analysis.top_confusions[0]
        Confusion(true=2, predicted=1, count=1, share=100.0)
    """
    check_choice("convention", convention, CONVENTIONS)
    counts, names = predictions.class_counts, predictions.class_names
    groups = None if counts is None else ClassCounts(counts, names=names).groups(convention)
    pairs = Pairs.of(predictions.predicted, predictions.labels, predictions.num_classes)
    spectrum = _spectrum(pairs, counts)
    norm = 0.0 if spectrum is None else float(spectrum.singular_values[0])
    bins, sums = _calibration_sums(predictions)
    metrics = figures_of(pairs, names, groups or {group: [] for group in GROUPS}, convention, norm, bins, sums)
    if groups is None:
        metrics |= {"groups": None, "spectral_norm": None}
    total, right = pairs.total, pairs.right
    per_class = _per_class(pairs, predictions, groups)
    accuracy = np.where(total > 0, right / np.maximum(total, 1), np.inf)
    order = np.lexsort((np.arange(pairs.size), -total, accuracy))
    worst = order[total[order] > 0].tolist()
    return Analysis(
        predictions=predictions,
        metrics=metrics,
        intervals=_intervals(pairs, groups, metrics),
        per_class=per_class,
        confusion=pairs.dense() if pairs.size <= DENSE else None,
        top_confusions=_confusions(pairs.wrong(), total, TOP),
        worst=worst,
        view=choose_view(pairs, worst),
        spectrum=spectrum,
        calibration=None if predictions.logits is None else _calibration(bins, metrics),
    )


def _calibration_sums(predictions: Predictions) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`~spectail.metrics.add_calibration` gathers, block by block; all 0 without scores."""
    bins, sums = torch.zeros(3, BINS, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    if predictions.logits is not None:
        rows = max(BLOCK // predictions.num_classes, 1)
        for start in range(0, len(predictions), rows):
            logits = predictions.logits[start : start + rows]
            labels = torch.from_numpy(np.array(predictions.labels[start : start + rows]))
            add_calibration(bins, sums, torch.from_numpy(logits if logits.flags.writeable else logits.copy()), labels)
    return bins, sums


def _calibration(bins: torch.Tensor, metrics: dict[str, Any]) -> dict[str, Any]:
    samples, confidence, right = bins.numpy()
    edges = np.linspace(0, 100, BINS + 1)
    rows = [
        {
            "low": float(edges[at]),
            "high": float(edges[at + 1]),
            "count": int(samples[at]),
            "confidence": 100 * float(confidence[at] / samples[at]) if samples[at] else None,
            "accuracy": 100 * float(right[at] / samples[at]) if samples[at] else None,
        }
        for at in range(BINS)
    ]
    return {
        "bins": rows,
        "ece": metrics["ece"],
        "mean_confidence": 100 * float(confidence.sum() / samples.sum()),
        "accuracy": metrics["overall"],  # ties between classes may have been broken another way in the bins
    }


def choose_view(pairs: Pairs, worst: list[int]) -> list[int]:
    """Classes for a small confusion matrix: the worst one, and again and again the class most confused with them.

    "Most" is the sum of shares in both directions between a class and those chosen so far; when nothing is confused
    with them any more, the next worst class joins.
    """
    wrong, total = pairs.wrong(), pairs.total
    share = wrong.count / total[wrong.true]
    chosen: list[int] = []
    mass = np.zeros(pairs.size)
    waiting = iter(worst)
    while len(chosen) < VIEW:
        mass[chosen] = 0
        nearest = int(mass.argmax())
        if mass[nearest] > 0:
            joins = nearest
        else:
            following = next((label for label in waiting if label not in chosen), None)
            if following is None:
                break
            joins = following
        chosen.append(joins)
        as_true, as_predicted = wrong.true == joins, wrong.predicted == joins
        np.add.at(mass, wrong.predicted[as_true], share[as_true])
        np.add.at(mass, wrong.true[as_predicted], share[as_predicted])
    return chosen


def _spectrum(pairs: Pairs, counts: NDArray[np.int64] | None) -> Spectrum | None:
    if not len(pairs.wrong().count):
        return None
    weights = (
        np.ones(pairs.size) if counts is None else class_weights(counts, on_empty="ignore", dtype=torch.float64).numpy()
    )
    values, left, right = confusion_spectrum(pairs, weights)
    return Spectrum(values, left, right, 100 * np.square(right), weights, _chief(right), _chief(left))


def _chief(direction: NDArray[np.float64]) -> list[int]:
    """Classes that make up 80 % of a direction, ten at most."""
    order = np.argsort(-direction, kind="stable")
    covered = np.cumsum(np.square(direction[order]))
    needed = int(np.searchsorted(covered, 0.8 * covered[-1] * (1 - 1e-12))) + 1
    return [int(label) for label in order[: min(needed, 10)]]


def _intervals(
    pairs: Pairs, groups: dict[str, list[int]] | None, metrics: dict[str, Any]
) -> dict[str, tuple[float, float] | None]:
    right, total = pairs.right, pairs.total
    low, high = wilson_limits(right.sum(), total.sum())
    intervals: dict[str, tuple[float, float] | None] = {
        "overall": (100 * float(low), 100 * float(high)),
        "balanced": _percent(mean_interval(right, total)),
    }
    for group in GROUPS:
        labels = groups[group] if groups is not None else []
        intervals[group] = _percent(mean_interval(right[labels], total[labels])) if labels else None
    worst_low, worst_high = metrics["worst_test_interval"]
    return intervals | {"worst": (worst_low, worst_high)}


def _per_class(pairs: Pairs, predictions: Predictions, groups: dict[str, list[int]] | None) -> list[dict[str, Any]]:
    right, total, named = pairs.right, pairs.total, pairs.named
    low, high = wilson_limits(right, total)
    group_of = {label: group for group, labels in (groups or {}).items() for label in labels}
    taken: list[list[Confusion]] = [[] for _ in range(pairs.size)]
    wrong = pairs.wrong()
    for at in np.lexsort((wrong.predicted, -wrong.count, wrong.true)).tolist():
        label = int(wrong.true[at])
        if len(taken[label]) < 3:
            taken[label].append(_confusion(wrong, at, total))
    counts = predictions.class_counts
    return [
        {
            "index": label,
            "name": predictions.class_names[label],
            "train_count": None if counts is None else int(counts[label]),
            "test_count": int(total[label]),
            "accuracy": 100 * float(right[label] / total[label]) if total[label] else None,
            "low": 100 * float(low[label]) if total[label] else None,
            "high": 100 * float(high[label]) if total[label] else None,
            "precision": 100 * float(right[label] / named[label]) if named[label] else None,
            "group": group_of.get(label),
            "taken_for": taken[label],
        }
        for label in range(pairs.size)
    ]


def _confusions(wrong: Pairs, total: NDArray[np.int64], most: int) -> list[Confusion]:
    share = wrong.count / np.maximum(total[wrong.true], 1)
    order = np.lexsort((wrong.predicted, wrong.true, -share, -wrong.count))
    return [_confusion(wrong, at, total) for at in order[:most].tolist()]


def _confusion(wrong: Pairs, at: int, total: NDArray[np.int64]) -> Confusion:
    true, count = int(wrong.true[at]), int(wrong.count[at])
    return Confusion(true, int(wrong.predicted[at]), count, 100 * count / int(total[true]))


def _between(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def _percent(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (100 * interval[0], 100 * interval[1])


def summary(analysis: Analysis) -> dict[str, Any]:
    """All of an analysis as plain lists, numbers and names, ready for JSON."""
    predictions, spectrum = analysis.predictions, analysis.spectrum
    names = predictions.class_names
    wrong = Pairs.of(predictions.predicted, predictions.labels, predictions.num_classes).wrong()
    return {
        "name": predictions.name,
        "notes": list(predictions.notes),
        "samples": len(predictions),
        "classes": list(names),
        "class_counts": None if predictions.class_counts is None else predictions.class_counts.tolist(),
        "metrics": analysis.metrics,
        "intervals": {key: None if value is None else list(value) for key, value in analysis.intervals.items()},
        "per_class": [
            entry | {"taken_for": [_named(confusion, names) for confusion in entry["taken_for"]]}
            for entry in analysis.per_class
        ],
        "top_confusions": [_named(confusion, names) for confusion in analysis.top_confusions],
        "confusions": np.stack([wrong.true, wrong.predicted, wrong.count], 1).tolist(),  # true, predicted, count
        "worst": [names[label] for label in analysis.worst],
        "view": [names[label] for label in analysis.view],
        "spectrum": None
        if spectrum is None
        else {
            "weighted": predictions.class_counts is not None,
            "singular_values": spectrum.singular_values.tolist(),
            "left": spectrum.left.tolist(),
            "right": spectrum.right.tolist(),
            "energy": spectrum.energy.tolist(),
            "weights": spectrum.weights.tolist(),
            "top_true": [names[label] for label in spectrum.top_true],
            "top_predicted": [names[label] for label in spectrum.top_predicted],
        },
        "calibration": analysis.calibration,
    }


def _named(confusion: Confusion, names: tuple[str, ...]) -> dict[str, Any]:
    return asdict(confusion) | {"true": names[confusion.true], "predicted": names[confusion.predicted]}
