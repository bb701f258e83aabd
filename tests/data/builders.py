"""Tiny data sets on disk, in the layouts that circulate. Every builder returns what it put there."""

import gzip
import hashlib
import io
import json
import pickle
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from spectail.data.sets import cifar


def noise(count, side=8, seed=0):
    """Random images, so that no two are alike."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def encode(array, form="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, form)
    return buffer.getvalue()


def write_image(path, array, form="PNG"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(array, form))
    return array


def class_folders(root, counts, side=8, seed=0, form="PNG", suffix=".png"):
    """``root/<class>/<k>.png``; returns the pixels by relative path, in sorted order of classes and files."""
    paths = [f"{name}/{k:03d}{suffix}" for name, count in sorted(counts.items()) for k in range(count)]
    return {
        path: write_image(root / path, array, form)
        for path, array in zip(paths, noise(len(paths), side, seed), strict=True)
    }


def split_folders(root, train, test, **kwargs):
    """``root/train/<class>/..`` and ``root/test/<class>/..``."""
    return class_folders(root / "train", train, **kwargs), class_folders(root / "test", test, **(kwargs | {"seed": 99}))


def folder_of_three(root, side=8):
    """Ten, six and three training images of three classes; two test images each."""
    return split_folders(root, {"ant": 10, "bee": 6, "cow": 3}, {"ant": 2, "bee": 2, "cow": 2}, side=side)


def pixels_of(data):
    """What a split delivers, image by image, through the way that training takes."""
    return [np.asarray(data[index][0]) for index in range(len(data))]


def write_parquet(
    path, images, labels, *, image="image", label="label", names=None, layout="struct", row_group_size=None, extra=None
):
    """Rows of encoded image and label. ``images`` are arrays, bytes, or None for a null."""
    values = [encode(value) if isinstance(value, np.ndarray) else value for value in images]
    if layout == "struct":
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        column = pa.array([{"bytes": value, "path": f"{i}.png"} for i, value in enumerate(values)], kind)
    else:
        column = pa.array(values, pa.binary())
    if isinstance(labels, pa.Array):
        marks = labels
    else:
        marks = pa.array(labels, pa.string() if any(isinstance(value, str) for value in labels) else pa.int64())
    table = pa.table({image: column, label: marks, **(extra or {})})
    if names is not None:
        features = {image: {"_type": "Image"}, label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)


class _Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 wrote its strings, as in the official archives."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def python2_pickle(value):
    buffer = io.BytesIO()
    _Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def cifar_row(image):
    """A row of a batch: 1024 red values, then 1024 green, then 1024 blue, each row by row."""
    row = np.empty(3072, dtype=np.uint8)
    for channel in range(3):
        row[channel * 1024 : (channel + 1) * 1024] = image[:, :, channel].ravel()
    return row


def md5(data):
    return hashlib.md5(data).hexdigest()


class FakeCifar:
    """An official archive with few images: CIFAR-10 with five batches, or CIFAR-100 with one and coarse labels."""

    def __init__(self, dataset="cifar10-lt", names=("airplane", "bird", "cat"), train=10, test=4):
        self.official = cifar.ARCHIVES[dataset].known
        self.label_key = {"cifar10-lt": b"labels", "cifar100-lt": b"fine_labels"}[dataset]
        self.names = names
        generator = np.random.default_rng(7)
        self.labels = {
            "train": generator.permutation(np.repeat(np.arange(len(names)), train)),
            "test": generator.permutation(np.repeat(np.arange(len(names)), test)),
        }
        self.images = {split: noise(len(labels), 32, seed=len(labels) + 1000) for split, labels in self.labels.items()}
        self.members = {}
        for split, members in (("train", self.official.train_list), ("test", self.official.test_list)):
            for rows, (member, _) in zip(
                np.array_split(np.arange(len(self.labels[split])), len(members)), members, strict=True
            ):
                content = {
                    b"data": np.stack([cifar_row(image) for image in self.images[split][rows]]),
                    self.label_key: self.labels[split][rows].tolist(),
                    b"filenames": [f"{split}_{row}.png".encode() for row in rows],
                }
                if self.label_key == b"fine_labels":
                    content[b"coarse_labels"] = [0] * len(rows)
                self.members[member] = python2_pickle(content)
        meta = self.official.meta
        self.members[meta["filename"]] = python2_pickle({meta["key"].encode(): [name.encode() for name in names]})
        self.per_class = (train, test)

    def entry(self, per_class=None, **changes):
        """The archive with the checksums of this one."""
        lists = {
            part: [[name, md5(self.members[name])] for name, _ in getattr(self.official, part)]
            for part in ("train_list", "test_list")
        }
        meta = self.official.meta | {"md5": md5(self.members[self.official.meta["filename"]])}
        values = {"tgz_md5": md5(self.archive()), "meta": meta, **lists, **changes}
        return cifar.Archive(type("Fake", (self.official,), values), per_class or self.per_class)

    def archive(self):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in self.members.items():
                member = tarfile.TarInfo(f"{self.official.base_folder}/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return gzip.compress(buffer.getvalue(), mtime=0)

    def write_archive(self, root):
        root.mkdir(parents=True, exist_ok=True)
        (root / self.official.filename).write_bytes(self.archive())

    def write_folder(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.members.items():
            (folder / name).write_bytes(content)

    def write_parquet(self, root, **kwargs):
        for split in ("train", "test"):
            path = root / f"{split}-00000-of-00001.parquet"
            write_parquet(
                path, list(self.images[split]), self.labels[split].tolist(), image="img", names=self.names, **kwargs
            )


def first_of_each(labels, counts):
    """Positions of the first ``counts[c]`` images of each class, class after class: the first-n rule by hand."""
    return [
        index for label, count in enumerate(counts) for index in np.flatnonzero(np.asarray(labels) == label)[:count]
    ]
