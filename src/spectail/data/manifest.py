"""The identity of a data set: what was chosen, by which rule, and digests that prove it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._utils.digests import verify
from .._utils.files import array_digest, write_json
from ..counts import ClassCounts
from .feature_set import FeatureSet
from .samples import Samples

FORMAT = 1


@dataclass(frozen=True)
class Split:
    """One split. ``labels`` digests the labels in order, ``content`` the decoded images, ``index`` where they lie."""

    images: int
    counts: list[int]
    labels: str
    content: str | None
    """None when not all images were read, as for sets too large for it."""
    index: str | None

    @classmethod
    def of(cls, data: Samples, contents: NDArray[np.uint64] | None, index: str | None) -> Split:
        content = None if contents is None else array_digest(contents)
        return cls(len(data), data.counts.tolist(), array_digest(data.labels), content, index)

    def differences(self, other: Split) -> list[str]:
        if self.counts != other.counts:
            return [f"images per class ({self.images:,} images in all, then {other.images:,})"]
        if self.labels != other.labels:
            return ["the order of the images"]
        for what in ("content", "index"):  # what both know decides; content says more than places
            mine, its = getattr(self, what), getattr(other, what)
            if mine is not None and its is not None:
                return [] if mine == its else ["which images were chosen"]
        return []


@dataclass(frozen=True)
class Manifest:
    """Everything needed to get the same data again, or to see that it is not the same."""

    dataset: str
    rule: dict[str, Any]
    classes: list[str]
    splits: dict[str, Split]
    ranks: str | None
    """Hash of the within-class ranks of the training subset: the same for every file layout."""
    groups: dict[str, Any]
    statistics: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """Data options that were not at their default, paths left out."""
    version: str = ""
    format: int = FORMAT

    @property
    def identity(self) -> str:
        """One hash for the whole: class names, and labels and images of each split."""
        parts: list[Any] = [self.classes]
        for name, split in sorted(self.splits.items()):
            parts.append([name, split.counts, split.labels, split.content or [split.index, self.files]])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def by_content(self) -> bool:
        """Whether every image was read; otherwise the identity goes by file names and places only."""
        return all(split.content is not None for split in self.splits.values())

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts(self.splits["train"].counts, self.classes)

    def left_out(self, most: int = 5) -> list[str]:
        """What was left out of the data, a sentence each: classes, then images, ``most`` of either."""
        classes = self.checks.get("left_out", [])
        images = [problem for broken in self.checks.get("broken", {}).values() for problem in broken]
        lines = []
        for what, found in (("classes", classes), ("images", images)):
            lines += [f"left out: {problem}" for problem in found[:most]]
            if len(found) > most:
                lines.append(f"left out: {len(found) - most:,} more {what}; manifest.json names them all")
        return lines

    def differences(self, other: Manifest) -> list[str]:
        """What is not the same, in words; empty for the same data. Rules, notes and versions may differ."""
        if self.classes != other.classes:
            sizes = len(self.classes), len(other.classes)
            return [
                "the class names or their order" if sizes[0] == sizes[1] else f"{sizes[0]} classes, then {sizes[1]}"
            ]
        found = [f"{name} split is missing" for name in sorted(self.splits.keys() ^ other.splits.keys())]
        if not (self.by_content and other.by_content) and self.files and other.files and self.files != other.files:
            found.append("the files that define the set")
        for name in sorted(self.splits.keys() & other.splits.keys()):
            found += [f"{name}: {what}" for what in self.splits[name].differences(other.splits[name])]
        return found

    def require_same(self, other: Manifest, where: str) -> None:
        """Refuse data that is not what ``where`` was made with."""
        found = self.differences(other)
        if found:
            raise ValueError(
                f"the data differs from what {where} was made with: {'; '.join(found)}. That was {self.identity} "
                f"({_rule(self.rule)}), this is {other.identity} ({_rule(other.rule)}). Use the same options and files."
            )

    def save(self, path: Path) -> None:
        write_json(path, {"identity": self.identity, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> Manifest:
        verify(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']}, this version reads {FORMAT}")
            identity = content.pop("identity")
            content["splits"] = {name: Split(**split) for name, split in content["splits"].items()}
            manifest = cls(**{entry.name: content[entry.name] for entry in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read as a manifest ({error!r}). Run spectail prepare again.") from None
        if manifest.identity != identity:
            raise ValueError(
                f"{path} says identity {identity}, but its content has {manifest.identity}: it was edited."
            )
        return manifest


def describe_groups(counts: ClassCounts, convention: str) -> dict[str, Any]:
    members = counts.groups(convention)
    values = counts.tolist()
    return {
        "convention": convention,
        "classes": {group: len(labels) for group, labels in members.items()},
        "images": {group: sum(values[label] for label in labels) for group, labels in members.items()},
    }


def describe_statistics(train: Samples) -> dict[str, Any]:
    counts = train.counts
    result: dict[str, Any] = {
        "imbalance_factor": round(counts.imbalance_factor, 4),
        "largest": int(counts.counts.max()),
        "smallest": int(counts.counts.min()),
        "gini": round(counts.gini, 4),
    }
    if isinstance(train, FeatureSet):
        result["features"] = train.features.shape[1]
    if train.pixels is not None:  # what to normalise with, when no checkpoint says otherwise
        mean, std = channel_statistics(train.pixels)
        result |= {"mean": mean.round(4).tolist(), "std": std.round(4).tolist()}
    return result


def channel_statistics(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each colour channel, on the scale 0 to 1."""
    total, squares = np.zeros(3), np.zeros(3)
    for part in range(0, len(pixels), 256):  # in pieces: a float copy of everything would not fit
        piece = pixels[part : part + 256].reshape(-1, 3).astype(np.float32) / 255
        total += piece.sum(0, dtype=np.float64)
        squares += np.einsum("ij,ij->j", piece, piece, dtype=np.float64)
    size = pixels[..., 0].size
    return total / size, np.sqrt(squares / size - (total / size) ** 2)


def _rule(rule: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in rule.items() if value is not None and key != "capped")
