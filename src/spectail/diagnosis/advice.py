"""Advice on a data set: what to check, merge, collect and remove, as a record that is saved beside a run.

`advice.json` is the record, from which the report is made; `advice.csv` says the same line by line for a spreadsheet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .._utils.files import whole_file, write_json
from .tables import to_csv

NAME = "advice.json"
COLUMNS = ("kind", "file", "position", "class", "suggestion", "confidence", "note")
"""How a cell begins that a spreadsheet would carry out."""


@dataclass(frozen=True)
class LabelIssue:
    """An image that is probably mislabelled."""

    position: int
    """In the training set."""
    file: str | None
    given: str
    suggested: str
    confidence: float
    """Probability that the given label is wrong, 0 to 1."""


@dataclass(frozen=True)
class ClassPair:
    """Two classes that are taken for each other more often than chance and their sizes explain."""

    first: str
    second: str
    taken: int
    """Images of the two that are taken for the other one."""
    images: int
    """Images of the two."""
    low: float
    high: float
    """95 % limits of the share, in percent."""
    expected: float
    """Images that would be taken for the other one if mistakes fell on classes as they do on the whole."""

    def __str__(self) -> str:
        are = "is" if self.taken == 1 else "are"
        count = f"{self.taken} of {self.images} images of the two {are} taken for the other"
        return f"'{self.first}' and '{self.second}' ({count})"


@dataclass(frozen=True)
class MoreImages:
    """What twice the images of a class would probably do for it."""

    name: str
    images: int
    """Training images it has."""
    accuracy: float
    """Share recognised out of fold if all classes are equally likely beforehand, in percent; of few images, an estimate
    that leans on classes of like size."""
    gain: float
    """Expected points of accuracy from twice the images."""
    low: float
    high: float
    """95 % limits of the gain."""


@dataclass(frozen=True)
class Duplicate:
    """Images whose contents are identical. The lists have one entry per image."""

    kind: str
    """"two labels", "two splits" or "same label"."""
    files: tuple[str | None, ...]
    positions: tuple[int, ...]
    classes: tuple[str | None, ...]
    """None where a split has no labels."""
    splits: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """What to do about a data set, each list with the most urgent first."""

    judged: int
    """Images that a head has judged which had not seen them."""
    label_issues: tuple[LabelIssue, ...] = ()
    pairs: tuple[ClassPair, ...] = ()
    more_images: tuple[MoreImages, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    wrong_share: float | None = None
    """Estimated share of wrong labels, in percent, those included that cannot be told one by one; None if unknown."""
    notes: tuple[str, ...] = field(default=())
    """What could not be said and why, in sentences."""

    def save(self, folder: Path) -> None:
        """Write `advice.json` and `advice.csv` into the folder of a run."""
        write_json(folder / NAME, asdict(self))
        self.write_csv(folder / "advice.csv")

    @classmethod
    def load(cls, folder: Path) -> Advice | None:
        """Read the record of a run; None if there is none.

        Raises:
            ValueError: it cannot be read.
        """
        path = folder / NAME
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            lists: dict[str, Any] = {
                "label_issues": LabelIssue,
                "pairs": ClassPair,
                "more_images": MoreImages,
                "duplicates": Duplicate,
            }
            made: dict[str, Any] = {
                key: tuple(kind(**_tuples(entry)) for entry in content.pop(key)) for key, kind in lists.items()
            }
            return cls(**made, **_tuples(content))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}). Delete it, or run `spectail fit` again.") from None

    def write_csv(self, path: Path) -> None:
        """Write one line per piece of advice; the file is whole or not there."""
        with whole_file(path) as temporary:
            temporary.write_bytes(self.csv_text().encode("utf-8", "backslashreplace"))  # file names need not be UTF-8

    def csv_text(self) -> str:
        return to_csv(COLUMNS, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The lines of the CSV file."""
        for issue in self.label_issues:
            yield ("check label", issue.file, issue.position, issue.given, issue.suggested,
                   min(round(issue.confidence, 4), 0.9999), f"looks like '{issue.suggested}'")  # fmt: skip
        for pair in self.pairs:
            yield ("merge or look closer", None, None, pair.first, pair.second, None,
                   f"{pair.taken} of {pair.images} images of the two are taken for the other, {pair.low:.1f} to "
                   f"{pair.high:.1f} %; {pair.expected:.1f} images expected")  # fmt: skip
        for entry in self.more_images:
            yield ("collect more", None, None, entry.name, None, None,
                   f"{entry.accuracy:.1f} % recognised; twice the {entry.images} images: {entry.gain:+.1f} points, "
                   f"{entry.low:.1f} to {entry.high:.1f}")  # fmt: skip
        for number, group in enumerate(self.duplicates, 1):
            for file, position, name, split in zip(
                group.files, group.positions, group.classes, group.splits, strict=True
            ):
                yield ("duplicate", file, position, name, None, None,
                       f"group {number}, {group.kind}; in {split}")  # fmt: skip


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
