"""`folder:PATH`: one folder per class, with or without train, val and test folders above them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..._utils.errors import MissingData
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import EXTENSIONS, FileImages, Texts
from .source import Source

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}


def open_source(config: DataConfig) -> Source:
    root = Path(config.dataset.removeprefix("folder:")).expanduser()
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise MissingData(f"{config.dataset}: {root} {what}; expected one folder per class in it.")
    folders = {entry.name: entry for entry in sorted(root.iterdir()) if entry.is_dir() and entry.name[0] != "."}
    present = {name.lower(): entry for name, entry in folders.items() if _is_split(entry)}
    splits = {split: present[name] for split, words in SPLITS.items() for name in words if name in present}
    if "train" not in splits:
        if splits and len(splits) == len(folders):
            raise MissingData(f"{root} has {' and '.join(sorted(splits))} but no train folder.")
        train = read_folder(root, strict=config.strict)
        # class folders only: the test set is held out
        return Source(train, notes=_linked(root), left_out=_empty(root, train.names))
    train = read_folder(splits["train"], strict=config.strict)
    others = {
        split: read_folder(folder, train.names, strict=config.strict)
        for split, folder in splits.items()
        if split != "train"
    }
    stray = [name for name, folder in folders.items() if folder not in splits.values()]
    notes = [f"folders beside train are not read: {', '.join(stray[:3])}"] if stray else []
    if "test" not in others and "val" in others:
        others["test"] = others.pop("val")
        notes.append(f"the folder {splits['val'].name} is used as test set: there is no test folder")
    notes += [line for folder in splits.values() for line in _linked(folder)]
    left_out = _empty(splits["train"], train.names)
    return Source(train, others.get("test"), others.get("val"), notes=tuple(notes), left_out=left_out)


def read_folder(root: Path, classes: tuple[str, ...] | None = None, *, strict: bool = True) -> ImageSet:
    """Images in class folders, files of a class sorted as text. ``classes`` fixes the labels, as for a test folder.

    A class folder without an image is refused if ``strict``, and passed over if not.
    """
    files = {name: images_below(root / name) for name in _class_folders(root)}
    if not files:
        raise ValueError(f"{root} has no class folder; expected one folder per class with images in it.")
    empty = [name for name, images in files.items() if not images and (classes is None or name in classes)]
    if empty and (strict or len(empty) == len(files)):
        raise ValueError(
            f"class folder {root / empty[0]} has no image ({', '.join(sorted(EXTENSIONS))}). "
            "Add images or remove the folder."
        )
    names = class_order([name for name in files if files[name]]) if classes is None else classes
    extra = [name for name, images in files.items() if name not in names and images]
    if extra:
        raise ValueError(
            f"class {extra[0]!r} is in {root} and not in the training folder"
            f"{f', and {len(extra) - 1} more' if len(extra) > 1 else ''}. A class needs training images."
        )
    paths, labels = [], []
    for label, name in enumerate(names):
        images = files.get(name, [])
        paths += [f"{name}/{file}" for file in images]
        labels.append(np.full(len(images), label))
    return ImageSet(FileImages(root, Texts.pack(paths)), np.concatenate(labels), names)


def _class_folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _empty(root: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of class folders that gave no class."""
    return tuple(f"class {name!r}: its folder has no image" for name in _class_folders(root) if name not in names)


def _linked(root: Path) -> tuple[str, ...]:
    """What to say of images below linked folders, which are not read: links may lead round in circles."""
    links = [link for name in _class_folders(root) for link in _links_below(root / name)]
    images = sum(len(images_below(link)) for link in links)
    if not images:
        return ()
    first = links[0].relative_to(root).as_posix()
    where = f"{len(links)} linked folders, such as {first}" if len(links) > 1 else f"the linked folder {first}"
    return (f"left out below {where}: {images:,} image{'s' * (images > 1)}; put the images themselves there",)


def _links_below(folder: Path) -> list[Path]:
    found = []
    for place, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in folders if os.path.islink(os.path.join(place, name))]
    return found


def class_order(names: list[str]) -> tuple[str, ...]:
    """Names sorted as text; as numbers when all are numbers, so that 2 comes before 10."""
    return tuple(sorted(names, key=int) if all(name.isascii() and name.isdigit() for name in names) else sorted(names))


def _is_split(folder: Path) -> bool:
    """Whether a folder called train is a split: it holds folders, not images. A class may be called train, too."""
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return any(entry.is_dir() for entry in inside) or not any(entry.suffix.lower() in EXTENSIONS for entry in inside)


def images_below(folder: Path) -> list[str]:
    """Image files in a folder and below it, relative to it. Hidden files, such as macOS leaves, are no images."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(place, folder)
        prefix = "" if below == "." else f"{Path(below).as_posix()}/"
        images = (file for file in files if os.path.splitext(file)[1].lower() in EXTENSIONS)
        found += [prefix + file for file in images if not file.startswith(".")]
    return sorted(found)
