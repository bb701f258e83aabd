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
from .source import Source, as_class_ids

HEADER = {b"label", b"labels", b"class", b"class_id", b"class_name", b"target", b"category", b"y"}
TEST_NAMES = ("test", "val", "valid", "validation")


def open_source(config: DataConfig) -> Source:
    path = Path(config.dataset.removeprefix("list:")).expanduser()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise MissingData(f"{config.dataset}: {path} {what}; expected a file of 'path label' lines.")
    root = config.root if config.root is not None else path.parent
    test, notes = config.test_list, []
    if test is None:
        siblings = (path.with_name(path.name.replace("train", word)) for word in TEST_NAMES)
        test = next((other for other in siblings if other != path and other.is_file()), None)
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
    data, ends, numbers = bytearray(), array("q"), array("q")
    words: list[bytes] = []
    first, commas = True, False
    content = path.read_bytes()
    plain = content.isascii() and b"\\" not in content and b"\0" not in content  # then no path needs a look
    for number, raw in enumerate(io.BytesIO(content), start=1):
        line = raw.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else raw.strip()
        if not line or line.startswith(b"#"):
            continue
        fields = line.rsplit(b",", 1) if commas else _fields(line)
        if first:
            first = False
            if fields[-1].strip(b'" ').lower() in HEADER:
                commas = b"," in line
                continue
        name, label = fields[0].rstrip(b" \t,").strip(b'"'), fields[-1].strip(b' \t"')
        too_large = len(label) > 18 and label.removeprefix(b"-").isdigit()  # for 64 bits
        if len(fields) < 2 or not name or too_large or not (plain or _is_clean(name, label)):
            raise ValueError(f"{path} line {number}: {_fault(line, fields[0])}")
        words.append(label)
        numbers.append(number)
        data += name
        ends.append(len(data))
    if not ends:
        raise ValueError(f"{path} has no 'path label' line.")
    return Texts(bytes(data), np.frombuffer(ends, dtype=np.int64)), _labels(words, path, numbers)


def _is_clean(name: bytes, label: bytes) -> bool:
    """Whether both are UTF-8, and the path has neither a backslash nor a NUL."""
    try:
        label.decode()
        return not {"\\", "\0"} & set(name.decode())
    except UnicodeError:
        return False


def _fields(line: bytes) -> list[bytes]:
    """Path and label: parted by the last tab; else by white space before a number; else by the last comma or space."""
    if b"\t" in line:
        return line.rsplit(b"\t", 1)
    fields = line.rsplit(None, 1)
    return line.rsplit(b",", 1) if b"," in line and not fields[-1].isdigit() else fields


def _labels(words: list[bytes], path: Path, numbers: array[int]) -> NDArray[Any]:
    """Numbers, or names if there are any; a slip of the pen among numbers must not turn them all into names."""
    odd = [at for at, word in enumerate(words) if not word.removeprefix(b"-").isdigit()]
    if not odd:
        return np.array([int(word) for word in words], dtype=np.int64)  # negative ones are refused later
    if len(odd) < len(words) / 10:
        raise ValueError(
            f"{path} line {numbers[odd[0]]}: the labels are numbers except {words[odd[0]].decode()!r}; write it as a "
            "number, or all as names."
        )
    return np.array([word.decode() for word in words])


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
    first_letters = np.frombuffer(paths.data + b" ", dtype=np.uint8)[np.concatenate([[0], paths.ends[:-1]])]
    if b".." not in paths.data and not (first_letters == ord("/")).any():
        return
    base = os.path.abspath(root)
    for path in paths:
        resolved = posixpath.normpath(posixpath.join(base, path))
        if resolved != base and not resolved.startswith(base.rstrip("/") + "/"):
            raise ValueError(
                f"{where}: {path!r} leads out of the root {root}. Lists may only name files below the root; "
                "set --root to the folder that holds them."
            )
