"""Tiny-ImageNet-200 as it is unpacked. Its validation images, labelled by an annotation file, serve as test set.

Classes are numbered by sorted wnid, as image-folder readers do; wnids.txt has another order, which would make other
classes head classes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..._utils.errors import MissingData
from ..._utils.files import file_digest
from ..catalog import find
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import FileImages, Texts
from .folder import read_folder
from .source import Source, existing_folder

FACTS = find("tiny-imagenet-lt")
CLASSES, PER_CLASS, TEST_PER_CLASS = FACTS.classes, FACTS.largest, FACTS.test // FACTS.classes
ANNOTATIONS = "val_annotations.txt"


def open_source(config: DataConfig) -> Source:
    root = existing_folder(config.root, config.dataset, "train, val and words.txt (the unpacked tiny-imagenet-200)")
    if not (root / "train").is_dir() and (root / "tiny-imagenet-200").is_dir():
        root = root / "tiny-imagenet-200"
    if not (root / "train").is_dir():
        raise MissingData(f"{root} has no folder 'train'; --root should be the unpacked tiny-imagenet-200.")
    train = read_folder(root / "train")
    wnids = train.names
    counts = train.counts
    odd = next((i for i, count in enumerate(counts.tolist()) if count != PER_CLASS), None)
    if len(wnids) != CLASSES or odd is not None:
        what = f"{len(wnids)} classes" if odd is None else f"{counts.describe(odd)} with {counts.tolist()[odd]} images"
        raise ValueError(f"{root / 'train'} should hold 200 classes of 500 images; found {what}. Unpack it again.")
    test = _read_val(root / "val", wnids)
    words = _words(root / "words.txt")
    names = tuple(words.get(wnid, wnid) for wnid in wnids)
    if len(set(names)) < len(names):  # two wnids may share a word
        names = tuple(f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True))
    return Source(
        ImageSet(train.images, train.labels, names),
        ImageSet(test.images, test.labels, names),
        files={ANNOTATIONS: file_digest(root / "val" / ANNOTATIONS)} if (root / "val" / ANNOTATIONS).is_file() else {},
        notes=("the validation images are the test set: the labels of the test images were never published",),
    )


def _read_val(val: Path, wnids: tuple[str, ...]) -> ImageSet:
    """Labels from the annotation file; a tree that a script has sorted into class folders completely is fine too."""
    if not (val / ANNOTATIONS).is_file():
        if val.is_dir() and all((val / wnid).is_dir() for wnid in wnids):
            return _checked(read_folder(val, wnids), val)
        raise MissingData(
            f"{val} has no {ANNOTATIONS}, which holds the labels, nor a folder for each class. Unpack it again."
        )
    lines = [line.split("\t") for line in (val / ANNOTATIONS).read_text().splitlines() if line.strip()]
    if not lines or any(len(line) < 2 for line in lines):
        raise ValueError(f"{val / ANNOTATIONS} should have lines of file name, tab, wnid. Unpack it again.")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    unknown = next((line[1] for line in lines if line[1] not in label_of), None)
    if unknown is not None:
        raise ValueError(f"{val / ANNOTATIONS} names class {unknown!r}, which has no folder in train.")
    in_place = _names(val / "images")
    moved_to = {name: f"{wnid}/{below}{name}" for wnid in wnids for below in ("", "images/")
                for name in _names(val / wnid / below)}  # fmt: skip
    here = sum(line[0] in in_place for line in lines)
    there = sum(line[0] in moved_to for line in lines)
    if here < len(lines) and there < len(lines):
        raise ValueError(
            f"{val} is half moved: of {len(lines):,} annotated images {here:,} are in val/images, {there:,} in class "
            "folders. Unpack it again; the files need not be moved at all."
        )
    paths = [f"images/{line[0]}" if here == len(lines) else moved_to[line[0]] for line in lines]
    labels = np.array([label_of[line[1]] for line in lines])
    return _checked(ImageSet(FileImages(val, Texts.pack(paths)), labels, wnids), val)


def _checked(test: ImageSet, val: Path) -> ImageSet:
    if any(count != TEST_PER_CLASS for count in test.counts.tolist()):
        raise ValueError(f"{val} should hold 50 images of each class; found {len(test)} in all. Unpack it again.")
    return test


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if entry.is_file()} if folder.is_dir() else set()


def _words(path: Path) -> dict[str, str]:
    """The first word of each wnid, for tables that a person reads."""
    if not path.is_file():
        return {}
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line)
    return {wnid: words.split(",")[0].strip() for wnid, words in lines}
