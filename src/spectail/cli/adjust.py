"""`spectail adjust PREDICTIONS --on VALIDATION`: tau, class offsets and temperature for any saved predictions."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.table import Table

from .._utils.arrays import opened_npz
from .._utils.files import whole_file
from ..diagnosis.prediction_files import read_predictions
from ..diagnosis.prediction_tables import LABELS, PREDICTED, SCORES
from ..diagnosis.predictions import Predictions
from ..diagnosis.text_table import number
from ..fit.adjust import NOTHING, TAU, AdjustmentTable, choose_adjustment
from ..fit.describe import describe
from ..fit.goals import Goal
from ..models.adjustment import Adjustment
from .arguments import read_flags
from .console import make_console
from .outputs import check_description, check_output


@dataclass(frozen=True)
class Adjust:
    """Adjust the predictions of any model to a goal: a shift by the class prior, offsets for each class, a temperature.

    The adjustment is chosen on predictions for validation images by cross-validation. It reads the files that `spectail
    analyze` reads, with logits, scores or probabilities, and writes the adjusted predictions and, beside them, a .json
    file that `spectail predict`, `export` and `evaluate` take as --adjust.
    """

    predictions: tyro.conf.Positional[Path]
    """File of predictions to adjust, or folder of a run; labels are not needed."""
    on: Path | None = None
    """File of predictions for validation images, with labels. The images must be neither training nor test images."""
    goal: Literal["balanced", "overall", "tail", "worst", "lowest10"] = "balanced"
    """What to make as large as possible: the mean of the class accuracies, the share of right predictions, or the mean
    accuracy of the tail classes, of the worst classes or of the lowest 10 % of the classes."""
    keep: tuple[str, ...] = ()
    """Floors in percent for other figures, such as overall=80."""
    counts: Path | None = None
    """Training images per class, if the files do not have them: one per line, JSON, or .npy."""
    names: Path | None = None
    """Class names in label order: one per line, a JSON list, or a JSON mapping between numbers and names."""
    label_column: str | None = None
    """Column of the labels, if it has no usual name."""
    scores: str | None = None
    """How the names of the score columns begin, if they have no usual names."""
    output: Path | None = None
    """File of the adjusted predictions, .npz. Default: -adjusted added to the name of PREDICTIONS."""


def run(arguments: list[str]) -> None:
    options = read_flags(Adjust, "spectail adjust", arguments)
    goal = Goal.parse(options.goal, options.keep)
    path, on, output = _paths(options)
    validation, predictions = _read(on, options, need_labels=True), _read(path, options, need_labels=False)
    _require_same_classes(predictions, validation, path, on)
    if np.array_equal(_logits(predictions), _logits(validation)):
        raise ValueError(f"{path} and {on} hold the same predictions; {FLATTERS}")
    counts = predictions.class_counts if predictions.class_counts is not None else validation.class_counts
    if counts is None and "tail" in {goal.name, *dict(goal.keep)}:
        raise ValueError("which classes are tail follows from the training images per class; give them with --counts.")
    names = predictions.class_names if _has_names(predictions) else validation.class_names
    adjustment, table = choose_adjustment(
        _logits(validation),
        validation.labels,
        counts,
        goal,
        class_names=names,
        source=f"{on.name} of {validation.name}",
    )
    adjusted = adjustment.apply(_logits(predictions))
    _write(output, adjusted, predictions, names, counts, path)
    adjustment.save(output.with_suffix(".json"))
    test = None
    if predictions.labelled:
        test = tuple(describe(one, predictions.labels, counts, goal) for one in (_logits(predictions), adjusted))
    _show(goal, adjustment, table, test, predictions.name)
    _notes(goal, table, {path: predictions, on: validation}, output, counts is not None)


FLATTERS = "an adjustment chosen on the images that it is judged by flatters itself. Give other images with --on."


def _paths(options: Adjust) -> tuple[Path, Path, Path]:
    """PREDICTIONS, VALIDATION and the output, as files."""
    if options.on is None:
        raise ValueError("name a file of predictions for validation images with --on.")
    path, on = (_file(one) for one in (options.predictions, options.on))
    if path.exists() and on.exists() and path.samefile(on):
        raise ValueError(f"{path} is both what is adjusted and what is chosen on; {FLATTERS}")
    output = options.output or path.with_name(f"{path.stem}-adjusted.npz")
    read = [one for one in (path, on, options.counts, options.names) if one is not None]
    check_output(output, (".npz",), read=read)
    check_description(output.with_suffix(".json"), {"class_names", "offsets"}, read=read)
    return path, on, output


def _file(path: Path) -> Path:
    return path / "predictions.npz" if path.is_dir() else path


def _read(path: Path, options: Adjust, *, need_labels: bool) -> Predictions:
    found = read_predictions(
        path, names=options.names, counts=options.counts, label_column=options.label_column, scores=options.scores,
        need_labels=need_labels,
    )  # fmt: skip
    if found.logits is None:
        raise ValueError(f"{path} has predicted classes only; an adjustment needs logits, scores or probabilities.")
    return found


def _logits(predictions: Predictions) -> NDArray[np.float32]:
    assert predictions.logits is not None
    return predictions.logits


def _has_names(predictions: Predictions) -> bool:
    return predictions.class_names != tuple(map(str, range(predictions.num_classes)))


def _require_same_classes(predictions: Predictions, validation: Predictions, path: Path, on: Path) -> None:
    first, second = predictions.class_names, validation.class_names
    if len(first) != len(second):
        raise ValueError(f"{path} has {len(first):,} classes and {on} has {len(second):,}; they must be the same.")
    if first != second and _has_names(predictions) and _has_names(validation):
        at = next(at for at, pair in enumerate(zip(first, second, strict=True)) if len(set(pair)) > 1)
        raise ValueError(f"class {at} is {first[at]!r} in {path} and {second[at]!r} in {on}; they must be the same.")


def _write(
    output: Path, logits: NDArray[Any], predictions: Predictions, names: tuple[str, ...], counts: Any, path: Path
) -> None:
    arrays = {"logits": logits, "class_names": np.array(names)}
    arrays |= {"labels": predictions.labels} if predictions.labelled else {}
    arrays |= {"class_counts": counts} if counts is not None else {}
    if zipfile.is_zipfile(path):  # what else it says about its images, such as their files
        with opened_npz(path) as source:
            others = [name for name in source.names if name.lower() not in {*LABELS, *PREDICTED, *SCORES, *arrays}]
            arrays |= {name: source[name] for name in others}
    with whole_file(output) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _show(goal: Goal, adjustment: Adjustment, table: AdjustmentTable, test: Any, name: str) -> None:
    console = make_console()
    pairs = {"validation images, cross-fitted": (table.before, table.after)}
    pairs |= {f"{name}, adjusted": test} if test is not None else {}
    for title, (before, after) in pairs.items():
        shown = Table(title=title, title_justify="left", min_width=50)
        for column in (f"goal: {goal.name}", "before", "after", "change"):
            shown.add_column(column, justify="left" if column.startswith("goal") else "right", no_wrap=True)
        for figure, old in before.items():
            new, digits = after[figure], 3 if figure == "log loss" else 1
            change = None if old is None or new is None else new - old
            if old is not None:
                shown.add_row(figure, number(old, digits), number(new, digits), number(change, digits, sign=True))
        console.print(shown)
    console.print(_sentence(adjustment, table), soft_wrap=True)


def _sentence(adjustment: Adjustment, table: AdjustmentTable) -> str:
    warm = f"temperature {adjustment.temperature:.2f}"
    around = f" around tau {adjustment.tau:.2f}" if adjustment.tau is not None else ""
    if table.chosen == NOTHING:
        return f"Chosen: {warm}, and no shift of any class. {table.choice.note}"
    if table.chosen == TAU:
        return f"Chosen: tau {adjustment.tau:.2f} and {warm}. {table.choice.note}"
    low, high = min(adjustment.offsets), max(adjustment.offsets)
    return f"Chosen: an offset for each class, from {low:.2f} to {high:.2f}{around}, and {warm}. {table.choice.note}"


def _notes(goal: Goal, table: AdjustmentTable, read: dict[Path, Predictions], output: Path, counted: bool) -> None:
    lines = []
    before, after = table.before["overall"], table.after["overall"]
    if before is not None and after is not None and before - after >= 0.05 and "overall" not in dict(goal.keep):
        floor = f"--keep overall={before:.0f} would set a floor"
        lines.append(f"It costs {before - after:.1f} points of the overall accuracy; {floor}.")
    if not counted:
        lines.append("Training images per class are not known, so tau is left out; give them with --counts.")
    for path, predictions in read.items():
        lines += [f"{path}: {note}" for note in predictions.notes]
        if not predictions.labelled:
            lines.append(f"{path} has no labels, so figures are of the validation images only.")
    lines.append(f"Written to {output} and {output.with_suffix('.json')}, for --adjust.")
    console = make_console()
    for line in lines:
        console.print(line, soft_wrap=True)
