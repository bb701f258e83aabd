"""`list:FILE`: lines of "path label", in the dialects that circulate.

Labels are numbers or names. Fields are separated by tab, white space or comma; the last one counts, so paths may hold
spaces. Lines may end in CR LF, the last one in nothing. A byte order mark, a header, quotes, empty lines and # comments
are fine.
"""

from __future__ import annotations

import os
import posixpath
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..images import FileImages, Texts
from ..imageset import ImageSet
from ..storage import file_digest
from .labels import as_class_ids
from .source import Source

HEADER = {b"label", b"labels", b"class", b"class_id", b"target", b"category", b"y"}
TEST_NAMES = ("test", "val", "valid", "validation")


def open_source(config: DataConfig) -> Source:
    path = Path(config.dataset.removeprefix("list:"))
    if not path.is_file():
        raise FileNotFoundError(f"{config.dataset}: {path} does not exist; expected a file of 'path label' lines.")
    root = config.root if config.root is not None else path.parent
    test, notes = config.test_list, []
    if test is None:
        test = _sibling(path)
        notes = [f"the test list {test.name} was found beside the training list"] if test else []
    elif not test.is_file():
        raise FileNotFoundError(f"--test-list {test} does not exist.")
    lists = {"train": path} | ({"test": test} if test else {})
    parts = {split: read_list(file) for split, file in lists.items()}
    for split, (paths, _) in parts.items():
        check_inside(paths, root, lists[split])
    ids, names = as_class_ids(
        {split: labels for split, (_, labels) in parts.items()}, None, remap=config.remap_labels, where=str(path)
    )
    sets = {split: ImageSet(FileImages(root, paths), ids[split], names) for split, (paths, _) in parts.items()}
    digests = {file.name: file_digest(file) for file in lists.values()}
    return Source(sets["train"], sets.get("test"), None, digests, tuple(notes))


def read_list(path: Path) -> tuple[Texts, NDArray[Any]]:
    """Paths and labels of a list file; labels are int64, or strings if any of them is not a number."""
    try:
        return _parse(path, names=False)
    except _NotNumbers:
        return _parse(path, names=True)


class _NotNumbers(Exception):
    pass


def _parse(path: Path, *, names: bool) -> tuple[Texts, NDArray[Any]]:
    data, ends, numbers, words = bytearray(), array("q"), array("q"), []
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.strip(b"\xef\xbb\xbf \t\r\n") if number == 1 else raw.strip()
            if not line or line.startswith(b"#"):
                continue
            fields = _fields(line)
            if len(fields) != 2:
                raise ValueError(
                    f"{path} line {number}: expected 'path label', got {line.decode(errors='replace')[:80]!r}."
                )
            name, label = fields[0].rstrip(b" \t,").strip(b'"'), fields[1].strip(b' \t"')
            if number == 1 and label.lower() in HEADER:
                continue
            if names:
                words.append(label.decode())
            else:
                try:
                    numbers.append(int(label))
                except ValueError:
                    raise _NotNumbers from None
            data += name
            ends.append(len(data))
    if not ends:
        raise ValueError(f"{path} has no 'path label' line.")
    labels = np.array(words) if names else np.frombuffer(numbers, dtype=np.int64)
    return Texts(bytes(data), np.frombuffer(ends, dtype=np.int64)), labels


def _fields(line: bytes) -> list[bytes]:
    """Path and label: at the last tab, else the last white space, else (also within the last word) the last comma."""
    if b"\t" in line:
        return line.rsplit(b"\t", 1)
    fields = line.rsplit(None, 1)
    return line.rsplit(b",", 1) if b"," in fields[-1] else fields


def check_inside(paths: Texts, root: Path, where: Path) -> None:
    """Refuse paths that leave the root. Only lists that could hold one are looked at path by path."""
    if b".." not in paths.data and paths.data[:1] != b"/" and not _any_absolute(paths) and b"\\" not in paths.data:
        return
    base = os.path.abspath(root)
    for position, path in enumerate(paths):
        if "\\" in path:
            raise ValueError(f"{where} line {position + 1}: {path!r} has a backslash; write paths with '/'.")
        resolved = posixpath.normpath(posixpath.join(base, path))
        if resolved != base and not resolved.startswith(base.rstrip("/") + "/"):
            raise ValueError(
                f"{where}: {path!r} leads out of the root {root}. Lists may only name files below the root; "
                "set --root to the folder that holds them."
            )


def _any_absolute(paths: Texts) -> bool:
    """Whether a path begins with '/': the byte after the end of the path before it."""
    data = np.frombuffer(paths.data, dtype=np.uint8)
    return bool((data[paths.ends[:-1]] == ord("/")).any()) if len(paths) > 1 else False


def _sibling(path: Path) -> Path | None:
    """The test list that goes with a training list: the same name with another split in it."""
    for word in TEST_NAMES:
        other = path.with_name(path.name.replace("train", word))
        if other != path and other.is_file():
            return other
    return None
