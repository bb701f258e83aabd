"""ImageNet-LT: by its official lists, or under its own name an exponential subset of ILSVRC-2012.

The two are different sets of different size; their numbers never belong in one column.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ..._utils.errors import MissingData
from ..._utils.files import file_digest
from ...counts import ClassCounts
from ..catalog import find
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import FileImages, Texts
from .folder import read_folder
from .lists import check_inside, check_numbers, read_list
from .source import Source, existing_folder

LISTS = {split: f"ImageNet_LT_{split}.txt" for split in ("train", "val", "test")}
IMAGES = {"train": find("imagenet-lt").images, "val": 20_000, "test": find("imagenet-lt").test}
PER_CLASS = {"val": 20, "test": 50}
GROUPS = {"head": 385, "medium": 479, "tail": 136}
OFFICIAL = {  # SHA-256 with LF line ends
    "val": "9af7ba688acf9532ff5845a8fb14a1e97fdc4c51ac48bc72c08ea9c3f7ff142e",
    "test": "d1590191cf8a71fada7b1aaedaa2d139a2aea93ff2f1b755319d0bd8dbaa55d5",
}


def open_source(config: DataConfig) -> Source:
    """The official lists, checked against the published facts."""
    root = existing_folder(config.root, config.dataset, "the ILSVRC-2012 folders train and val")
    folder = config.lists if config.lists is not None else root
    missing = [name for name in LISTS.values() if not (folder / name).is_file()]
    if missing:
        raise MissingData(
            f"{folder} lacks {', '.join(missing)}. ImageNet-LT is defined by its lists: put them there, or say where "
            "they are with --lists. For a set drawn by the exponential rule use imagenet-lt-exp."
        )
    parts = {split: read_list(folder / name) for split, name in LISTS.items()}
    for split, (paths, labels) in parts.items():
        check_numbers(labels, folder / LISTS[split])
        if len(labels) != IMAGES[split]:
            raise ValueError(
                f"{folder / LISTS[split]} should have {IMAGES[split]:,} lines, found {len(labels):,}. "
                "For lists of your own use list:FILE."
            )
        if split in PER_CLASS and set(np.bincount(labels).tolist()) != {PER_CLASS[split]}:
            raise ValueError(
                f"{folder / LISTS[split]} should have {PER_CLASS[split]} images of each of 1,000 classes. "
                "For lists of your own use list:FILE."
            )
        check_inside(paths, root, folder / LISTS[split])
    _check_facts(parts["train"][1], folder)
    held = set(parts["val"][0])
    shared = next((path for path in parts["train"][0] if path in held), None)
    if shared is not None:
        raise ValueError(f"{shared} is in both the train and the val list of {folder}; they must be disjoint.")
    wnids = _wnids(*parts["train"])
    sets = {
        split: ImageSet(FileImages(root, _existing(root, paths, labels, wnids)), labels, wnids)
        for split, (paths, labels) in parts.items()
    }
    texts = {split: (folder / LISTS[split]).read_bytes().replace(b"\r\n", b"\n") for split in OFFICIAL}
    official = all(hashlib.sha256(texts[split]).hexdigest() == digest for split, digest in OFFICIAL.items())
    notes = () if official else ("the bytes of the val or test list differ from the official ones (counts agree)",)
    digests = {name: file_digest(folder / name) for name in LISTS.values()}
    return Source(sets["train"], sets["test"], sets["val"], digests, notes)


def open_exponential(config: DataConfig) -> Source:
    """ILSVRC-2012 itself; the profile is applied to it, capped by what each class has."""
    root = existing_folder(config.root, config.dataset, "the ILSVRC-2012 folders train and val, one folder per wnid")
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise MissingData(f"{root} has no folder '{split}'; {config.dataset} expects train and val in it.")
    train = read_folder(root / "train")
    test = read_folder(root / "val", train.names)
    return Source(train, test, notes=("the ILSVRC validation images are the test set",))


def _check_facts(labels: np.ndarray, folder: Path) -> None:
    counts = ClassCounts(np.bincount(labels))
    groups = {group: len(members) for group, members in counts.groups().items()}
    found = (len(counts), int(counts.counts.max()), int(counts.counts.min()), groups)
    if found != (1000, 1280, 5, GROUPS):
        raise ValueError(
            f"{folder / LISTS['train']} should have 1,000 classes of 1,280 to 5 images, 385/479/136 head/medium/tail; "
            f"found {found[0]:,} classes of {found[1]:,} to {found[2]:,}, {'/'.join(map(str, groups.values()))}. "
            "For lists of your own use list:FILE."
        )


def _wnids(paths: Texts, labels: np.ndarray) -> tuple[str, ...]:
    """Class names: the folder of the first training image of each class. Labels follow the sorted wnids."""
    _, first = np.unique(labels, return_index=True)
    wnids = tuple(Path(paths[int(position)]).parent.name for position in first)
    if list(wnids) != sorted(wnids):
        raise ValueError("the labels of the training list should follow the sorted wnids; they do not.")
    return wnids


def _existing(root: Path, paths: Texts, labels: np.ndarray, wnids: tuple[str, ...]) -> Texts:
    """The paths as the tree has them: lists and trees come with and without a wnid folder around the val images."""
    if (root / paths[0]).exists():
        return paths
    first, wnid = Path(paths[0]), wnids[int(labels[0])]
    nested = first.parent.name != wnid
    other = first.parent / wnid / first.name if nested else first.parent.parent / first.name
    if not (root / other).exists():
        return paths  # the check of the files will name what is missing
    if nested:
        moved = (f"{Path(path).parent.as_posix()}/{wnids[label]}/{Path(path).name}"
                 for path, label in zip(paths, labels.tolist(), strict=True))  # fmt: skip
    else:
        moved = (f"{Path(path).parent.parent.as_posix()}/{Path(path).name}" for path in paths)
    return Texts.pack(moved)
