"""iNaturalist 2018, from the lists that long-tail papers share or from the competition's JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._utils.errors import MissingData
from ..._utils.files import file_digest
from ...counts import ClassCounts
from ..catalog import find
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import FileImages, Texts
from .lists import check_inside, check_numbers, read_list
from .source import Source, existing_folder

FACTS = find("inat2018")
CLASSES, TRAIN, VAL = FACTS.classes, FACTS.images, FACTS.test
LISTS = {"train": "iNaturalist18_train.txt", "val": "iNaturalist18_val.txt"}
JSONS = {"train": "train2018.json", "val": "val2018.json"}


def open_source(config: DataConfig) -> Source:
    root = existing_folder(config.root, config.dataset, "train_val2018 and the lists or JSON files")
    folder = config.lists if config.lists is not None else root
    for files, read in ((LISTS, read_list), (JSONS, read_json)):
        if all((folder / name).is_file() for name in files.values()):
            parts = {split: read(folder / name) for split, name in files.items()}
            break
    else:
        raise MissingData(
            f"{folder} has neither {' and '.join(LISTS.values())} nor {' and '.join(JSONS.values())}. "
            "Put one pair there, or say where it is with --lists."
        )
    for (split, (paths, labels)), expected in zip(parts.items(), (TRAIN, VAL), strict=True):
        check_numbers(labels, folder / files[split])
        counts = ClassCounts(np.bincount(labels, minlength=2))
        if len(labels) != expected or len(counts) != CLASSES or int(counts.counts.min()) < 1:
            raise ValueError(
                f"{folder / files[split]} should name {expected:,} images of {CLASSES:,} classes; found "
                f"{len(labels):,} of {int((counts.counts > 0).sum()):,}. For lists of your own use list:FILE."
            )
        check_inside(paths, root, folder / files[split])
    names = _class_names(folder)
    sets = {split: ImageSet(FileImages(root, paths), labels, names) for split, (paths, labels) in parts.items()}
    digests = {name: file_digest(folder / name) for name in files.values()}
    notes = (
        "the validation images are the test set, three per class: look at the bottom classes together, not one by one",
    )
    return Source(sets["train"], sets["val"], files=digests, notes=notes)


def read_json(path: Path) -> tuple[Texts, NDArray[np.int64]]:
    """COCO-like annotations, joined on image_id: images and annotations need not be in the same order."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        images: list[dict[str, Any]] = content["images"]
        category = {entry["image_id"]: int(entry["category_id"]) for entry in content["annotations"]}
        missing = next((image["file_name"] for image in images if image["id"] not in category), None)
        if missing is not None:
            raise ValueError(f"{path}: {missing} has no annotation.")
        if not images:
            raise ValueError(f"{path} names no image.")
        return Texts.pack(image["file_name"] for image in images), np.array([category[image["id"]] for image in images])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} should hold images and annotations as released in 2018; {error} is off.") from None


def _class_names(folder: Path) -> tuple[str, ...]:
    """Species from categories.json when it is there; the JSON of 2018 has placeholders only."""
    try:
        entries = json.loads((folder / "categories.json").read_text(encoding="utf-8"))
        named = {int(entry["id"]): str(entry["name"]) for entry in entries}
        names = tuple(named[label] for label in range(CLASSES))
    except (OSError, ValueError, KeyError, TypeError):
        return tuple(map(str, range(CLASSES)))
    return names if len(set(names)) == CLASSES else tuple(f"{name} ({label})" for label, name in enumerate(names))
