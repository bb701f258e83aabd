"""Predictions from files: the folder of a run, NumPy's formats, tables; and the class names and counts beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._utils.arrays import opened_npz, read_npy
from .._utils.digests import verify
from .._utils.errors import first_line
from .._utils.names import shown
from .prediction_tables import LABELS, PREDICTED, SCORES, ColumnHints, listed, pick, read_csv, read_parquet
from .predictions import Predictions, RawPredictions, as_text, checked

Names: TypeAlias = Sequence[str] | str | Path
Counts: TypeAlias = Sequence[int] | Mapping[str, int] | NDArray[Any] | str | Path


def read_predictions(
    path: str | Path,
    *,
    names: Names | None = None,
    counts: Counts | None = None,
    label_column: str | None = None,
    prediction_column: str | None = None,
    scores: str | Path | Sequence[str] | None = None,
    name: str | None = None,
    need_labels: bool = True,
) -> Predictions:
    """Predictions from a file.

    ======================  ==========================================================================================
    a run folder            its ``predictions.npz``
    ``.npz``                arrays ``labels`` and ``logits``, ``probabilities`` or ``predicted``; also ``class_names``,
                            ``class_counts`` and ``paths`` of the images
    ``.csv``, ``.parquet``  a column of labels, and a column of predicted classes or one column of scores per class
    ``.npy``                labels; ``scores`` names the file with the scores or predicted classes
    ======================  ==========================================================================================

    Labels and predicted classes may be names. Rows of scores that are 0 or more and sum to 1 are probabilities and
    become their logarithms, which the notes say.

    Args:
        path: file, or folder of a run.
        names: class names in label order, or a file of them: one per line, a JSON list, or a JSON mapping between
            numbers and names, either way round.
        counts: training images per class in label order or by name, or a file of them: one per line, a JSON list, a
            JSON mapping from names, or ``.npy``.
        label_column: column (or array) of the labels, if it has no usual name.
        prediction_column: the same for the predicted classes.
        scores: for ``.npy`` the second file; for tables the columns of the scores, or how their names begin.
        name: what tables call it; by default the name of the file, or of the folder of a run.
        need_labels: False takes scores without labels as well, see :attr:`Predictions.labelled`.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / "predictions.npz").exists():
            raise FileNotFoundError(f"{path} is a folder without predictions.npz; expected a finished run, or a file.")
        path = path / "predictions.npz"
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} must end in {', '.join(readers)}; got {path.suffix or 'no ending'!r}.")
    _require_file(path)
    verify(path)
    known = None if names is None else _read_names(names)
    raw = readers[path.suffix.lower()](path, ColumnHints(label_column, prediction_column, scores, known, need_labels))
    raw.names = known if known is not None else raw.names
    if counts is not None:
        raw.counts = _read_counts(counts)
    title = path.resolve().parent.name if path.name == "predictions.npz" else path.stem
    return checked(raw, name or title or str(path), f"{path}: ")


def _read_names(names: Names) -> tuple[str, ...]:
    if not isinstance(names, str | Path):
        return tuple(str(name) for name in names)
    content = _entries(Path(names))
    if isinstance(content, dict):  # {"0": "cat", "1": "dog"}, or {"cat": 0, "dog": 1} as torchvision's class_to_idx
        turned = {str(number): name for name, number in content.items() if isinstance(number, int)}
        numbers = [str(label) for label in range(len(content))]
        for by_number in (content, turned):
            if content and by_number.keys() == set(numbers):
                return tuple(str(by_number[number]) for number in numbers)
        raise ValueError(
            f"{names} must hold a JSON list of class names, or map 0, 1, 2, ... to them; got the keys "
            f"{listed(list(content))}."
        )
    if not isinstance(content, list):
        raise ValueError(f"{names} must hold a JSON list of class names; got {type(content).__name__}.")
    return tuple(str(name) for name in content)


def _read_counts(counts: Counts) -> Any:
    if not isinstance(counts, str | Path):
        return counts
    path = Path(counts)
    if path.suffix.lower() == ".npy":
        return _load_npy(path)
    content = _entries(path)
    if not isinstance(content, list | dict):
        raise ValueError(f"{path} must hold a list of counts, or map class names to them; got {shown(content)}.")
    return content


def _entries(path: Path) -> Any:
    """The lines of a text file, or what a JSON file holds."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected a file with one entry per class.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text; save it as UTF-8.") from None
    if not text.strip():
        raise ValueError(f"{path} is empty; expected one entry per class.")
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.rstrip().splitlines()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no valid JSON ({first_line(error)}).") from None


def _read_npz(path: Path, hints: ColumnHints) -> RawPredictions:
    with opened_npz(path) as archive:
        there = archive.names
        label = pick(hints.label, there, LABELS, "array", "--label-column", path)
        if label is None and hints.need_labels:
            raise ValueError(f"{path} has no array 'labels'; its arrays are {listed(there)}.")
        score = pick(hints.scores, there, SCORES, "array", "--scores", path)
        predicted = pick(hints.prediction, there, PREDICTED, "array", "--prediction-column", path)
        if score is None and predicted is None:
            raise ValueError(
                f"{path} has {'labels but ' if label else ''}no array 'logits', 'probabilities' or 'predicted'; "
                f"its arrays are {listed(there)}."
            )
        wanted = {name for name in (label, score, predicted, "class_names", "class_counts", "paths") if name in there}
        arrays: dict[str | None, NDArray[Any]] = {name: archive[name] for name in wanted if name}
    names, paths = arrays.get("class_names"), arrays.get("paths")
    known = arrays[label or score or predicted]
    return RawPredictions(
        known if label else np.zeros(len(known), dtype=np.int64),
        None if predicted is None else arrays[predicted],
        None if score is None else arrays[score],
        None if names is None else [as_text(entry) for entry in names.ravel().tolist()],
        arrays.get("class_counts"),
        declared=score is not None and score.lower().startswith("prob"),
        own=True,
        labelled=label is not None,
        paths=None if paths is None else [as_text(entry) for entry in paths.ravel().tolist()],
    )


def _read_npy(path: Path, hints: ColumnHints) -> RawPredictions:
    if not isinstance(hints.scores, str | Path):
        raise ValueError(f"{path} holds one array, taken for the labels; name the .npy file of the scores as well.")
    values = _load_npy(Path(hints.scores))
    if values.ndim == 1:
        return RawPredictions(_load_npy(path), predicted=values)
    return RawPredictions(_load_npy(path), scores=values, own=True)


def _load_npy(path: Path) -> NDArray[Any]:
    _require_file(path)
    return read_npy(path)


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected a file of predictions or the folder of a run.")
