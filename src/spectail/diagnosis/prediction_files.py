"""Predictions from files: the folder of a run, NumPy's formats, tables; and the class names and counts beside them."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .prediction_columns import LABELS, PREDICTED, SCORES, Ask, listed, pick
from .prediction_tables import first_line, read_csv, read_parquet
from .predictions import Predictions, Raw, checked, nearest, words

Names: TypeAlias = Sequence[str] | str | Path
Counts: TypeAlias = Sequence[int] | NDArray[Any] | str | Path


def read_predictions(
    path: str | Path,
    *,
    names: Names | None = None,
    counts: Counts | None = None,
    label_column: str | None = None,
    prediction_column: str | None = None,
    scores: str | Path | Sequence[str] | None = None,
    name: str | None = None,
) -> Predictions:
    """Predictions from a file.

    ======================  ==========================================================================================
    a run folder            its ``predictions.npz``
    ``.npz``                arrays ``labels`` and ``logits``, ``probabilities`` or ``predicted``; also ``class_names``
                            and ``class_counts``
    ``.csv``, ``.parquet``  a column of labels, and a column of predicted classes or one column of scores per class
    ``.npy``                labels; ``scores`` names the file with the scores or predicted classes
    ======================  ==========================================================================================

    Labels and predicted classes may be names. Rows of scores that are 0 or more and sum to 1 are probabilities and
    become their logarithms.

    Args:
        path: file, or folder of a run.
        names: class names in label order, or a file of them: one per line, a JSON list, or a JSON mapping between
            numbers and names, either way round.
        counts: training images per class in label order, or a file of them: one per line, a JSON list, a JSON
            mapping from names, or ``.npy``.
        label_column: column (or array) of the labels, if it has no usual name.
        prediction_column: the same for the predicted classes.
        scores: for ``.npy`` the second file; for tables the columns of the scores, or how their names begin.
        name: what tables call it; by default the name of the file, or of the folder of a run.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / "predictions.npz").exists():
            raise FileNotFoundError(f"{path} is a folder without predictions.npz; expected a finished run, or a file.")
        path = path / "predictions.npz"
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} must end in {', '.join(readers)}; got {path.suffix or 'no ending'!r}.")
    _require(path)
    known = None if names is None else read_names(names)
    raw = readers[path.suffix.lower()](path, Ask(label_column, prediction_column, scores, known))
    raw.names = known if known is not None else raw.names
    if counts is not None:
        raw.counts = read_counts(counts, raw.names)
    title = path.resolve().parent.name if path.name == "predictions.npz" else path.stem
    return checked(raw, name or title or str(path), f"{path}: ")


def read_names(names: Names) -> tuple[str, ...]:
    """Class names from a list, a text file with one per line, a JSON list, or a JSON mapping with numbers."""
    if not isinstance(names, str | Path):
        return tuple(str(name) for name in names)
    text = _text(Path(names))
    if Path(names).suffix.lower() != ".json":
        return tuple(line.strip() for line in text.rstrip().splitlines())
    content = _json(Path(names), text)
    if isinstance(content, dict):
        return _numbered(content, Path(names))
    if not isinstance(content, list):
        raise ValueError(f"{names} must hold a JSON list of class names; got {type(content).__name__}.")
    return tuple(str(name) for name in content)


def _numbered(content: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Names from ``{"0": "cat", "1": "dog"}``, or ``{"cat": 0, "dog": 1}`` as torchvision's ``class_to_idx``."""
    turned = {str(number): name for name, number in content.items() if isinstance(number, int)}
    places = [str(place) for place in range(len(content))]
    for found in (content, turned):
        if content and found.keys() == set(places):
            return tuple(str(found[place]) for place in places)
    raise ValueError(
        f"{path} must hold a JSON list of class names, or map 0, 1, 2, ... to them; got the keys "
        f"{listed(list(content))}."
    )


def read_counts(counts: Counts, names: Sequence[str] | None = None) -> Any:
    """Training images per class from a list, a text file with one per line, JSON, or ``.npy``."""
    if not isinstance(counts, str | Path):
        return counts
    path = Path(counts)
    if path.suffix.lower() == ".npy":
        return _load_npy(path)
    text = _text(path)
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.rstrip().splitlines()]
    content = _json(path, text)
    if not isinstance(content, dict):
        return content
    if names is None:
        raise ValueError(f"{path} maps names to counts, but the classes have no names; pass them too, or a list.")
    missing = [name for name in names if name not in content]
    if missing:
        raise ValueError(f"{path} has no count for class {missing[0]!r}{nearest(missing[0], content)}.")
    return [content[name] for name in names]


def _read_npz(path: Path, ask: Ask) -> Raw:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no .npz file, or a damaged one; write it again with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = list(archive.files)
            at = pick(ask.label, arrays, LABELS, "array", "--label-column", path)
            if at is None:
                raise ValueError(f"{path} has no array 'labels'; its arrays are {listed(arrays)}.")
            score = pick(ask.scores, arrays, SCORES, "array", "--scores", path)
            guess = pick(ask.prediction, arrays, PREDICTED, "array", "--prediction-column", path)
            if score is None and guess is None:
                raise ValueError(
                    f"{path} has labels but no array 'logits', 'probabilities' or 'predicted'; "
                    f"its arrays are {listed(arrays)}."
                )
            names = archive["class_names"] if "class_names" in arrays else None
            return Raw(
                archive[at],
                None if guess is None else archive[guess],
                None if score is None else archive[score],
                None if names is None else [words(entry) for entry in names.ravel().tolist()],
                archive["class_counts"] if "class_counts" in arrays else None,
                declared=score is not None and score.lower().startswith("prob"),
                own=True,
            )
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({first_line(error)}); write it again.") from None
    except ValueError as error:
        raise _without_pickle(path, error) from None


def _read_npy(path: Path, ask: Ask) -> Raw:
    if not isinstance(ask.scores, str | Path):
        raise ValueError(f"{path} holds one array, taken for the labels; name the .npy file of the scores as well.")
    values = _load_npy(Path(ask.scores))
    raw = Raw(_load_npy(path), own=True)
    if values.ndim == 1:
        raw.predicted = values
    else:
        raw.scores = values
    return raw


def _load_npy(path: Path) -> NDArray[Any]:
    _require(path)
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError(f"{path} is no .npy file, or a damaged one; write it again with numpy.save.")
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _without_pickle(path, error) from None
    return array


def _without_pickle(path: Path, error: Exception) -> ValueError:
    if "allow_pickle" in str(error):
        return ValueError(f"{path} holds Python objects, which could run code; save plain arrays (names as dtype=str).")
    return (
        error
        if isinstance(error, ValueError) and str(path) in str(error)
        else ValueError(f"{path} is damaged ({first_line(error)}); write it again.")
    )


def _require(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected a file of predictions or the folder of a run.")


def _text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected a file with one entry per class.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text; save it as UTF-8.") from None
    if not text.strip():
        raise ValueError(f"{path} is empty; expected one entry per class.")
    return text


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is no valid JSON ({first_line(error)}).") from None
