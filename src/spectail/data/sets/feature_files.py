"""Arrays of features and labels in .npz, .npy and parquet files, as they are stored. Nothing is ever unpickled.

- ``.npz``: arrays ``X`` and ``y``, or ``features`` and ``labels``; with ``_test`` and ``_val`` behind the names the
  other splits; ``class_names`` for labels that are numbers.
- ``NAME.npy``: the features; ``NAME_labels.npy`` beside it has the labels. Where NAME says train, the file with test
  in its place is the test set.
- parquet: a column of lists of numbers and a column of labels, in one file or in shards as for images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._utils.arrays import opened_npz, read_npy
from ..._utils.errors import MissingData

FEATURES, LABELS = ("x", "features", "embeddings"), ("y", "labels", "targets")
ENDINGS = {"train": ("", "_train"), "test": ("_test",), "val": ("_val", "_valid", "_validation")}
SUFFIXES = (".npz", ".npy", ".parquet")
EXPECTED = "expected a .npz, .npy or .parquet file of features"


@dataclass
class StoredArrays:
    """What a file holds, split by split, unchecked."""

    features: dict[str, NDArray[Any]]
    labels: dict[str, NDArray[Any]] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    files: list[Path] = field(default_factory=list)


def read_arrays(
    path: Path, *, feature_column: str | None = None, label_column: str | None = None, labelled: bool = True
) -> StoredArrays:
    """The arrays of a file. ``labelled=False`` asks for the features alone, as of new data."""
    if not path.exists():
        raise MissingData(f"{path} does not exist; {EXPECTED}.")
    kind = path.suffix.lower()
    if kind == ".parquet" or path.is_dir():
        return _read_parquet(path, feature_column, label_column, labelled)
    for flag, value in (("--feature-column", feature_column), ("--label-column", label_column)):
        if value is not None:
            raise ValueError(f"{flag} names a column of a parquet file, and {path.name} is none. Leave it out.")
    if kind == ".npz":
        return _read_npz(path, labelled)
    if kind == ".npy":
        return _read_npy(path, labelled)
    raise ValueError(f"{path} ends in {path.suffix or 'nothing'!r}; {EXPECTED}.")


def _read_npz(path: Path, labelled: bool) -> StoredArrays:
    with opened_npz(path) as archive:
        there = archive.names
        found = StoredArrays({}, files=[path])
        for split in ENDINGS:
            features, labels = (_find(there, names, split, path) for names in (FEATURES, LABELS))
            if features is not None and (labels is not None or not labelled):
                found.features[split] = archive[features]
                if labels is not None and labelled:
                    found.labels[split] = archive[labels]
            elif split == "train" or (labelled and (features or labels)):
                lacking = "labels" if features else "features"
                name = "'y' or 'labels'" if features else "'X' or 'features'"
                raise ValueError(
                    f"{path} has no {lacking} of the {split} split: an array {name}"
                    f"{'' if split == 'train' else f', with {ENDINGS[split][0]!r} behind it'}. "
                    f"Its arrays are {', '.join(there) or 'none'}."
                )
        if "class_names" in there and labelled:
            found.class_names = tuple(map(str, as_text(archive["class_names"]).ravel().tolist()))
    return found


def _find(there: list[str], names: tuple[str, ...], split: str, path: Path) -> str | None:
    wanted = {name + ending for name in names for ending in ENDINGS[split]}
    fitting = [name for name in there if name.lower() in wanted]
    if len(fitting) > 1:
        raise ValueError(f"{path} has {' and '.join(map(repr, fitting))}, which mean the same; keep one of them.")
    return fitting[0] if fitting else None


def _read_npy(path: Path, labelled: bool) -> StoredArrays:
    if not labelled:
        return StoredArrays({"train": read_npy(path)}, files=[path])
    found = StoredArrays({})
    splits = {"train": path}
    test = path.with_name(path.name.replace("train", "test"))
    if test != path and test.is_file():
        splits["test"] = test
    for split, file in splits.items():
        beside = file.with_name(f"{file.stem}_labels.npy")
        if not beside.is_file():
            raise MissingData(f"{file} needs its labels in {beside.name} beside it, which does not exist.")
        found.features[split], found.labels[split] = read_npy(file), read_npy(beside)
        found.files += [file, beside]
    return found


def _read_parquet(path: Path, feature_column: str | None, label_column: str | None, labelled: bool) -> StoredArrays:
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import, and the other formats do without

    from . import parquet_files as files  # noqa: PLC0415

    found = StoredArrays({})
    for split, paths in files.split_files(path).items():
        schema = files.in_words(paths[0], pq.read_schema)
        column = files.pick(feature_column, schema, files.FEATURE_NAMES, files.is_vector, "feature",
                            "--feature-column", paths[0])  # fmt: skip
        found.features[split] = np.concatenate([_vectors(file, column) for file in paths])
        found.files += paths
        if labelled:
            label = files.pick(label_column, schema, files.LABEL_NAMES, files.is_label, "label", "--label-column",
                               paths[0])  # fmt: skip
            found.labels[split] = files.read_labels(paths, label)
            found.class_names = found.class_names or files.hub_names(schema, label)
    return found


def _vectors(path: Path, name: str) -> NDArray[Any]:
    """A column of lists as one array (N, D)."""
    import pyarrow.compute as pc  # noqa: PLC0415

    from . import parquet_files as files  # noqa: PLC0415

    column = files.read_column(path, name)
    values = pc.list_flatten(column)
    if column.null_count or values.null_count:
        raise ValueError(f"{path}: column {name!r} has empty entries. Fill them or drop their rows.")
    lengths = np.unique(pc.list_value_length(column).to_numpy())
    if len(lengths) > 1:
        raise ValueError(
            f"{path}: the lists of column {name!r} must all have one length; there are some with {lengths[0]} and some "
            f"with {lengths[-1]} numbers."
        )
    rows: NDArray[Any] = values.to_numpy().reshape(len(column), int(lengths[0]) if len(lengths) else 0)
    return rows


def as_text(values: NDArray[Any]) -> NDArray[Any]:
    """Names that were stored as bytes are UTF-8."""
    return np.char.decode(values, "utf-8", "backslashreplace") if values.dtype.kind == "S" else values
