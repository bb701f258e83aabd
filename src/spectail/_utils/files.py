"""Files that are whole or absent: the cache folder, atomic writing, checksums, downloads."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import shutil
import stat
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .errors import MissingData

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHUNK = 1 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, the user's share of it is, or the file is larger than allowed."""


class NoRoom(OSError):
    """A file did not fit on the disk; the message names it and says what to do."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(
            f"{path} cannot be written: {os.strerror(number)}. Free some space there and repeat the command, with "
            "--resume if it was a run; nothing half-written is left."
        )
        self.errno = number


def cache_folder() -> Path:
    """``$SPECTAIL_CACHE``, else ``spectail`` in the user's cache folder. It can be deleted at any time."""
    given = os.environ.get("SPECTAIL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spectail"


@contextmanager
def whole_file(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """A temporary path beside ``path`` that becomes ``path`` when the block ends well, and vanishes otherwise.

    If it must be ``lasting``, it is then on the disk, whatever happens to the power. What killed processes have left of
    their tries is removed.
    """
    with room_for(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            _hold(handle)
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; these are ordinary ones
            if lasting:
                sync(temporary)
            temporary.replace(path)
            if lasting:
                sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(handle)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same for a folder. If another process finished first, its folder stays."""
    with room_for(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        handle = None if fcntl is None else os.open(temporary, os.O_RDONLY)
        try:
            _hold(handle)
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            try:
                temporary.rename(path)
            except OSError:
                if not path.is_dir():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if handle is not None:
                os.close(handle)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and fcntl is None:
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in NO_ROOM or not path.is_dir():  # some network file systems cannot do it for folders
            raise
    finally:
        os.close(handle)


def _hold(handle: int | None) -> None:
    """Lock what is being written, so that nobody sweeps it away; the lock dies with the process."""
    if fcntl is not None and handle is not None:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(path: Path) -> None:
    """Remove what killed processes have left of their tries to write a path: what nobody holds any more."""
    if fcntl is None:
        return
    start = f".{path.name}."
    for entry in list(os.scandir(path.parent)):
        if not entry.name.startswith(start) or len(entry.name) != len(start) + 8:  # as tempfile names them
            continue
        with suppress(OSError):
            if time.time() - entry.stat(follow_symlinks=False).st_mtime < 1:  # perhaps not held yet
                continue
            handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
            finally:
                os.close(handle)


def read_regular(path: Path) -> bytes:
    """The content of an ordinary file; a pipe or a device, which may never end, is refused."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no ordinary file", str(path))
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Report a full disk as a failure to write ``path``: a failed write alone does not tell which file."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        disk = error if isinstance(error, OSError) else error.__context__  # torch.save wraps what the disk said
        if not isinstance(disk, OSError) or disk.errno not in NO_ROOM:
            raise
        raise NoRoom(path, disk.errno) from None


def write_json(path: Path, content: Any) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(json_text(content).encode())


def json_text(content: Any) -> str:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()  # file names need not be UTF-8


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def array_digest(*arrays: NDArray[Any]) -> str:
    """SHA-256 over dtype, shape and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def cached_array(name: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """An array from the cache, or built and kept there. A damaged file is built again, never trusted."""
    path = cache_folder() / f"{name}.npy"
    if is_sealed(path):
        array: NDArray[Any] = np.load(path, allow_pickle=False)
        return array
    array = build()
    keep_in_cache(path, lambda file: np.save(file, array))
    return array


def keep_in_cache(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file and seal it. A cache that cannot be written costs time, not the run."""
    with suppress(OSError):
        with whole_file(path, lasting=False) as temporary, temporary.open("wb") as file:  # its checksum tells
            write(file)
        seal(path)


def seal(path: Path) -> None:
    """Write the checksum of a file beside it."""
    with whole_file(_seal(path), lasting=False) as temporary:
        temporary.write_text(_checksum(path))


def is_sealed(path: Path, limit: int = 1 << 62) -> bool:
    """Whether a file is as it was when it was sealed. Of files larger than ``limit`` only the size is checked."""
    try:
        written = _seal(path).read_text()
        size = path.stat().st_size
        return written == _checksum(path) if size <= limit else written.endswith(f" {size}")
    except (OSError, ValueError):
        return False


def download(url: str, path: Path, digest: str, algorithm: str = "md5") -> None:
    """Fetch a file whose checksum is known. Nothing is left behind unless it matches."""
    try:
        with whole_file(path) as temporary:
            with urllib.request.urlopen(url, timeout=60) as answer, temporary.open("wb") as file:
                shutil.copyfileobj(answer, file, CHUNK)
            found = file_digest(temporary, algorithm)
            if found != digest:
                raise ValueError(
                    f"the download of {url} has {algorithm} {found}, expected {digest}; it was thrown away. "
                    "Try again, or fetch the file yourself."
                )
    except NoRoom:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise MissingData(
            f"{path.name} is not in {path.parent} and could not be downloaded ({reason}). "
            f"Fetch {url} on a machine that is online and put it there."
        ) from None


def _seal(path: Path) -> Path:
    return path.with_suffix(".crc")


def _checksum(path: Path) -> str:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
        return f"{crc:08x} {file.tell()}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
