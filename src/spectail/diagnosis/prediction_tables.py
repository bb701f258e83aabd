"""Predictions from tables, CSV or parquet."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .prediction_columns import (
    ADVICE,
    LABELS,
    PREDICTED,
    Ask,
    listed,
    pick,
    require_scores,
    score_columns,
    without_score,
)
from .predictions import Raw


def read_csv(path: Path, ask: Ask) -> Raw:
    """What a table of text says; commas, semicolons or tabs between its columns."""
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

    def read(names: list[str], kind: Any) -> Any:
        parse = arrow_csv.ParseOptions(delimiter=mark)
        convert = arrow_csv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, kind), strings_can_be_null=True, null_values=[""]
        )  # "NA" may be a class; nothing at all is none
        try:
            return arrow_csv.read_csv(path, parse_options=parse, convert_options=convert)
        except (pa.ArrowException, OSError) as error:
            words = re.sub(
                r"In CSV column #(\d+): ", lambda found: f"column {header[int(found[1])]!r}, ", first_line(error)
            )
            hint = f" It was taken for the scores of a class. {ADVICE}" if "to float" in words else ""
            raise ValueError(f"{path} cannot be read: {words}.{hint}") from None

    return _read_table(
        path, header, ask, lambda name: _is_number(first.get(name, "")), lambda names: read(names, pa.string()),
        lambda names: read(names, pa.float32()),
    )  # fmt: skip


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

    schema = in_words(pq.read_schema)
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
    return _read_table(
        path, schema.names, ask, lambda name: any(kind(schema.field(name).type) for kind in numbers), read, read
    )


def _read_table(
    path: Path, header: list[str], ask: Ask, numeric: Callable[[str], bool], read_classes: Callable[[list[str]], Any],
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
    choice = score_columns(rest, ask, raw, numeric, path)
    columns, names = choice.columns, choice.names
    missing = without_score(choice, ask, raw) if columns and guess is not None and ask.scores is None else None
    if missing is not None:  # such as the scores of the three best classes
        raw.notes = (
            f"Only the predicted classes are used: {listed(columns)} are not one column of scores per class, "
            f"as {missing!r} has none.",
        )
    elif columns:
        raw.scores = _stack(read_scores(columns), columns, path)
        if choice.bare:
            require_scores(raw.scores, choice, raw, path)
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


def _column(table: Any, name: str, path: Path) -> NDArray[Any]:
    column = table.column(name)
    _require_filled(column, name, path)
    if hasattr(column.type, "index_type"):  # a dictionary, as categories are stored
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())


def _require_filled(column: Any, name: str, path: Path) -> None:
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise ValueError(f"{path}: row {row} of column {name!r} is empty; fill it or drop the row.")


def _stack(table: Any, columns: list[str], path: Path) -> NDArray[Any]:
    if len(columns) == 1 and hasattr(table.column(columns[0]).type, "value_field"):  # one list of scores per row
        _require_filled(table.column(columns[0]), columns[0], path)
        lists = table.column(columns[0]).combine_chunks()
        widths = {len(row) for row in lists}
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
            raise ValueError(
                f"{path}: column {name!r} was taken for the scores of a class, but holds {found}. {ADVICE}"
            )
        scores[:, place] = values
    return scores


def _as_text(values: NDArray[Any] | None) -> NDArray[Any] | None:
    return values if values is None or values.dtype.kind not in "iu" else values.astype(str)


def _is_number(text: str) -> bool:
    """Whether a cell may be a score; one that is empty may."""
    try:
        float(text.strip() or "0")
    except ValueError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """What an error says, without what follows its first line."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
