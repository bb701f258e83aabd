"""What every data set hands over before it is cut: whole splits, and what is known about their files; and class ids
from labels as users have them (numbers with or without gaps, or names)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._utils.errors import MissingData
from ..._utils.files import file_digest
from ..samples import Samples

CHEAP = 1 << 30  # bytes that are hashed without asking


@dataclass(frozen=True)
class Source:
    """A data set as it is stored. ``test`` is None when it has to be held out of ``train``."""

    train: Samples
    test: Samples | None = None
    val: Samples | None = None
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files that define the set, where that is cheap."""
    notes: tuple[str, ...] = ()
    """What a reader of the results should know about where the splits came from."""
    left_out: tuple[str, ...] = ()
    """Classes that are not used, and why."""
    drawn: bool = False
    """The images themselves follow from the seed."""


def existing_folder(path: Path | None, dataset: str, expected: str) -> Path:
    """The root, or one sentence that says what should have been there."""
    if path is None:
        raise MissingData(f"{dataset} needs --root: a folder with {expected}.")
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise MissingData(f"--root {path} {what}; {dataset} expects a folder with {expected}.")
    return path


def cheap_digests(paths: list[Path]) -> dict[str, str]:
    """SHA-256 of files by name; none where they are large."""
    cheap = sum(file.stat().st_size for file in paths) <= CHEAP
    return {file.name: file_digest(file) for file in paths} if cheap else {}


def as_class_ids(
    labels: dict[str, NDArray[Any]], names: tuple[str, ...] | None, *, remap: bool, where: str
) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
    """Labels of all splits as class ids, and the class names.

    Names are numbered in sorted order. Numbers must be 0..K-1 without gaps in the training split; with ``remap`` the
    numbers that occur are renumbered in ascending order and keep the old number (or name) as class name.
    """
    if not all(np.issubdtype(values.dtype, np.integer) for values in labels.values()):
        labels = {split: values.astype(str) for split, values in labels.items()}  # names, some may look like numbers
    train = labels["train"]
    if not len(train):
        raise ValueError(f"{where}: the training split is empty.")
    found = np.unique(train)
    for split, values in labels.items():
        extra = np.setdiff1d(values, found)
        if len(extra):
            raise ValueError(
                f"{where}: class {_show(extra[0], names)} occurs in {split} and not in train"
                f"{f', and {len(extra) - 1} more' if len(extra) > 1 else ''}. A class needs training images."
            )
    ids = {split: np.searchsorted(found, values).astype(np.int64) for split, values in labels.items()}
    if not np.issubdtype(train.dtype, np.integer):
        return ids, tuple(str(name) for name in found)
    if found[0] < 0:
        raise ValueError(f"{where}: labels must be 0 or more; found {found[0]}.")
    size = len(names) if names is not None else int(found[-1]) + 1
    if found[-1] >= size:
        raise ValueError(f"{where}: label {found[-1]} has no name: there are {size} class names.")
    missing = size - len(found)
    if missing and not remap:
        known = set(found.tolist())
        first = itertools.islice((label for label in range(size) if label not in known), 5)
        shown = ", ".join(map(str, first)) + (", ..." if missing > 5 else "")
        raise ValueError(
            f"{where}: labels must be 0..{size - 1} without gaps; {missing:,} have no training image: {shown}. "
            "Pass --remap-labels to number the classes that occur."
        )
    return ids, tuple(names[label] if names is not None else str(label) for label in found)


def _show(label: Any, names: tuple[str, ...] | None) -> str:
    if names is not None and isinstance(label, np.integer) and 0 <= label < len(names):
        return f"{label} ({names[int(label)]!r})"
    return repr(label.item() if hasattr(label, "item") else label)
