"""Images by position, decoded when they are asked for. Names and offsets are arrays, so millions of images stay small.

- `ArrayImages`: decoded pixels in memory, for small images;
- `FileImages`: files under a root;
- `PackedImages`: encoded images one after the other in a memory-mapped file.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .._utils.files import array_digest, read_regular
from .decoding import BrokenImage, Choose, cut, decode, decode_crops

EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


class Images(ABC):
    """A fixed sequence of images."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """The image as RGB."""

    def crops(self, index: int, choose: Choose) -> Sequence[NDArray[np.uint8]]:
        """Parts of the image, each resized: ``choose`` gets its width and height and says which."""
        image = self.read(index)
        return cut(image, choose(*image.size))

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call the image in messages, manifests and reports."""

    @property
    def named(self) -> bool:
        """Whether the names lead to the stored images, as paths do."""
        return False

    @abstractmethod
    def take(self, indices: NDArray[np.int64]) -> Images:
        """The images at ``indices``, in that order."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the stored images may have changed; cheap. Key of what is derived from them."""

    def index_digest(self) -> str | None:
        """Identifies the images by where they are stored, when that means something elsewhere."""
        return None

    def scan_order(self) -> NDArray[np.int64]:
        """The order in which reading all images is fastest."""
        return np.arange(len(self))


class ArrayImages(Images):
    """Pixels (N, H, W, 3), uint8."""

    def __init__(self, pixels: NDArray[np.uint8], names: Texts | Images | None = None) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
            raise ValueError(f"pixels must be uint8 (N, H, W, 3); got {pixels.dtype} {pixels.shape}.")
        self.pixels = pixels
        self.names = names  # or the images from which the pixels come: they know their names

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def name(self, index: int) -> str:
        return self.names.name(index) if self.names is not None else f"image {index}"

    @property
    def named(self) -> bool:
        return isinstance(self.names, Texts) or (self.names is not None and self.names.named)

    def take(self, indices: NDArray[np.int64]) -> ArrayImages:
        return ArrayImages(self.pixels[indices], self.names.take(indices) if self.names is not None else None)

    def fingerprint(self) -> str:
        return array_digest(self.pixels)


class EncodedImages(Images):
    """Images stored as encoded bytes."""

    @abstractmethod
    def encoded(self, index: int) -> bytes | memoryview: ...

    def read(self, index: int) -> Image.Image:
        with self._named(index):
            return decode(self.encoded(index))

    def crops(self, index: int, choose: Choose) -> Sequence[NDArray[np.uint8]]:
        with self._named(index):
            return decode_crops(self.encoded(index), choose)

    @contextmanager
    def _named(self, index: int) -> Iterator[None]:
        try:
            yield
        except BrokenImage as error:
            raise BrokenImage(
                f"{self.name(index)} {error.problem}", "Replace it; --check full finds all such images before training."
            ) from None

    def for_random_access(self) -> EncodedImages:
        """The same images in a form from which single ones are read fast."""
        return self


class FileImages(EncodedImages):
    """Image files under ``root``."""

    def __init__(self, root: Path, paths: Texts) -> None:
        self.root = root
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index]

    @property
    def named(self) -> bool:
        return True

    def encoded(self, index: int) -> bytes:
        path = self.root / self.paths[index]
        try:
            return read_regular(path)
        except FileNotFoundError:
            raise BrokenImage("does not exist below the root") from None
        except OSError as error:
            raise BrokenImage(f"cannot be opened ({error.strerror})") from None

    def fingerprint(self) -> str:
        times = np.array([_stat(self.root / path) for path in self.paths], dtype=np.int64)
        return f"{self.root.resolve()}-{self.index_digest()}-{array_digest(times)}"

    def index_digest(self) -> str:
        """SHA-256 of the paths, in order."""
        digest = hashlib.sha256()
        for path in self.paths:
            digest.update(os.fsencode(path) + b"\n")
        return digest.hexdigest()

    def take(self, indices: NDArray[np.int64]) -> FileImages:
        return FileImages(self.root, self.paths.take(indices))


class PackedImages(EncodedImages):
    """Encoded images one after the other in one buffer, usually a memory-mapped file shared by all workers."""

    def __init__(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], origin: Images | None = None
    ) -> None:
        self.data, self.starts, self.sizes = data, starts, sizes
        self.origin = origin  # where the images came from: it knows their names

    def __len__(self) -> int:
        return len(self.starts)

    def name(self, index: int) -> str:
        return f"image {index}" if self.origin is None else self.origin.name(index)

    @property
    def named(self) -> bool:
        return self.origin is not None and self.origin.named

    def fingerprint(self) -> str:
        mapped = self._mapped()
        content = array_digest(np.array(_stat(mapped))) if mapped else array_digest(self.data)
        return f"{content}-{array_digest(self.starts, self.sizes)}"

    def _mapped(self) -> Path | None:
        """The file, if all of it is mapped."""
        if not isinstance(self.data, np.memmap) or self.data.filename is None:
            return None
        path = Path(self.data.filename)
        return path if self.data.nbytes == path.stat().st_size else None

    def encoded(self, index: int) -> memoryview:
        start = self.starts[index]
        return self.data[start : start + self.sizes[index]].data

    def take(self, indices: NDArray[np.int64]) -> PackedImages:
        origin = None if self.origin is None else self.origin.take(indices)
        return PackedImages(self.data, self.starts[indices], self.sizes[indices], origin)

    def __getstate__(self) -> dict[str, Any]:
        """A worker that is started afresh maps the file again instead of receiving a copy of it."""
        mapped = self._mapped()
        return self.__dict__ | {"data": mapped if mapped else np.array(self.data)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.data, Path):
            self.data = np.memmap(self.data, dtype=np.uint8, mode="r")


def _stat(path: Path) -> tuple[int, int]:
    """Size and time of change; a file that is missing has none, and will be named when it is read."""
    try:
        stat = path.stat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


class Texts:
    """Many short strings in one buffer: 437,513 paths take 30 MB instead of 60 MB of Python objects.

    Example:
        >>> texts = Texts.pack(["a/1.png", "b/2.png"])
        >>> texts[1], len(texts), list(texts.take(np.array([1, 0])))
        ('b/2.png', 2, ['b/2.png', 'a/1.png'])
    """

    def __init__(self, data: bytes, ends: NDArray[np.int64], index: NDArray[np.int64] | None = None) -> None:
        self.data = data
        self.ends = ends
        self.index = np.arange(len(ends)) if index is None else index

    @classmethod
    def pack(cls, texts: Iterable[str]) -> Texts:
        data, ends = bytearray(), []
        for text in texts:
            data += os.fsencode(text)  # also names that are not UTF-8
            ends.append(len(data))
        return cls(bytes(data), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def name(self, position: int) -> str:
        return self[position]

    def __getitem__(self, position: int) -> str:
        at = int(self.index[position])
        return os.fsdecode(self.data[self.ends[at - 1] if at else 0 : self.ends[at]])

    def __iter__(self) -> Iterator[str]:
        return (self[position] for position in range(len(self)))

    def take(self, indices: NDArray[np.int64]) -> Texts:
        return Texts(self.data, self.ends, self.index[indices])
