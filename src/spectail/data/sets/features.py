"""`features:FILE`: a vector for each item in place of an image, from whatever network or table it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import DataConfig
from ..feature_set import FeatureSet
from .feature_files import as_text, read_arrays
from .source import Source, as_class_ids, cheap_digests


def open_source(config: DataConfig) -> Source:
    path = Path(config.dataset.removeprefix("features:")).expanduser()
    stored = read_arrays(path, feature_column=config.feature_column, label_column=config.label_column)
    features = {split: as_features(values, f"{path}: {_called(split)}") for split, values in stored.features.items()}
    labels = {split: _as_labels(values, f"{path}: {_called(split)}") for split, values in stored.labels.items()}
    for split, values in features.items():
        rows, marks = len(values), len(labels[split])
        if rows != marks:
            raise ValueError(f"{path}: {_called(split)} has {rows:,} rows of features and {marks:,} labels; expected "
                             "one label for each row.")  # fmt: skip
        check_width(values, features["train"].shape[1], f"{path}: {_called(split)}", "the training split")
    if len(features["train"]) and len(np.unique(labels["train"])) < 2:
        raise ValueError(f"{path} has one class, {str(labels['train'][0])!r}; a classifier needs two or more.")
    ids, names = as_class_ids(labels, stored.class_names, remap=config.remap_labels, where=str(path))
    sets = {split: FeatureSet(values, ids[split], names) for split, values in features.items()}
    notes = []
    if "test" not in sets and "val" in sets:
        sets["test"] = sets.pop("val")
        notes.append("the validation rows are used as test set: there are no test rows")
    return Source(sets["train"], sets.get("test"), sets.get("val"), cheap_digests(stored.files), tuple(notes))


def as_features(values: NDArray[Any], where: str) -> Tensor:
    """Finite float32 features (N, D), or one sentence that says what is wrong with them."""
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{where} must have numbers as features; got values of type {values.dtype}.")
    if values.ndim != 2 or not values.shape[1]:
        advice = "For a single feature write X.reshape(-1, 1)." if values.ndim == 1 else "Flatten each row first."
        raise ValueError(f"{where} must have features (N, D), a row for each item; got shape {values.shape}. {advice}")
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is named below
        numbers = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(numbers)
    if not finite.all():
        bad = np.flatnonzero(~finite.all(1))
        column = int(np.flatnonzero(~finite[bad[0]])[0])
        more = f", and more in {len(bad) - 1:,} other rows" if len(bad) > 1 else ""
        raise ValueError(
            f"{where} has features that are not finite: {values[bad[0], column]} in row {bad[0]}, column {column}"
            f"{more}. Fill them in, or drop such rows."
        )
    return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())


def check_width(features: Tensor, width: int, where: str, other: str) -> None:
    if features.shape[1] != width:
        raise ValueError(f"{where} has {features.shape[1]:,} features in a row, {other} {width:,}; expected as many.")


def _as_labels(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Whole numbers or names, one for each row."""
    if values.ndim != 1:
        raise ValueError(f"{where} must have one label for each row, of shape (N,); got {values.shape}.")
    if values.dtype.kind == "b":
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < 2**53)
        if not whole.all():
            odd = values[~whole][0]
            raise ValueError(f"{where} must have whole numbers or names as labels; got {odd}.")
        return values.astype(np.int64)
    if values.dtype.kind == "u" and len(values) and values.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{where} must have labels 0, 1, 2, ...; got {values.max()}.")
    if values.dtype.kind not in "iuSUO":
        raise ValueError(f"{where} must have whole numbers or names as labels; got values of type {values.dtype}.")
    return values.astype(np.int64) if values.dtype.kind in "iu" else as_text(values)


def _called(split: str) -> str:
    return {"train": "the training split", "test": "the test split", "val": "the validation split"}[split]
