"""Predictions from tables, CSV or parquet: which column holds what, by its name."""

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

from .predictions import Raw, nearest

LABELS = ("label", "labels", "target", "targets", "true", "y_true", "true_label", "ground_truth", "class", "y")
PREDICTED = ("predicted", "pred", "preds", "prediction", "predictions", "y_pred",
             "predicted_label", "pred_label", "predicted_class", "pred_class")  # fmt: skip
SCORES = ("logits", "logit", "scores", "score", "probabilities", "probability", "probs", "prob", "y_score", "p",
          "class")  # fmt: skip
OTHERS = ("", "id", "index", "idx", "row", "file", "filename", "file_name", "path", "image", "image_id", "url", "split",
          "fold", "confidence", "conf", "correct", "right", "loss", "entropy", "weight", "margin", "name", "seed",
          "epoch")  # fmt: skip
"""Columns that go with predictions and are neither labels nor scores; an index often has no name."""


@dataclass(frozen=True)
class Ask:
    """What the caller knows about a file."""

    label: str | None
    prediction: str | None
    scores: str | Path | Sequence[str] | None
    names: tuple[str, ...] | None


def read_csv(path: Path, ask: Ask) -> Raw:
    """What a table of text says; commas, semicolons or tabs between its columns."""
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
            words = re.sub(
                r"In CSV column #(\d+): ", lambda found: f"column {header[int(found[1])]!r}, ", first_line(error)
            )
            raise ValueError(f"{path} cannot be read: {words}.") from None

    return _read_table(
        path, header, ask, lambda names: read(names, pa.string()), lambda names: read(names, pa.float32())
    )


def read_parquet(path: Path, ask: Ask) -> Raw:
    """What a parquet file says."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    def in_words(read: Callable[..., Any], **options: Any) -> Any:
        try:
            return read(path, **options)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as parquet ({first_line(error)}); write it again.") from None

    def read(names: list[str]) -> Any:
        return in_words(pq.read_table, columns=names)

    return _read_table(path, in_words(pq.read_schema).names, ask, read, read)


def _read_table(
    path: Path, header: list[str], ask: Ask, read_classes: Callable[[list[str]], Any],
    read_scores: Callable[[list[str]], Any],
) -> Raw:  # fmt: skip
    twice = [name for name, number in Counter(header).items() if number > 1]
    if twice:
        raise ValueError(f"{path} has two columns {twice[0]!r}; rename one.")
    at = pick(ask.label, header, LABELS, "column", "--label-column", path)
    if at is None:
        raise ValueError(
            f"{path} has no column of labels such as 'label' or 'target'; its columns are {listed(header)}. "
            "Name it with --label-column."
        )
    guess = pick(ask.prediction, header, PREDICTED, "column", "--prediction-column", path)
    table = read_classes([at] if guess is None else [at, guess])
    raw = Raw(_column(table, at, path), None if guess is None else _column(table, guess, path), own=True)
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
            f"its columns are {listed(header)}. Name it with --prediction-column."
        )
    return raw


def _score_columns(rest: list[str], ask: Ask, raw: Raw, path: Path) -> tuple[list[str], list[str]]:
    """The columns that hold scores, in class order, and the class names that they give."""
    if isinstance(ask.scores, str | Path):
        start = str(ask.scores)
        begun = {name.removeprefix(start): name for name in rest if name.startswith(start)}
        if not begun:
            raise ValueError(f"{path} has no column that begins with {start!r}; others are {listed(rest)}.")
        return _in_order(begun)
    if ask.scores is not None:
        given = [pick(name, rest, (), "column", "scores", path) or "" for name in ask.scores]
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


def _as_text(values: NDArray[Any] | None) -> NDArray[Any] | None:
    return values if values is None or values.dtype.kind not in "iu" else values.astype(str)


def pick(given: Any, there: Sequence[str], known: Sequence[str], kind: str, flag: str, path: Path) -> str | None:
    """The column given, or the first with a usual name."""
    if given is None:
        lower = {name.lower(): name for name in reversed(there)}
        return next((lower[name] for name in known if name in lower), None)
    if str(given) not in there:
        hint = nearest(str(given), there)
        raise ValueError(f"{path} has no {kind} {str(given)!r} ({flag}){hint}; there are {listed(there)}.")
    return str(given)


def listed(names: Sequence[str]) -> str:
    """Names for a message, twelve at most."""
    return (", ".join(map(repr, names[:12])) or "none") + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def first_line(error: BaseException) -> str:
    """What an error says, without what follows its first line."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
