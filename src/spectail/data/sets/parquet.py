"""`parquet:PATH`: rows of encoded image and label, the layout that public hubs ship.

PATH is a file, or a folder of shards whose names or folders say train, test or validation. Columns are told from the
schema, class names from the hub's schema metadata when it has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..._utils.errors import MissingData
from ..._utils.files import array_digest, cache_folder, file_digest, is_sealed, seal, whole_folder
from ..config import DataConfig
from ..decoding import BrokenImage
from ..image_set import ImageSet
from ..images import EncodedImages, PackedImages
from .source import Source, as_class_ids

IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "png", "webp")
LABEL_NAMES = ("label", "labels", "fine_label", "target", "class", "class_id", "category", "cls", "y")
SPLITS = {"train": {"train", "training"}, "test": {"test", "testing"}, "val": {"val", "valid", "validation", "dev"}}
CHEAP = 1 << 30  # bytes that are hashed without asking


def open_source(config: DataConfig) -> Source:
    path = Path(config.dataset.removeprefix("parquet:")).expanduser()
    if not path.exists():
        raise MissingData(f"{config.dataset}: {path} does not exist; expected a parquet file or a folder of them.")
    return open_parquet(config, path)


def open_parquet(config: DataConfig, path: Path) -> Source:
    files = {split: _Shards(shards, config) for split, shards in _split_files(path).items()}
    labels = {split: shards.labels() for split, shards in files.items()}
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
    cheap = sum(file.stat().st_size for file in paths) <= CHEAP
    digests = {file.name: file_digest(file) for file in paths} if cheap else {}
    return Source(sets["train"], sets.get("test"), sets.get("val"), digests, tuple(notes))


def _split_files(path: Path) -> dict[str, list[Path]]:
    if path.is_file():
        return {"train": [path]}
    found: dict[str, list[Path]] = {}
    unknown = []
    for file in sorted(path.rglob("*.parquet")):
        split = _split_of(file.stem) or _split_of(file.relative_to(path).parent.as_posix())  # the file's own name first
        if split:
            found.setdefault(split, []).append(file)
        else:
            unknown.append(file)
    odd = next((file for file in unknown if re.search("test|val|train", file.stem.lower())), None)
    if odd is not None and len(unknown) + len(found) > 1:
        raise ValueError(
            f"which split is {odd}? Name files train, test or validation, with - or _ before what follows."
        )
    if not found and unknown:
        return {"train": unknown}
    if "train" not in found:
        what = f"only {', '.join(found)} files" if found else "no parquet file"
        raise MissingData(f"{path} has {what}; expected shards with 'train' (and 'test') in their names.")
    if unknown:
        raise ValueError(
            f"{path} has files that name no split, such as {unknown[0].name}, beside files that do. "
            "Give them 'train', 'test' or 'validation' in their name, or move them away."
        )
    return found


def _split_of(name: str) -> str:
    words = set(re.split(r"[^a-z]+", name.lower()))
    return next((split for split, known in SPLITS.items() if words & known), "")


class _Shards:
    """The files of one split, read as one table."""

    def __init__(self, paths: list[Path], config: DataConfig) -> None:
        self.paths = paths
        schemas = [_in_words(path, pq.read_schema) for path in paths]
        features = _hub_features(schemas[0])
        self.image = _pick(config.image_column, schemas[0], IMAGE_NAMES, _is_image, "image", "--image-column", paths[0])
        self.label = _pick(config.label_column, schemas[0], LABEL_NAMES, _is_label, "label", "--label-column", paths[0])
        for path, schema in zip(paths, schemas, strict=True):
            if not {self.image, self.label} <= set(schema.names):
                raise ValueError(f"{path} lacks the column {self.image!r} or {self.label!r} that {paths[0]} has.")
        names = features.get(self.label, {}).get("names")
        self.names = tuple(map(str, names)) if isinstance(names, list) else None
        kind = schemas[0].field(self.image).type
        self.leaf = f"{self.image}.bytes" if pa.types.is_struct(kind) else self.image

    def labels(self) -> NDArray[Any]:
        columns = []
        for path in self.paths:
            column = _in_words(path, pq.read_table, columns=[self.label]).column(0)
            if column.null_count:
                raise ValueError(f"{path}: {column.null_count} rows have no {self.label}. Fill or drop them.")
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            values = np.asarray(column.to_numpy())
            columns.append(values.astype(np.int64) if values.dtype == bool else values)
        return np.concatenate(columns)


NOTHING: tuple[int, Any, list[int]] = (-1, None, [])


class ParquetImages(EncodedImages):
    """Encoded images in parquet files. Reading in storage order is fast; one image alone costs its whole row group."""

    def __init__(self, paths: list[Path], leaf: str, rows: NDArray[np.int64] | None = None) -> None:
        self.paths = paths
        self.leaf = leaf
        self.groups: list[tuple[Path, int]] = []
        sizes = []
        for path in paths:
            metadata = pq.read_metadata(path)
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
        table = _in_words(path, lambda path: pq.ParquetFile(path).read_row_group(number, columns=[self.leaf]))
        column = table.column(0).combine_chunks()
        column = column.field(0) if pa.types.is_struct(column.type) else column
        column = column.cast(pa.large_binary())
        _, ends, data = column.buffers()
        places = np.frombuffer(ends, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
        return memoryview(data or b""), places.tolist()


def _in_words(path: Path, read: Callable[..., Any], **options: Any) -> Any:
    try:
        return read(path, **options)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as parquet ({str(error).splitlines()[0]}). Fetch it again.") from None


def _hub_features(schema: Any) -> dict[str, dict[str, Any]]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _is_image(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _is_image(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_label(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_label(kind.value_type)
    tests = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in tests)


def _pick(given: str | None, schema: Any, known: tuple[str, ...], fits: Any, what: str, flag: str, path: Path) -> str:
    """The column given, the one with a usual name, or the only one that fits."""
    fitting = [field.name for field in schema if fits(field.type)]
    if given is not None:
        if given not in fitting:
            kind = f" (it is of type {schema.field(given).type})" if given in schema.names else ""
            raise ValueError(
                f"{path} has no {what} column {given!r}{kind}; columns that could be one: "
                f"{', '.join(fitting) or 'none'}."
            )
        return given
    usual = [name for name in known if name in fitting]
    if usual or len(fitting) == 1:
        return (usual or fitting)[0]
    raise ValueError(
        f"{path}: which column is the {what}? Candidates: {', '.join(fitting) or 'none'}; all columns: "
        f"{', '.join(schema.names)}. Say it with {flag}."
    )
