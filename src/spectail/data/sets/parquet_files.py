"""Parquet files: which belong to which split, what their columns are, and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..._utils.arrays import check_parquet
from ..._utils.errors import MissingData, is_lack_of_memory

IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "png", "webp")
FEATURE_NAMES = ("features", "feature", "embedding", "embeddings", "vector", "x", "X")
LABEL_NAMES = ("label", "labels", "fine_label", "target", "class", "class_id", "category", "cls", "y")
SPLITS = {"train": {"train", "training"}, "test": {"test", "testing"}, "val": {"val", "valid", "validation", "dev"}}


def split_files(path: Path) -> dict[str, list[Path]]:
    if path.is_file():
        return {"train": [path]}
    found: dict[str, list[Path]] = {}
    unknown = []
    for file in sorted(path.rglob("*.parquet")):
        split = _split_of(file.stem) or _split_of(file.relative_to(path).parent.as_posix())  # the file's own name first
        if split:
            found.setdefault(split, []).append(file)
        else:
            unknown.append(file)
    odd = next((file for file in unknown if re.search("test|val|train", file.stem.lower())), None)
    if odd is not None and len(unknown) + len(found) > 1:
        raise ValueError(
            f"which split is {odd}? Name files train, test or validation, with - or _ before what follows."
        )
    if not found and unknown:
        return {"train": unknown}
    if "train" not in found:
        what = f"only {', '.join(found)} files" if found else "no parquet file"
        raise MissingData(f"{path} has {what}; expected shards with 'train' (and 'test') in their names.")
    if unknown:
        raise ValueError(
            f"{path} has files that name no split, such as {unknown[0].name}, beside files that do. "
            "Give them 'train', 'test' or 'validation' in their name, or move them away."
        )
    return found


def _split_of(name: str) -> str:
    words = set(re.split(r"[^a-z]+", name.lower()))
    return next((split for split, known in SPLITS.items() if words & known), "")


def in_words(path: Path, read: Callable[..., Any], **options: Any) -> Any:
    try:
        return read(path, **options)
    except (pa.ArrowException, OSError) as error:
        if is_lack_of_memory(error):
            raise
        raise ValueError(f"{path} cannot be read as parquet ({str(error).splitlines()[0]}). Fetch it again.") from None


def read_column(path: Path, name: str) -> Any:
    """A column whole, if it is not made to fill memory."""
    check_parquet(path, in_words(path, pq.read_metadata), [name])
    return in_words(path, pq.read_table, columns=[name]).column(0)


def hub_names(schema: Any, label: str) -> tuple[str, ...] | None:
    """Class names in the metadata that public hubs write, or None."""
    try:
        names = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, ValueError, TypeError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) else None


def read_labels(paths: list[Path], label: str) -> NDArray[Any]:
    columns = []
    for path in paths:
        column = read_column(path, label)
        if column.null_count:
            raise ValueError(f"{path}: {column.null_count} rows have no {label}. Fill or drop them.")
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = np.asarray(column.to_numpy())
        columns.append(values.astype(np.int64) if values.dtype == bool else values)
    return np.concatenate(columns)


def is_image(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and is_image(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_vector(kind: Any) -> bool:
    """Whether a column holds lists of floating-point numbers, of one length or of any."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and bool(pa.types.is_floating(kind.value_type))


def is_label(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return is_label(kind.value_type)
    tests = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in tests)


def pick(given: str | None, schema: Any, known: tuple[str, ...], fits: Any, what: str, flag: str, path: Path) -> str:
    """The column given, the one with a usual name, or the only one that fits."""
    fitting = [field.name for field in schema if fits(field.type)]
    if given is not None:
        if given not in fitting:
            kind = f" (it is of type {schema.field(given).type})" if given in schema.names else ""
            raise ValueError(
                f"{path} has no {what} column {given!r}{kind}; columns that could be one: "
                f"{', '.join(fitting) or 'none'}."
            )
        return given
    usual = [name for name in known if name in fitting]
    if usual or len(fitting) == 1:
        return (usual or fitting)[0]
    raise ValueError(
        f"{path}: which column is the {what}? Candidates: {', '.join(fitting) or 'none'}; all columns: "
        f"{', '.join(schema.names)}. Say it with {flag}."
    )
