"""Predictions from tables, CSV or parquet.

The columns of scores in a table are found by the first of these rules that gives any:

1. those that the caller lists, or that begin as the caller says;
2. those that are called as the classes, if the caller gives their names;
3. those that begin with a word for scores, as ``logit_0`` or ``prob[cat]``, or one such column that holds lists;
4. those that are called by a number;
5. the other columns of numbers, but for those whose name says what else they hold (``OTHERS``). They must be as many
   as the classes: each named by a label, as many as numbered labels, or rows of probabilities.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._utils.arrays import check_parquet
from .._utils.errors import first_line, is_lack_of_memory
from .._utils.names import nearest
from .class_labels import whole_numbers
from .predictions import RawPredictions

LABELS = ("label", "labels", "target", "targets", "true", "y_true", "true_label", "true_class", "ground_truth",
          "groundtruth", "gt", "actual", "class", "y")  # fmt: skip
PREDICTED = ("predicted", "pred", "preds", "prediction", "predictions", "y_pred",
             "predicted_label", "pred_label", "predicted_class", "pred_class")  # fmt: skip
SCORES = ("logits", "logit", "scores", "score", "probabilities", "probability", "probs", "prob", "y_score", "p",
          "class")  # fmt: skip
OTHERS = re.compile(
    r"(.*_)?(id|index|idx|row|key|file|filename|name|path|image|img|sample|fold|group|split|batch|step|epoch|seed|date|"
    r"time|datetime|timestamp|latency|duration|runtime|width|height|size|weight|loss|entropy|margin|confidence|conf|"
    r"correct|right)|unnamed:_\d+|_*index_level_\d+_*|level_\d+|"
)
"""The last word of columns that go with predictions and hold no scores, and what pandas calls an index; it may have no
name at all."""
ADVICE = "List the classes with --names, or say with --scores how the names of the score columns begin."


@dataclass(frozen=True)
class ColumnHints:
    """What the caller knows about a file."""

    label: str | None
    prediction: str | None
    scores: str | Path | Sequence[str] | None
    names: tuple[str, ...] | None
    need_labels: bool = True


@dataclass(frozen=True)
class ScoreColumns:
    """Columns that hold scores, in class order, and the class names that they give."""

    columns: list[str]
    names: list[str]
    leftover: bool = False
    """Nothing in their names says that they hold scores."""


def read_csv(path: Path, hints: ColumnHints) -> RawPredictions:
    """Commas, semicolons or tabs may stand between the columns."""
    import pyarrow as pa  # noqa: PLC0415 - the other formats do without it
    from pyarrow import csv as arrow_csv  # noqa: PLC0415

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            mark = max(",;\t", key=file.readline().count)
            file.seek(0)
            lines = csv.reader(file, delimiter=mark)
            header = next(lines, [])
            first = dict(zip(header, next(lines, []), strict=False))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text; save it as UTF-8.") from None
    except csv.Error as error:
        raise ValueError(f"{path} is no table ({error}); expected one line per test image.") from None
    if not header:
        raise ValueError(f"{path} is empty; expected a line of column names and one line per test image.")

    def read(names: list[str], kind: Any, hint: str) -> Any:
        parse = arrow_csv.ParseOptions(delimiter=mark)
        convert = arrow_csv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, kind), strings_can_be_null=True, null_values=[""]
        )  # "NA" may be a class; nothing at all is none
        try:
            return arrow_csv.read_csv(path, parse_options=parse, convert_options=convert)
        except (pa.ArrowException, OSError) as error:
            if is_lack_of_memory(error):
                raise
            column = r"In CSV column #(\d+): "
            reason = re.sub(column, lambda match: f"column {header[int(match[1])]!r}, ", first_line(error))
            raise ValueError(f"{path} cannot be read: {reason}.{hint}") from None

    return _read_table(
        path,
        header,
        hints,
        lambda name: _is_number(first.get(name, "")),
        lambda names: read(names, pa.string(), ""),
        lambda names: read(names, pa.float32(), f" It was taken for the scores of a class. {ADVICE}"),
    )


def read_parquet(path: Path, hints: ColumnHints) -> RawPredictions:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    def tried(read: Callable[..., Any], **options: Any) -> Any:
        try:
            return read(path, **options)
        except (pa.ArrowException, OSError) as error:
            if is_lack_of_memory(error):
                raise
            raise ValueError(f"{path} cannot be read as parquet ({first_line(error)}); write it again.") from None

    def read(names: list[str]) -> Any:
        check_parquet(path, metadata, names)
        return tried(pq.read_table, columns=names)

    def is_numeric(name: str) -> bool:
        kind = schema.field(name).type
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    def list_width(name: str) -> int:
        if not hasattr(schema.field(name).type, "value_field"):
            return 0
        return min((len(row) for row in read([name]).column(0) if row.is_valid), default=0)

    metadata, schema = tried(pq.read_metadata), tried(pq.read_schema)
    return _read_table(path, schema.names, hints, is_numeric, read, read, list_width)


def _read_table(
    path: Path,
    header: list[str],
    hints: ColumnHints,
    is_numeric: Callable[[str], bool],
    read_classes: Callable[[list[str]], Any],
    read_scores: Callable[[list[str]], Any],
    list_width: Callable[[str], int] = lambda name: 0,
) -> RawPredictions:
    twice = next((name for name, number in Counter(header).items() if number > 1), None)
    if twice is not None:
        raise ValueError(
            f"{path} has two columns {twice!r}; rename one. If its first line is data already, put a line of "
            "column names above it, such as label,prediction."
        )
    if len(header) > 1 and all(map(_is_number, header)):
        raise ValueError(
            f"{path}: the first line looks like data ({listed(header)}); put a line of column names above it, such as "
            "label,prediction."
        )
    label = pick(hints.label, header, LABELS, "column", "--label-column", path)
    if label is None and hints.need_labels:
        raise ValueError(
            f"{path} has no column of labels such as 'label' or 'target'; its columns are {listed(header)}. "
            "Name it with --label-column; if the first line is data already, put a line of column names above it, such "
            "as label,prediction."
        )
    predicted = pick(hints.prediction, header, PREDICTED, "column", "--prediction-column", path)
    classes = [name for name in (label, predicted) if name is not None]
    table = read_classes(classes) if classes else None
    raw = RawPredictions(
        np.zeros(0, dtype=np.int64) if label is None else _column(table, label, path),
        None if predicted is None else _column(table, predicted, path),
        own=True,
        labelled=label is not None,
    )
    rest = [name for name in header if name not in (label, predicted)]
    choice = _score_columns(rest, hints, raw, is_numeric, list_width, path)
    columns, names = choice.columns, choice.names
    unscored = _class_without_score(choice, hints, raw) if columns and predicted and hints.scores is None else None
    if unscored is not None:  # such as the scores of the three best classes
        raw.notes = (
            f"Only the predicted classes are used: {listed(columns)} are not one column of scores per class, "
            f"as {unscored!r} has none.",
        )
    elif columns:
        raw.scores = _stack(read_scores(columns), columns, path)
        if choice.leftover:
            _require_scores(raw.scores, choice, raw, path)
        if raw.scores.shape[1] == len(names):
            raw.names = names
            if names != _numbered(names):  # columns named 1, 2, ...: labels are these names
                raw.labels, raw.predicted = _digits(raw.labels), _digits(raw.predicted)
        raw.declared = bool(re.match(r"prob(s|abilit(y|ies))?([^a-z]|$)", columns[0], re.IGNORECASE))
    elif predicted is None:
        raise ValueError(
            f"{path} has {'labels but ' if label else ''}neither a column such as 'predicted' nor one column of scores "
            f"per class; its columns are {listed(header)}. Name it with --prediction-column."
        )
    if label is None:
        raw.labels = np.zeros(len(raw.predicted if raw.scores is None else raw.scores), dtype=np.int64)
    return raw


def _score_columns(
    rest: list[str], hints: ColumnHints, raw: RawPredictions, is_numeric: Callable[[str], bool],
    list_width: Callable[[str], int], path: Path,
) -> ScoreColumns:  # fmt: skip
    """The columns of scores by the rules on top of this file; none if there are only predicted classes."""
    if isinstance(hints.scores, str | Path):
        start = str(hints.scores)
        begun = {name.removeprefix(start): name for name in rest if name.startswith(start)}
        if not begun:
            raise ValueError(f"{path} has no column that begins with {start!r}; others are {listed(rest)}.")
        return _in_order(begun)
    if hints.scores is not None:
        given = [pick(name, rest, (), "column", "scores", path) or "" for name in hints.scores]
        return ScoreColumns(given, given)
    if hints.names is not None and set(hints.names) <= set(rest):
        return ScoreColumns(list(hints.names), list(hints.names))
    for prefix in SCORES:
        shape = re.compile(rf"{prefix}(?:[_\-. \[(:]+(.+?)[\])]?|(\d*))", re.IGNORECASE)
        begun = {match[1] or match[2]: name for name in rest if (match := shape.fullmatch(name))}
        if len(begun) > 1 or (begun and raw.predicted is None):
            return _in_order(begun)
        for name in begun.values():  # beside predicted classes one number is no score of a class, but a list is
            if width := list_width(name):
                return ScoreColumns([name], _numbered(range(width)))
    numbered = {name: name for name in rest if name.isdecimal()}
    if len(numbered) > 1:
        return _in_order(numbered)
    labels = set(_texts(raw.labels))
    left = [name for name in rest if name in labels or (is_numeric(name) and not OTHERS.fullmatch(_usual(name)))]
    if len(left) > 1 and (raw.predicted is None or labels <= set(left)):
        return ScoreColumns(left, left, leftover=True)
    return ScoreColumns([], [])


def _class_without_score(choice: ScoreColumns, hints: ColumnHints, raw: RawPredictions) -> str | None:
    """A label or predicted class that has no column of scores, as in a file of the k best; None if all have one."""
    if hints.names is not None:
        return hints.names[-1] if len(hints.names) > len(choice.names) else None
    by_name = choice.names != _numbered(choice.names) and any(name.isdecimal() for name in choice.names)
    for values in (raw.labels, raw.predicted):
        unknown = [text for text in _texts(values) if text not in choice.names]
        numbers = None if by_name else _numbers(values)
        if unknown and (numbers is None or numbers.min() < 0 or numbers.max() >= len(choice.names)):
            return unknown[-1]
    return None


def _require_scores(scores: NDArray[Any], choice: ScoreColumns, raw: RawPredictions, path: Path) -> None:
    """Refuse leftover columns one of which may be anything: a class of its own would change every figure."""
    labels = set(_texts(raw.labels))
    stray = next((name for name in choice.columns if name not in labels), None)
    numbers = _numbers(raw.labels)
    if stray is None or (numbers is not None and numbers.max() + 1 == len(choice.columns)):
        return
    with np.errstate(invalid="ignore"):
        sums = scores.sum(1, dtype=np.float64)
        odd = bool((scores < 0).any()) or bool((np.abs(sums - 1) > 2e-2).any())
    if odd and np.isfinite(sums).all():
        raise ValueError(
            f"{path}: column {stray!r} would count as a class, but no label is {stray!r} and the rows are no "
            f"probabilities. {ADVICE}"
        )


def _column(table: Any, name: str, path: Path) -> NDArray[Any]:
    column = table.column(name)
    _require_filled(column, name, path)
    if hasattr(column.type, "index_type"):  # a dictionary, as categories are stored
        column = column.cast(column.type.value_type)
    kind = str(column.type)
    if column.type.num_fields:  # lists, structs and maps
        raise ValueError(f"{path}: column {name!r} holds {kind[:40]}; expected one class per row. {ADVICE}")
    if kind.startswith(("duration", "timestamp", "date", "time", "month")):
        return np.array([str(value) for value in column.to_pylist()])
    return np.asarray(_without_decimals(column).to_numpy())


def _without_decimals(column: Any) -> Any:
    """Decimal numbers as ordinary ones: NumPy has no such type."""
    return column.cast("float64") if hasattr(column.type, "scale") else column


def _require_filled(column: Any, name: str, path: Path) -> None:
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        # a reader looks for it in an editor: lines are counted from 1, and the first has the names
        where = f"row {row}" if path.suffix.lower() == ".parquet" else f"line {row + 2}"
        raise ValueError(f"{path}: {where} of column {name!r} is empty; fill it or drop the line.")


def _stack(table: Any, columns: list[str], path: Path) -> NDArray[Any]:
    """(N, K) scores from one column per class, or from one column of lists."""
    first = table.column(columns[0])
    if len(columns) == 1 and not hasattr(first.type, "value_field"):
        raise ValueError(f"{path}: {columns[0]!r} is the only column of scores; expected one per class, or lists.")
    if len(columns) == 1:
        _require_filled(first, columns[0], path)
        lists = first.combine_chunks()
        widths = {len(row) for row in lists}
        if len(widths) > 1:
            raise ValueError(
                f"{path}: lists in column {columns[0]!r} differ in length, {min(widths)} to {max(widths)}."
            )
        flat = np.asarray(_without_decimals(lists.flatten()).to_numpy(zero_copy_only=False))
        return flat.reshape(-1, max(widths, default=0) or 1)
    scores = np.empty((table.num_rows, len(columns)), dtype=np.float32)
    for label, name in enumerate(columns):
        values = _column(table, name, path)
        if values.dtype.kind not in "fiu":
            held = repr(values[0]) if len(values) else str(values.dtype)
            raise ValueError(f"{path}: column {name!r} was taken for the scores of a class, but holds {held}. {ADVICE}")
        scores[:, label] = values
    return scores


def pick(given: Any, there: Sequence[str], usual: Sequence[str], kind: str, flag: str, path: Path) -> str | None:
    """The column given, or the first with a usual name."""
    if given is None:
        by_usual = {_usual(name): name for name in reversed(there)}
        return next((by_usual[name] for name in usual if name in by_usual), None)
    if str(given) not in there:
        raise ValueError(f"{path} has no {kind} {str(given)!r} ({flag}); {nearest(given, there, 'there are')}")
    return str(given)


def _in_order(columns: dict[str, str]) -> ScoreColumns:
    """Numbered columns by number (text would put 10 before 2), others as they come."""
    names = list(columns)
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    return ScoreColumns([columns[name] for name in names], names)


def _usual(name: str) -> str:
    """``True Label`` and ``true-label`` are the same as ``true_label``."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower())


def _numbered(names: Sequence[Any]) -> list[str]:
    return [str(label) for label in range(len(names))]


def _numbers(values: Any) -> NDArray[np.int64] | None:
    array = np.asarray(values)
    numbers = whole_numbers(array if array.dtype.kind == "i" else array.astype(str))
    return numbers if numbers is not None and len(numbers) else None


def _texts(values: Any) -> list[str]:
    return [str(entry).strip() for entry in np.unique(np.asarray(values).astype(str)).tolist()]


def _digits(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """Numbers as text."""
    return values if values is None or values.dtype.kind not in "iu" else values.astype(str)


def _is_number(text: str) -> bool:
    """Whether a cell may be a score; one that is empty may."""
    try:
        float(text.strip() or "0")
    except ValueError:
        return False
    return True


def listed(names: Sequence[str]) -> str:
    """Names for a message, twelve at most."""
    return (", ".join(map(repr, names[:12])) or "none") + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
