"""Arrays in .npy and .npz files, and how large they may become. Nothing is unpickled, and no claim of size believed."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from .errors import first_line, is_lack_of_memory

LARGE = 1 << 28
GROWTH = 100
"""What is larger than 256 MB and a hundred times its size in the file is no data, but meant to fill memory."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What NumPy writes."""
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError)


def check_growth(path: Path, what: str, size: int, stored: int, advice: str) -> None:
    """Refuse a part of a file that would become much larger than anything that was stored for use."""
    if size > max(LARGE, GROWTH * stored):
        raise ValueError(
            f"{path}: {what} would take {size / 1e9:,.1f} GB of memory, {size // max(stored, 1):,} times its size in "
            f"the file, and is not read. {advice}"
        )


def check_parquet(path: Path, metadata: Any, columns: Iterable[str]) -> None:
    """The same for columns of a parquet file, by what its metadata say about rows and sizes."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for name in columns:
        rows, size, stored = max(metadata.num_rows, sum(group.num_rows for group in groups)), 0, 0
        for group in groups:
            for part in map(group.column, range(group.num_columns)):
                if f"{part.path_in_schema}.".startswith(f"{name}."):
                    size += max(part.total_uncompressed_size, 8 * part.num_values)
                    stored += part.total_compressed_size
        stored = min(stored, path.stat().st_size)  # it may say anything
        check_growth(path, f"column {name!r}", max(size, 8 * rows), stored, "Write it again with plain columns.")


def read_npy(path: Path) -> NDArray[Any]:
    """The array in a .npy file."""
    try:
        with path.open("rb") as file:
            if file.read(6) != npy.MAGIC_PREFIX:
                raise ValueError(f"{path} is no .npy file, or a damaged one; write it again with numpy.save.")
            file.seek(0)
            _check_header(file, path.stat().st_size, path)
            file.seek(0)
            return _read(file, path)
    except EOFError:
        raise refused(path) from None


class Npz:
    """The arrays of an open .npz file, by name."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self.members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        self.names = list(self.members)

    def __getitem__(self, name: str) -> NDArray[Any]:
        info, path = self.members[name], self.path
        if info.compress_type not in COMPRESSIONS:
            raise ValueError(f"{path} is compressed in a way that NumPy does not write; write it with numpy.savez.")
        check_growth(path, f"array {name!r}", info.file_size, info.compress_size, "Write it again with numpy.savez.")
        try:
            with self.archive.open(info) as stream:
                _check_header(stream, info.file_size, path)
            with self.archive.open(info) as stream:
                return _read(stream, path)
        except (*DAMAGE, RuntimeError) as error:  # also an encrypted one
            if is_lack_of_memory(error):
                raise
            raise ValueError(f"{path} is damaged ({first_line(error)}); write it again.") from None


@contextmanager
def opened_npz(path: Path) -> Iterator[Npz]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no .npz file, or a damaged one; write it again with numpy.savez.")
    try:
        archive = zipfile.ZipFile(path)
    except (*DAMAGE, ValueError, NotImplementedError) as error:
        raise ValueError(f"{path} is damaged ({first_line(error)}); write it again.") from None
    with archive:
        yield Npz(path, archive)


def _check_header(stream: IO[bytes], size: int, path: Path) -> None:
    """Refuse an array that says it is larger than the file that holds it."""
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
        claimed = math.prod(shape) * max(dtype.itemsize, 1)  # empty texts take memory too
    except DAMAGE:
        raise
    except Exception:  # NumPy parses the header as Python, with all that may come of it
        raise refused(path) from None
    if claimed > size or dtype.hasobject:
        raise refused(path)


def _read(stream: IO[bytes], path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    except (ValueError, OverflowError, TypeError):  # the latter two of a shape that is none
        raise refused(path) from None
    return array


def refused(path: Path) -> ValueError:
    """NumPy gives one kind of error for both."""
    return ValueError(
        f"{path} is damaged, or holds Python objects, which could run code; save plain arrays (names as dtype=str)."
    )
