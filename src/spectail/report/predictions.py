"""Predictions of any classifier, from a file or from arrays: true labels, and scores or predicted classes.

Files come from everywhere, so this is the door where everything is checked; behind it labels are class indices and
scores are finite logits.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

LABELS = ("label", "labels", "target", "targets", "true", "y_true", "true_label", "ground_truth", "class", "y")
PREDICTED = ("predicted", "pred", "preds", "prediction", "predictions", "y_pred",
             "predicted_label", "pred_label", "predicted_class", "pred_class")  # fmt: skip
SCORES = ("logits", "logit", "scores", "score", "probabilities", "probability", "probs", "prob", "y_score", "p",
          "class")  # fmt: skip
OTHERS = ("", "id", "index", "idx", "row", "file", "filename", "file_name", "path", "image", "image_id", "url", "split",
          "fold", "confidence", "conf", "correct", "right", "loss", "entropy", "weight", "margin", "name", "seed",
          "epoch")  # fmt: skip
"""Columns that go with predictions and are neither labels nor scores; an index often has no name."""
MOST_CLASSES = 1_000_000  # a larger label is an id of something else
LARGEST = float(np.finfo(np.float32).max)
BLOCK = 1 << 22  # scores looked at together: a second copy of all of them may not fit into memory

Names: TypeAlias = Sequence[str] | str | Path
Counts: TypeAlias = Sequence[int] | NDArray[Any] | str | Path


@dataclass(frozen=True)
class Predictions:
    """What a classifier said about a test set. Make one with :func:`read_predictions` or :func:`make_predictions`."""

    labels: NDArray[np.int64]
    """(N,) true classes."""
    predicted: NDArray[np.int64]
    """(N,) predicted classes."""
    logits: NDArray[np.float32] | None
    """(N, K) scores; None where only predicted classes are known."""
    class_names: tuple[str, ...]
    """K names, "0", "1", ... if unknown."""
    class_counts: NDArray[np.int64] | None
    """(K,) training images per class; None if unknown."""
    name: str
    """What tables call it."""

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.labels)

    def without_logits(self) -> Predictions:
        """The same without the scores, which take nearly all of the memory."""
        return replace(self, logits=None)


@dataclass(frozen=True)
class _Ask:
    """What the caller knows about a file."""

    label: str | None
    prediction: str | None
    scores: str | Path | Sequence[str] | None
    names: tuple[str, ...] | None


@dataclass
class _Raw:
    """What was found, before it is checked."""

    labels: Any
    predicted: Any = None
    scores: Any = None
    names: Sequence[str] | None = None
    counts: Any = None
    declared: bool = False  # the scores were called probabilities
    own: bool = False  # the scores may be changed in place


def make_predictions(
    labels: Any,
    scores_or_predicted: Any,
    *,
    class_names: Sequence[str] | None = None,
    class_counts: Any = None,
    name: str = "predictions",
) -> Predictions:
    """Predictions from lists, arrays or tensors.

    Args:
        labels: (N,) class indices, or class names.
        scores_or_predicted: (N, K) logits or probabilities, or (N,) predicted classes.
        class_names: K names; needed to read names in a given order.
        class_counts: training images per class; without them there are no head, medium and tail.
        name: what tables call it.

    Example:
        >>> found = make_predictions(["cat", "dog", "dog"], ["cat", "dog", "cat"])
        >>> found.class_names, found.predicted.tolist()
        (('cat', 'dog'), [0, 1, 0])
    """
    values = _array(scores_or_predicted, "scores")
    if values.ndim not in (1, 2):
        raise ValueError(f"scores must have shape (N, K), or predicted classes (N,); got shape {values.shape}.")
    counts = None if class_counts is None else getattr(class_counts, "counts", class_counts)
    names = class_names if class_names is not None else getattr(class_counts, "names", None)
    raw = _Raw(_array(labels, "labels"), names=names, counts=counts)
    if values.ndim == 2:
        raw.scores = values
    else:
        raw.predicted = values
    return _checked(raw, name)


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
        names: class names in label order, or a file of them: one per line, or a JSON list.
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
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} must end in {', '.join(readers)}; got {path.suffix or 'no ending'!r}.")
    _require(path)
    known = None if names is None else read_names(names)
    raw = readers[path.suffix.lower()](path, _Ask(label_column, prediction_column, scores, known))
    raw.names = known if known is not None else raw.names
    if counts is not None:
        raw.counts = read_counts(counts, raw.names)
    title = path.resolve().parent.name if path.name == "predictions.npz" else path.stem
    return _checked(raw, name or title or str(path), f"{path}: ")


def read_names(names: Names) -> tuple[str, ...]:
    """Class names from a list, a text file with one per line, or a JSON list."""
    if not isinstance(names, str | Path):
        return tuple(str(name) for name in names)
    text = _text(Path(names))
    if Path(names).suffix.lower() != ".json":
        return tuple(line.strip() for line in text.rstrip().splitlines())
    content = _json(Path(names), text)
    if not isinstance(content, list):
        raise ValueError(f"{names} must hold a JSON list of class names; got {type(content).__name__}.")
    return tuple(str(name) for name in content)


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
        raise ValueError(f"{path} has no count for class {missing[0]!r}{_nearest(missing[0], content)}.")
    return [content[name] for name in names]


# ---- files


def _read_npz(path: Path, ask: _Ask) -> _Raw:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no .npz file, or a damaged one; write it again with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = list(archive.files)
            at = _pick(ask.label, arrays, LABELS, "array", "--label-column", path)
            if at is None:
                raise ValueError(f"{path} has no array 'labels'; its arrays are {_listed(arrays)}.")
            score = _pick(ask.scores, arrays, SCORES, "array", "--scores", path)
            guess = _pick(ask.prediction, arrays, PREDICTED, "array", "--prediction-column", path)
            if score is None and guess is None:
                raise ValueError(
                    f"{path} has labels but no array 'logits', 'probabilities' or 'predicted'; "
                    f"its arrays are {_listed(arrays)}."
                )
            names = archive["class_names"] if "class_names" in arrays else None
            return _Raw(
                archive[at],
                None if guess is None else archive[guess],
                None if score is None else archive[score],
                None if names is None else [_words(entry) for entry in names.ravel().tolist()],
                archive["class_counts"] if "class_counts" in arrays else None,
                declared=score is not None and score.lower().startswith("prob"),
                own=True,
            )
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({_line(error)}); write it again.") from None
    except ValueError as error:
        raise _without_pickle(path, error) from None


def _read_npy(path: Path, ask: _Ask) -> _Raw:
    if not isinstance(ask.scores, str | Path):
        raise ValueError(f"{path} holds one array, taken for the labels; name the .npy file of the scores as well.")
    values = _load_npy(Path(ask.scores))
    raw = _Raw(_load_npy(path), own=True)
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


def _read_csv(path: Path, ask: _Ask) -> _Raw:
    import pyarrow as pa  # noqa: PLC0415 - the other formats do without it
    from pyarrow import csv as arrow_csv  # noqa: PLC0415

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            mark = max(",;\t", key=file.readline().count)
            file.seek(0)
            header = next(csv.reader(file, delimiter=mark), [])
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text; save it as UTF-8.") from None
    if not header:
        raise ValueError(f"{path} is empty; expected a line of column names and one line per test image.")

    def read(names: list[str], kind: Any) -> Any:
        parse = arrow_csv.ParseOptions(delimiter=mark)
        convert = arrow_csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, kind))
        try:
            return arrow_csv.read_csv(path, parse_options=parse, convert_options=convert)
        except (pa.ArrowException, OSError) as error:
            words = re.sub(r"In CSV column #(\d+): ", lambda found: f"column {header[int(found[1])]!r}, ", _line(error))
            raise ValueError(f"{path} cannot be read: {words}.") from None

    return _read_table(
        path, header, ask, lambda names: read(names, pa.string()), lambda names: read(names, pa.float32())
    )


def _read_parquet(path: Path, ask: _Ask) -> _Raw:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    def in_words(read: Callable[..., Any], **options: Any) -> Any:
        try:
            return read(path, **options)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as parquet ({_line(error)}); write it again.") from None

    def read(names: list[str]) -> Any:
        return in_words(pq.read_table, columns=names)

    return _read_table(path, in_words(pq.read_schema).names, ask, read, read)


def _read_table(
    path: Path, header: list[str], ask: _Ask, read_classes: Callable[[list[str]], Any],
    read_scores: Callable[[list[str]], Any],
) -> _Raw:  # fmt: skip
    twice = [name for name, number in Counter(header).items() if number > 1]
    if twice:
        raise ValueError(f"{path} has two columns {twice[0]!r}; rename one.")
    at = _pick(ask.label, header, LABELS, "column", "--label-column", path)
    if at is None:
        raise ValueError(
            f"{path} has no column of labels such as 'label' or 'target'; its columns are {_listed(header)}. "
            "Name it with --label-column."
        )
    guess = _pick(ask.prediction, header, PREDICTED, "column", "--prediction-column", path)
    table = read_classes([at] if guess is None else [at, guess])
    raw = _Raw(_column(table, at, path), None if guess is None else _column(table, guess, path), own=True)
    rest = [name for name in header if name not in (at, guess)]
    columns, names = _score_columns(rest, ask, raw, path)
    if columns:
        raw.scores = _stack(read_scores(columns), columns, path)
        if raw.scores.shape[1] == len(names):
            raw.names = names
            if names != list(map(str, range(len(names)))):  # columns named 1, 2, ...: labels are these names
                raw.labels, raw.predicted = _as_text(raw.labels), _as_text(raw.predicted)
        raw.declared = bool(re.match(r"prob(s|abilit(y|ies))?([^a-z]|$)", columns[0], re.IGNORECASE))
    elif guess is None:
        raise ValueError(
            f"{path} has labels but neither a column such as 'predicted' nor one column of scores per class; "
            f"its columns are {_listed(header)}. Name it with --prediction-column."
        )
    return raw


def _score_columns(rest: list[str], ask: _Ask, raw: _Raw, path: Path) -> tuple[list[str], list[str]]:
    """The columns that hold scores, in class order, and the class names that they give."""
    if isinstance(ask.scores, str | Path):
        start = str(ask.scores)
        begun = {name.removeprefix(start): name for name in rest if name.startswith(start)}
        if not begun:
            raise ValueError(f"{path} has no column that begins with {start!r}; others are {_listed(rest)}.")
        return _in_order(begun)
    if ask.scores is not None:
        given = [_pick(name, rest, (), "column", "scores", path) or "" for name in ask.scores]
        return given, given
    if ask.names is not None and set(ask.names) <= set(rest):
        return list(ask.names), list(ask.names)
    for prefix in SCORES:  # logit_0, logit_1, ... or prob[cat], prob[dog], ... or one column of lists
        shape = re.compile(rf"{prefix}(?:[_\-. \[(:]+(.+?)[\])]?|(\d*))", re.IGNORECASE)
        matches = {name: shape.fullmatch(name) for name in rest}
        found = {match[1] or match[2]: name for name, match in matches.items() if match}
        if len(found) > 1 or (found and raw.predicted is None):
            return _in_order(found)
    numbered = {name: name for name in rest if name.isdecimal()}
    if len(numbered) > 1:
        return _in_order(numbered)
    left = [name for name in rest if name.lower() not in OTHERS]
    if len(left) > 1 and (raw.predicted is None or set(map(str, np.unique(raw.labels))) <= set(left)):
        return left, left
    return [], []


def _in_order(columns: dict[str, str]) -> tuple[list[str], list[str]]:
    """Numbered columns by number (text would put 10 before 2), others as they come."""
    names = list(columns)
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    return [columns[name] for name in names], names


def _column(table: Any, name: str, path: Path) -> NDArray[Any]:
    column = table.column(name)
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise ValueError(f"{path}: row {row} of column {name!r} is empty; fill it or drop the row.")
    if hasattr(column.type, "index_type"):  # a dictionary, as categories are stored
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())


def _stack(table: Any, columns: list[str], path: Path) -> NDArray[Any]:
    if len(columns) == 1 and hasattr(table.column(columns[0]).type, "value_field"):  # one list of scores per row
        lists = table.column(columns[0]).combine_chunks()
        widths = {len(row) if row.is_valid else 0 for row in lists}
        if len(widths) > 1:
            raise ValueError(
                f"{path}: lists in column {columns[0]!r} differ in length, {min(widths)} to {max(widths)}."
            )
        flat = np.asarray(lists.flatten().to_numpy(zero_copy_only=False))
        return flat.reshape(-1, max(widths, default=0) or 1)
    if len(columns) == 1:
        raise ValueError(f"{path}: {columns[0]!r} is the only column of scores; expected one per class, or lists.")
    scores = np.empty((table.num_rows, len(columns)), dtype=np.float32)
    for place, name in enumerate(columns):
        values = _column(table, name, path)
        if values.dtype.kind not in "fiu":
            found = repr(values[0]) if len(values) else str(values.dtype)
            raise ValueError(f"{path}: column {name!r} was taken for the scores of a class, but holds {found}.")
        scores[:, place] = values
    return scores


# ---- checks


def _checked(raw: _Raw, name: str, where: str = "") -> Predictions:
    try:
        return _assembled(raw, name)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def _assembled(raw: _Raw, name: str) -> Predictions:
    labels = _flat(raw.labels, "labels")
    predicted = None if raw.predicted is None else _flat(raw.predicted, "predicted classes")
    scores = None if raw.scores is None else _array(raw.scores, "scores")
    if scores is not None and scores.ndim != 2:
        raise ValueError(f"scores must have shape (N, K), one row per test image; got shape {scores.shape}.")
    for what, values in (("predicted classes", predicted), ("rows of scores", scores)):
        if values is not None and len(values) != len(labels):
            raise ValueError(f"there must be as many {what} as labels; got {len(values):,} and {len(labels):,}.")
    if not len(labels):
        raise ValueError("there is no prediction in it; expected at least one test image.")
    names = None if raw.names is None else tuple(str(entry) for entry in raw.names)
    counts = None if raw.counts is None else _counts(raw.counts)
    both = [values for values in (labels, predicted) if values is not None]
    if names is None and scores is None and any(_indices(values) is None for values in both):
        names = tuple(sorted({text.strip() for values in both for text in np.unique(values.astype(str)).tolist()}))
    size = _size(both, scores, names, counts)
    names = names if names is not None else tuple(map(str, range(size)))
    for what, amount in (("class names", len(names)), ("class counts", size if counts is None else len(counts))):
        if amount != size:
            raise ValueError(f"there must be one of the {what} for each of the {size:,} classes; got {amount:,}.")
    ids = [_class_ids(values, names, what) for values, what in zip(both, ("labels", "predicted classes"), strict=False)]
    logits = None
    if scores is not None:
        logits, best = _logits(scores, names, declared=raw.declared, own=raw.own)
        if predicted is not None:
            _require_agreement(logits, best, ids[1], names)
        else:
            ids.append(best)
    if len(set(names)) < size:  # tables name classes; two of one name could not be told apart
        often = Counter(names)
        names = tuple(f"{entry} ({label})" if often[entry] > 1 else entry for label, entry in enumerate(names))
    return Predictions(ids[0], ids[1], logits, names, counts, name)


def _size(both: list[NDArray[Any]], scores: Any, names: Any, counts: Any) -> int:
    """How many classes there are: as the scores say, else the names, else the counts, else the labels."""
    known = [len(values) for values in (None if scores is None else scores[0], names, counts) if values is not None]
    if known:
        size = known[0]
    else:
        largest = max(int(found.max()) for values in both if (found := _indices(values)) is not None)
        if largest >= MOST_CLASSES:
            raise ValueError(f"labels must be class indices 0, 1, 2, ...; got {largest:,}. Pass names if it is a name.")
        size = largest + 1
    if size < 2:
        raise ValueError("there must be two classes or more; got one. Pass the class names if there are others.")
    return size


def _flat(values: Any, what: str) -> NDArray[Any]:
    array = _array(values, what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{what} must have shape (N,), one class per test image; got shape {array.shape}.")
    if array.dtype.kind in "SO":
        array = np.array([_words(entry) for entry in array.tolist()], dtype=str)
    if array.dtype.kind == "f":
        odd = np.flatnonzero(~(np.isfinite(array) & (array == np.round(array))))
        if len(odd):
            raise ValueError(f"{what} must be whole numbers or names; row {odd[0]} is {array[odd[0]]}.")
    return array.astype(np.int64) if array.dtype.kind in "fbui" else array


def _as_text(values: NDArray[Any] | None) -> NDArray[Any] | None:
    return values if values is None or values.dtype.kind not in "iu" else values.astype(str)


def _indices(values: NDArray[Any]) -> NDArray[np.int64] | None:
    """Whole numbers, also from text (a table may write 3 as 3.0); None if there is anything else."""
    if values.dtype.kind == "i":
        return values
    found, inverse = np.unique(values, return_inverse=True)
    if not all(re.fullmatch(r"\s*[+-]?\d{1,18}(\.0*)?\s*", text) for text in found.tolist()):
        return None
    return np.asarray(np.array([int(text.split(".")[0]) for text in found.tolist()], dtype=np.int64)[inverse])


def _class_ids(values: NDArray[Any], names: tuple[str, ...], what: str) -> NDArray[np.int64]:
    """Indices from indices or names. In text, a number that is the name of a class is read as that name."""
    place = {name: label for label, name in enumerate(names)}
    texts = None if values.dtype.kind == "i" else [text.strip() for text in np.unique(values).tolist()]
    ids = _indices(values)
    if ids is not None and (texts is None or not all(text in place for text in texts)):
        wrong = np.flatnonzero((ids < 0) | (ids >= len(names)))
        if len(wrong):
            raise ValueError(
                f"{what} must lie in [0, {len(names)}); row {wrong[0]} is {ids[wrong[0]]}. "
                "Do the model and the labels have the same classes?"
            )
        return ids
    unknown = next((text for text in texts or [] if text not in place), None)
    if unknown is not None:
        raise ValueError(f"{what}: there is no class {unknown!r}{_nearest(unknown, place)}.")
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise ValueError(f"{what} are names, but two classes are called {twice[0]!r}; use indices.")
    _, inverse = np.unique(values, return_inverse=True)
    return np.asarray(np.array([place[text] for text in texts or []], dtype=np.int64)[inverse])


def _counts(counts: Any) -> NDArray[np.int64]:
    try:
        values = np.asarray(_array(getattr(counts, "counts", counts), "class counts"), dtype=np.float64)
    except (TypeError, ValueError):
        texts = [str(entry) for entry in np.asarray(counts).ravel().tolist()]
        odd = next((text for text in texts if not re.fullmatch(r"\s*\d+\s*", text)), texts[0] if texts else "")
        raise ValueError(f"class counts must be whole numbers of training images; got {odd!r}.") from None
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or (values != np.round(values)).any():
        raise ValueError("class counts must be a flat list of whole numbers, 0 or more: training images per class.")
    if not values.sum():
        raise ValueError("class counts are all zero; expected training images per class.")
    return values.astype(np.int64)


def _logits(
    scores: NDArray[Any], names: tuple[str, ...], *, declared: bool, own: bool
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Finite float32 logits and the best class of each row, in blocks. Probabilities become their logarithms."""
    if scores.dtype.kind not in "fiu":
        raise ValueError(f"scores must be numbers; got {scores.dtype}.")
    keep = scores.dtype == np.float32
    logits = scores if keep else np.empty(scores.shape, dtype=np.float32)
    best = np.empty(len(scores), dtype=np.int64)
    tolerance = 2e-2 if scores.dtype == np.float16 else 2e-3  # tables are often rounded to three digits
    shares = True
    for part in _blocks(scores):
        block = scores[part]
        low, high = float(block.min()), float(block.max())
        if not (math.isfinite(low) and max(-low, high) <= LARGEST):
            row, label = np.argwhere(~(np.abs(block) <= LARGEST))[0]
            raise ValueError(
                f"scores must be finite numbers; row {part.start + row}, class {label} ({names[label]!r}) "
                f"is {block[row, label]}. Give a class that is ruled out a very low score."
            )
        best[part] = block.argmax(1)
        if not keep:
            logits[part] = block
        if shares or declared:
            off = np.abs(block.sum(1, dtype=np.float64) - 1) > tolerance if low >= 0 else (block < 0).any(1)
            shares = not off.any()
            if declared and not shares:
                raise ValueError(
                    f"probabilities must be 0 or more and sum to 1 in each row; row {part.start + int(off.argmax())} "
                    "does not. Call them logits or scores if that is what they are."
                )
    if shares:
        target = logits if own or not keep else np.empty_like(logits)
        for part in _blocks(logits):
            np.log(np.maximum(logits[part], np.finfo(np.float32).tiny), out=target[part])
        logits = target
    return logits, best


def _require_agreement(
    logits: NDArray[np.float32], best: NDArray[np.int64], predicted: NDArray[np.int64], names: tuple[str, ...]
) -> None:
    differ = np.flatnonzero(best != predicted)
    differ = differ[logits[differ, predicted[differ]] < logits[differ, best[differ]]]  # ties may go either way
    if len(differ):
        row = differ[0]
        raise ValueError(
            f"row {row} is predicted as {names[predicted[row]]!r}, but its largest score is that of "
            f"{names[best[row]]!r} ({len(differ):,} rows differ). Leave out the scores or the predicted classes."
        )


def _blocks(scores: NDArray[Any]) -> Iterator[slice]:
    rows = max(BLOCK // max(scores.shape[1], 1), 1)
    return (slice(start, min(start + rows, len(scores))) for start in range(0, len(scores), rows))


def _array(values: Any, what: str) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
        values = values.float().numpy() if str(values.dtype) == "torch.bfloat16" else values.numpy()
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{what} must have rows of one length.") from None


# ---- words


def _pick(given: Any, there: Sequence[str], known: Sequence[str], kind: str, flag: str, path: Path) -> str | None:
    """The column given, or the first with a usual name."""
    if given is None:
        lower = {name.lower(): name for name in reversed(there)}
        return next((lower[name] for name in known if name in lower), None)
    if str(given) not in there:
        hint = _nearest(str(given), there)
        raise ValueError(f"{path} has no {kind} {str(given)!r} ({flag}){hint}; there are {_listed(there)}.")
    return str(given)


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, [str(entry) for entry in known], n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _listed(names: Sequence[str]) -> str:
    return (", ".join(map(repr, names[:12])) or "none") + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def _words(entry: Any) -> str:
    return entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry)


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _without_pickle(path: Path, error: Exception) -> ValueError:
    if "allow_pickle" in str(error):
        return ValueError(f"{path} holds Python objects, which could run code; save plain arrays (names as dtype=str).")
    return (
        error
        if isinstance(error, ValueError) and str(path) in str(error)
        else ValueError(f"{path} is damaged ({_line(error)}); write it again.")
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
        raise ValueError(f"{path} is no valid JSON ({_line(error)}).") from None
