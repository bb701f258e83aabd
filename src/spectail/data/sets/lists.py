"""`list:FILE`: lines of "path label", in the dialects that circulate.

Labels are numbers or names. Fields are separated by tab, white space or comma; the last one counts, so paths may hold
spaces. Lines may end in CR LF, the last one in nothing. A byte order mark, a header, quotes, empty lines and # comments
are fine.
"""

from __future__ import annotations

import io
import os
import posixpath
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._utils.errors import MissingData
from ..._utils.files import file_digest
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import FileImages, Texts
from .labels import as_class_ids
from .source import Source

HEADER = {b"label", b"labels", b"class", b"class_id", b"target", b"category", b"y"}
TEST_NAMES = ("test", "val", "valid", "validation")


def open_source(config: DataConfig) -> Source:
    path = Path(config.dataset.removeprefix("list:")).expanduser()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise MissingData(f"{config.dataset}: {path} {what}; expected a file of 'path label' lines.")
    root = config.root if config.root is not None else path.parent
    test, notes = config.test_list, []
    if test is None:
        test = _sibling(path)
        notes = [f"the test list {test.name} was found beside the training list"] if test else []
    elif not test.is_file():
        raise MissingData(f"--test-list {test} does not exist.")
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
    first, commas = True, False
    content = path.read_bytes()
    plain = content.isascii() and b"\\" not in content and b"\0" not in content  # then no path needs a look
    with io.BytesIO(content) as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else raw.strip()
            if not line or line.startswith(b"#"):
                continue
            fields = line.rsplit(b",", 1) if commas else _fields(line)
            if first:
                first = False
                if fields[-1].strip(b'" ').lower() in HEADER:
                    commas = b"," in line
                    continue
            try:
                name, label = fields
                name, label = name.rstrip(b" \t,").strip(b'"'), label.strip(b' \t"')
                if not plain:
                    name.decode()
                if not name or not (plain or (b"\0" not in name and b"\\" not in name)):
                    raise ValueError
                if names:
                    words.append(label.decode())
                else:
                    numbers.append(int(label) if label.isdigit() else _negative(label))
            except (ValueError, OverflowError) as error:
                if not names and len(fields) == 2 and not isinstance(error, OverflowError | UnicodeError):
                    raise _NotNumbers from None  # once more with names; if the path is at fault, it will be said then
                raise ValueError(f"{path} line {number}: {_fault(line, fields[0])}") from None
            data += name
            ends.append(len(data))
    if not ends:
        raise ValueError(f"{path} has no 'path label' line.")
    if names:
        _check_words(words, path)
    labels = np.array(words) if names else np.frombuffer(numbers, dtype=np.int64)
    return Texts(bytes(data), np.frombuffer(ends, dtype=np.int64)), labels


def _negative(label: bytes) -> int:
    """A negative number, which is refused later in better words; int() alone would also take 1_0."""
    return -int(label[1:]) if label[:1] == b"-" and label[1:].isdigit() else int(b"")


def _fields(line: bytes) -> list[bytes]:
    """Path and label: parted by the last tab; else by white space before a number; else by the last comma or space."""
    if b"\t" in line:
        return line.rsplit(b"\t", 1)
    fields = line.rsplit(None, 1)
    return line.rsplit(b",", 1) if b"," in line and not fields[-1].isdigit() else fields


def _check_words(words: list[str], path: Path) -> None:
    """A slip of the pen among numbers must not turn them all into names."""
    odd = [word for word in words if not word.removeprefix("-").isdigit()]
    if 0 < len(odd) < len(words) / 10:
        raise ValueError(f"{path}: the labels are numbers except {odd[0]!r}; write it as a number, or all as names.")


def _fault(line: bytes, path: bytes) -> str:
    if b"\\" in path:
        return f"{path.decode(errors='backslashreplace')!r} has a backslash; write paths with '/'."
    shown = line.decode(errors="backslashreplace")[:80]
    return f"expected 'path label' in UTF-8, with a label that is a class name or a number; got {shown!r}."


def check_numbers(labels: NDArray[Any], path: Path) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        odd = next(label for label in labels.tolist() if not label.isdigit())
        raise ValueError(f"the labels of {path} must be numbers; got {odd!r}.")
    if labels.min() < 0:
        raise ValueError(f"the labels of {path} must be 0 or more; got {labels.min()}.")


def check_inside(paths: Texts, root: Path, where: Path) -> None:
    """Refuse paths that leave the root. Only lists that could hold one are looked at path by path."""
    if b".." not in paths.data and paths.data[:1] != b"/" and not _any_absolute(paths):
        return
    base = os.path.abspath(root)
    for path in paths:
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
