"""Confusion matrices of ten classes that span head, medium and tail, method beside method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..counts import ClassCounts
from ..diagnosis.prediction_files import read_predictions
from ..diagnosis.predictions import Predictions
from ..report.figures import INK, MUTED, styled

CLASSES = 10
LONGEST = 16
Runs = Mapping[str, Sequence[Path]]
"""Folders of the runs of each method."""


@styled
def confusions(settings: Mapping[str, Runs], title: str = "") -> Figure:
    """Confusion matrices of the same ten classes in percent of the true class: a row for each setting, a column for
    each method. Percentages are averaged over the runs of a method."""
    found = {setting: {label: [read_predictions(folder / "predictions.npz").without_logits() for folder in folders]
                       for label, folders in runs.items()} for setting, runs in settings.items() if runs}  # fmt: skip
    if not found:
        raise ValueError("there is nothing to draw: no run of the figure is done. Run it first.")
    labels = list(dict.fromkeys(label for runs in found.values() for label in runs))
    first = next(iter(next(iter(found.values())).values()))[0]
    view = spanning(first.class_counts, first.num_classes)
    figure = Figure(figsize=(3.1 * len(labels) + 1.9, 3.2 * len(found) + 1.1), layout="constrained")
    grid = figure.subplots(len(found), len(labels), squeeze=False)
    for (setting, runs), panels in zip(found.items(), grid, strict=True):
        for label, axes in zip(labels, panels, strict=True):
            if label not in runs:
                axes.set_axis_off()
                axes.set_title(f"{label}, {setting}: not trained", fontsize=9)
                continue
            matrix = np.mean([shares(predictions, view) for predictions in runs[label]], axis=0)
            _draw(axes, matrix, names(first, view), groups(first, view))
            axes.set_title(f"{label}, {setting}", fontsize=9)
            first_here = label == next(one for one in labels if one in runs)
            last_here = setting == [one for one in found if label in found[one]][-1]
            axes.tick_params(labelleft=first_here, labelbottom=last_here)
            axes.set_ylabel("true class" if first_here else "")
            axes.set_xlabel("taken for" if last_here else "")
    said = f"% of the test images of the true class, {len(view)} of {first.num_classes:,} classes"
    beside = "" if first.class_counts is None else "; beside a name, its training images"
    figure.suptitle("\n".join(filter(None, [title, said + beside])), fontsize=9)
    return figure


def spanning(counts: NDArray[np.int64] | None, classes: int, number: int = CLASSES) -> list[int]:
    """Labels spread evenly over the classes sorted by their training images, largest first: the largest, the smallest,
    and the others at equal distances between them. Of classes of one size the lower label comes first; without counts
    the order is that of the labels.

    Example:
        >>> spanning(np.array([5, 500, 40, 40, 100]), 5, number=3)
        [1, 2, 0]
    """
    order = np.arange(classes) if counts is None else np.argsort(-counts, kind="stable")
    places = np.linspace(0, classes - 1, min(number, classes)).round().astype(int)
    return [int(label) for label in order[places]]


def groups(predictions: Predictions, view: Sequence[int]) -> list[str]:
    """Head, medium or tail for each class of the view; nothing if the training images are not known."""
    if predictions.class_counts is None:
        return [""] * len(view)
    members = ClassCounts(predictions.class_counts.tolist()).groups()
    return [next(group for group, labels in members.items() if label in labels) for label in view]


def names(predictions: Predictions, view: Sequence[int]) -> list[str]:
    """Class names with their number of training images."""
    counts = predictions.class_counts
    short = [name if len(name) < LONGEST else f"{name[: LONGEST - 1]}…" for name in
             (predictions.class_names[label] for label in view)]  # fmt: skip
    return short if counts is None else [f"{name} {counts[label]}" for name, label in zip(short, view, strict=True)]


def shares(predictions: Predictions, view: Sequence[int]) -> NDArray[np.float64]:
    """Percent of the test images of each class of the view (rows) that are taken for each (columns)."""
    matrix = np.zeros((len(view), len(view)))
    for row, true in enumerate(view):
        of_class = predictions.predicted[predictions.labels == true]
        for column, other in enumerate(view):
            matrix[row, column] = 100 * float(np.mean(of_class == other)) if len(of_class) else 0.0
    return matrix


def _draw(axes: Axes, matrix: NDArray[np.float64], ticks: Sequence[str], kinds: Sequence[str]) -> None:
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=100)
    for row, column in np.ndindex(matrix.shape):
        if matrix[row, column] >= 0.5:
            axes.text(column, row, f"{matrix[row, column]:.0f}", ha="center", va="center", fontsize=6,
                      color="white" if matrix[row, column] > 55 else INK)  # fmt: skip
    axes.set_xticks(range(len(ticks)), ticks, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_yticks(range(len(ticks)), ticks, fontsize=7)
    axes.grid(visible=False)
    for place in (place for place in range(1, len(kinds)) if kinds[place] != kinds[place - 1]):
        axes.axhline(place - 0.5, color=MUTED, linewidth=0.7, linestyle="--")
        axes.axvline(place - 0.5, color=MUTED, linewidth=0.7, linestyle="--")
    for kind in dict.fromkeys(kinds):
        where = [place for place, other in enumerate(kinds) if other == kind]
        axes.text(len(kinds) - 0.35, (where[0] + where[-1]) / 2, kind, rotation=270, ha="left", va="center",
                  fontsize=7, color=MUTED)  # fmt: skip
