"""What every data set hands over before it is cut: whole splits, and what is known about their files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..._utils.errors import MissingData
from ..image_set import ImageSet


@dataclass(frozen=True)
class Source:
    """A data set as it is stored. ``test`` is None when it has to be held out of ``train``."""

    train: ImageSet
    test: ImageSet | None = None
    val: ImageSet | None = None
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files that define the set, where that is cheap."""
    notes: tuple[str, ...] = ()
    """What a reader of the results should know about where the splits came from."""
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
