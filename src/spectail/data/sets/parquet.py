"""`parquet:PATH`: rows of encoded image and label, the layout that public hubs ship.

PATH is a file, or a folder of shards whose names or folders say train, test or validation. Columns are told from the
schema, class names from the hub's schema metadata when it has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..._utils.arrays import check_parquet
from ..._utils.errors import MissingData
from ..._utils.files import array_digest, cache_folder, is_sealed, seal, whole_folder
from ..config import DataConfig
from ..decoding import BrokenImage
from ..image_set import ImageSet
from ..images import EncodedImages, PackedImages
from .parquet_files import (
    IMAGE_NAMES,
    LABEL_NAMES,
    hub_names,
    in_words,
    is_image,
    is_label,
    pick,
    read_labels,
    split_files,
)
from .source import CHEAP, Source, as_class_ids, cheap_digests


def open_source(config: DataConfig) -> Source:
    path = Path(config.dataset.removeprefix("parquet:")).expanduser()
    if not path.exists():
        raise MissingData(f"{config.dataset}: {path} does not exist; expected a parquet file or a folder of them.")
    return open_parquet(config, path)


def open_parquet(config: DataConfig, path: Path) -> Source:
    files = {split: _Shards(shards, config) for split, shards in split_files(path).items()}
    labels = {split: read_labels(shards.paths, shards.label) for split, shards in files.items()}
    names = next((shards.names for shards in files.values() if shards.names), None)
    ids, names = as_class_ids(labels, names, remap=config.remap_labels, where=str(path))
    sets = {
        split: ImageSet(ParquetImages(shards.paths, shards.leaf), ids[split], names) for split, shards in files.items()
    }
    notes = []
    if "test" not in sets and "val" in sets:
        sets["test"] = sets.pop("val")
        notes.append("the validation file is used as test set: there is no test file")
    paths = [file for shards in files.values() for file in shards.paths]
    return Source(sets["train"], sets.get("test"), sets.get("val"), cheap_digests(paths), tuple(notes))


class _Shards:
    """The files of one split, read as one table."""

    def __init__(self, paths: list[Path], config: DataConfig) -> None:
        self.paths = paths
        schemas = [in_words(path, pq.read_schema) for path in paths]
        self.image = pick(config.image_column, schemas[0], IMAGE_NAMES, is_image, "image", "--image-column", paths[0])
        self.label = pick(config.label_column, schemas[0], LABEL_NAMES, is_label, "label", "--label-column", paths[0])
        for path, schema in zip(paths, schemas, strict=True):
            if not {self.image, self.label} <= set(schema.names):
                raise ValueError(f"{path} lacks the column {self.image!r} or {self.label!r} that {paths[0]} has.")
        self.names = hub_names(schemas[0], self.label)
        kind = schemas[0].field(self.image).type
        self.leaf = f"{self.image}.bytes" if pa.types.is_struct(kind) else self.image


NOTHING: tuple[int, Any, list[int]] = (-1, None, [])


class ParquetImages(EncodedImages):
    """Encoded images in parquet files. Reading in storage order is fast; one image alone costs its whole row group."""

    def __init__(self, paths: list[Path], leaf: str, rows: NDArray[np.int64] | None = None) -> None:
        self.paths = paths
        self.leaf = leaf
        self.groups: list[tuple[Path, int]] = []
        sizes = []
        for path in paths:
            metadata = in_words(path, pq.read_metadata)
            check_parquet(path, metadata, [leaf.partition(".")[0]])
            for group in range(metadata.num_row_groups):
                self.groups.append((path, group))
                sizes.append(metadata.row_group(group).num_rows)
        self.starts = [0, *itertools.accumulate(sizes)]
        self.rows = np.arange(self.starts[-1]) if rows is None else rows
        self._held = NOTHING

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": NOTHING}  # a worker reads its own row groups

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        row = int(self.rows[index])
        path, _ = self.groups[self._group(row)]
        first = next(start for start, (owner, _) in zip(self.starts, self.groups, strict=False) if owner == path)
        return f"{path.name} row {row - first}"

    @property
    def named(self) -> bool:
        return True

    def take(self, indices: NDArray[np.int64]) -> ParquetImages:
        return ParquetImages(self.paths, self.leaf, self.rows[indices])

    def encoded(self, index: int) -> memoryview:
        row = int(self.rows[index])
        group = self._group(row)
        if self._held[0] != group:
            self._held = (group, *self._read_group(group))
        _, data, ends = self._held
        at = row - self.starts[group]
        if ends[at] == ends[at + 1]:
            raise BrokenImage("holds no image bytes")
        found: memoryview = data[ends[at] : ends[at + 1]]
        return found

    def scan_order(self) -> NDArray[np.int64]:
        return np.argsort(self.rows, kind="stable")

    def fingerprint(self) -> str:
        stats = [(path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        key = f"{[str(path.resolve()) for path in self.paths]}-{self.leaf}-{array_digest(np.array(stats), self.rows)}"
        return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()

    def index_digest(self) -> str:
        """The row numbers. They say little without the digests of the files, which the manifest records too."""
        return array_digest(self.rows)

    def for_random_access(self) -> EncodedImages:
        """All images one after the other in a memory-mapped file of the cache, written once."""
        folder = cache_folder() / "packed" / self.fingerprint()
        if not (is_sealed(folder / "index.npy") and is_sealed(folder / "images.bin", limit=CHEAP)):
            if folder.exists():  # damaged: out of the way first, another process may be at it too
                with contextlib.suppress(OSError):
                    aside = Path(tempfile.mkdtemp(dir=folder.parent))
                    folder.rename(aside / "damaged")
                    shutil.rmtree(aside)
            with whole_folder(folder) as temporary:
                self._pack(temporary)
        starts, sizes = np.load(folder / "index.npy")
        data = np.memmap(folder / "images.bin", dtype=np.uint8, mode="r")
        return PackedImages(data, starts, sizes, self)

    def _pack(self, folder: Path) -> None:
        index = np.zeros((2, len(self)), dtype=np.int64)
        with (folder / "images.bin").open("wb") as file:
            for position in self.scan_order().tolist():
                try:
                    value = self.encoded(position)
                except BrokenImage:
                    value = memoryview(b"")  # reading it will say that it is empty
                index[:, position] = file.tell(), len(value)
                file.write(value)
            if not file.tell():
                raise ValueError(f"{self.paths[0]} holds no image bytes in column {self.leaf!r}.")
        np.save(folder / "index.npy", index)
        for name in ("images.bin", "index.npy"):
            seal(folder / name)

    def _group(self, row: int) -> int:
        return bisect_right(self.starts, row) - 1

    def _read_group(self, group: int) -> tuple[memoryview, list[int]]:
        """The bytes of a row group, one after the other, and where each image begins; a null has no bytes."""
        path, number = self.groups[group]
        table = in_words(path, lambda path: pq.ParquetFile(path).read_row_group(number, columns=[self.leaf]))
        column = table.column(0).combine_chunks()
        column = column.field(0) if pa.types.is_struct(column.type) else column
        column = column.cast(pa.large_binary())
        _, ends, data = column.buffers()
        places = np.frombuffer(ends, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
        return memoryview(data or b""), places.tolist()
