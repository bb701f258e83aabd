"""CIFAR-10 and CIFAR-100, from the official Python archive or from parquet files.

The archive holds pickles. They are opened only after their checksum matches, and even then by a reader that builds
arrays and plain containers and nothing else.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._utils.files import cache_folder, download, file_digest
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import ArrayImages, Texts
from . import parquet
from .source import Source, existing_folder


@dataclass(frozen=True)
class Archive:
    """The official archive: its address, its members with their MD5, and the keys inside."""

    url: str
    md5: str
    folder: str
    train: dict[str, str]
    test: dict[str, str]
    meta: dict[str, str]
    labels: bytes
    names: bytes
    per_class: tuple[int, int]

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]

    @property
    def members(self) -> dict[str, str]:
        return {**self.train, **self.test, **self.meta}


ARCHIVES = {
    "cifar10-lt": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        labels=b"labels",
        names=b"label_names",
        per_class=(5000, 1000),
    ),
    "cifar100-lt": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels=b"fine_labels",
        names=b"fine_label_names",
        per_class=(500, 100),
    ),
}


def open_source(config: DataConfig) -> Source:
    archive = ARCHIVES[config.dataset]
    source = _find(config, archive)
    if source.test is None:
        raise ValueError(f"{config.dataset} expects a train and a test file; only train was found. Add the test file.")
    for split, data, expected in zip(("train", "test"), (source.train, source.test), archive.per_class, strict=True):
        counts = data.counts
        if any(count != expected for count in counts.tolist()):
            label = next(i for i, count in enumerate(counts.tolist()) if count != expected)
            raise ValueError(
                f"{config.dataset} expects {expected} {split} images in each class; {counts.describe(label)} has "
                f"{counts.tolist()[label]}. Use the complete original set, or parquet:PATH for a set of your own."
            )
    return source


def _find(config: DataConfig, archive: Archive) -> Source:
    """The unpacked folder, the archive, parquet files, or a download, in this order."""
    if config.root is not None and config.root.suffix != ".parquet":
        existing_folder(config.root, config.dataset, f"{archive.file}, its unpacked folder, or parquet files")
    root = config.root if config.root is not None else cache_folder() / "downloads"
    for folder in (root / archive.folder, root):
        if all((folder / name).is_file() for name in archive.members):
            _check_columns(config, root)
            return _read({name: _verified(folder / name, md5) for name, md5 in archive.members.items()}, archive)
    packed = root / archive.file
    if not packed.is_file() and (root.suffix == ".parquet" or (root.is_dir() and any(root.rglob("*.parquet")))):
        return parquet.open_parquet(config, root)
    _check_columns(config, root)
    if not packed.is_file():
        download(archive.url, packed, archive.md5)
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
    _verified(path, archive.md5)
    content = {}
    with tarfile.open(path) as tar:
        for name in archive.members:
            member = tar.extractfile(f"{archive.folder}/{name}")
            assert member is not None  # the checksum matched
            content[name] = member.read()
    return _read(content, archive)


def _read(content: dict[str, bytes], archive: Archive) -> Source:
    (meta,) = archive.meta
    names = [name.decode() for name in _load(content[meta])[archive.names]]

    def split(members: dict[str, str]) -> ImageSet:
        batches = [_load(content[name]) for name in members]  # stored order: the batches one after the other
        rows = np.concatenate([batch[b"data"] for batch in batches])
        pixels = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels = np.concatenate([np.asarray(batch[archive.labels], dtype=np.int64) for batch in batches])
        files = Texts.pack(name.decode() for batch in batches for name in batch[b"filenames"])
        return ImageSet(ArrayImages(pixels, files), labels, names)

    return Source(split(archive.train), split(archive.test), files={archive.file: f"md5:{archive.md5}"})


class _ArraysOnly(pickle.Unpickler):
    """Refuses every class but the ones that NumPy arrays are made of."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin
        raise ValueError(f"a CIFAR batch must hold arrays only; it asks for {module}.{name} and is not opened.")


def _encode_latin(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


def _load(data: bytes) -> dict[bytes, Any]:
    content: dict[bytes, Any] = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    return content
