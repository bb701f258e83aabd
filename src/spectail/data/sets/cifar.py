"""CIFAR-10 and CIFAR-100, from the official Python archive or from parquet files.

Addresses and checksums are torchvision's. Its reader wants the archive unpacked and forgets the names of the images, so
the pickles inside are read here, each only after its checksum matches.
"""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._utils import torchvision_ops  # noqa: F401 - before torchvision
from ..._utils.files import cache_folder, download, file_digest
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import ArrayImages, Texts
from . import parquet
from .source import Source, existing_folder

from torchvision.datasets import CIFAR10, CIFAR100  # isort: skip


class Archive(NamedTuple):
    """An official archive as torchvision describes it, and how many images a class has in training and test."""

    known: type[CIFAR10]
    per_class: tuple[int, int]

    @property
    def members(self) -> dict[str, str]:
        """The files in it, with their MD5."""
        meta = {self.known.meta["filename"]: self.known.meta["md5"]}
        return {**dict(self.known.train_list), **dict(self.known.test_list), **meta}


ARCHIVES = {"cifar10-lt": Archive(CIFAR10, (5000, 1000)), "cifar100-lt": Archive(CIFAR100, (500, 100))}


def open_source(config: DataConfig) -> Source:
    archive = ARCHIVES[config.dataset]
    source = _find(config, archive)
    if source.test is None:
        raise ValueError(f"{config.dataset} expects a train and a test file; only train was found. Add the test file.")
    for split, data, expected in zip(("train", "test"), (source.train, source.test), archive.per_class, strict=True):
        counts = data.counts
        label = next((i for i, count in enumerate(counts.tolist()) if count != expected), None)
        if label is not None:
            raise ValueError(
                f"{config.dataset} expects {expected} {split} images in each class; {counts.describe(label)} has "
                f"{counts.tolist()[label]}. Use the complete original set, or parquet:PATH for a set of your own."
            )
    return source


def _find(config: DataConfig, archive: Archive) -> Source:
    """The unpacked folder, the archive, parquet files, or a download, in this order."""
    if config.root is not None and config.root.suffix != ".parquet":
        existing_folder(config.root, config.dataset, f"{archive.known.filename}, its unpacked folder, or parquet files")
    root = config.root if config.root is not None else cache_folder() / "downloads"
    for folder in (root / archive.known.base_folder, root):
        if all((folder / name).is_file() for name in archive.members):
            _check_columns(config, root)
            return _read({name: _verified(folder / name, md5) for name, md5 in archive.members.items()}, archive)
    packed = root / archive.known.filename
    if not packed.is_file() and (root.suffix == ".parquet" or (root.is_dir() and any(root.rglob("*.parquet")))):
        return parquet.open_parquet(config, root)
    _check_columns(config, root)
    if not packed.is_file():
        download(archive.known.url, packed, archive.known.tgz_md5)
    return _unpack(packed, archive)


def _check_columns(config: DataConfig, root: Path) -> None:
    if config.image_column is not None or config.label_column is not None:
        raise ValueError(
            f"--image-column and --label-column mean nothing here: {root} has the archive, no parquet file."
        )


def _verified(path: Path, md5: str) -> bytes:
    found = file_digest(path, "md5")
    if found != md5:
        raise ValueError(
            f"{path} has MD5 {found}, expected {md5}: it is damaged or not the official file, and it is not opened. "
            "Delete it and fetch the archive again."
        )
    return path.read_bytes()


def _unpack(path: Path, archive: Archive) -> Source:
    _verified(path, archive.known.tgz_md5)
    content = {}
    with tarfile.open(path) as tar:
        for name in archive.members:
            member = tar.extractfile(f"{archive.known.base_folder}/{name}")
            assert member is not None  # the checksum matched
            content[name] = member.read()
    return _read(content, archive)


def _read(content: dict[str, bytes], archive: Archive) -> Source:
    known = archive.known
    names = [name.decode() for name in _load(content[known.meta["filename"]])[known.meta["key"].encode()]]

    def split(members: list[list[str]]) -> ImageSet:
        batches = [_load(content[name]) for name, _ in members]  # stored order: the batches one after the other
        rows = np.concatenate([batch[b"data"] for batch in batches])
        pixels = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels = [batch[b"labels" if b"labels" in batch else b"fine_labels"] for batch in batches]
        files = Texts.pack(name.decode() for batch in batches for name in batch[b"filenames"])
        return ImageSet(ArrayImages(pixels, files), np.concatenate(labels), names)

    return Source(split(known.train_list), split(known.test_list), files={known.filename: f"md5:{known.tgz_md5}"})


def _load(data: bytes) -> dict[bytes, Any]:
    content: dict[bytes, Any] = pickle.loads(data, encoding="bytes")
    return content
