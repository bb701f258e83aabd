"""Make chosen images ready for training: check that they can be read, and hold small ones in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from .._utils.files import cached_array
from .decoding import BrokenImage
from .images import ArrayImages, EncodedImages, FileImages, Images

SMALL = 64  # pixels a side: images up to this size are held in memory
LARGEST = 4 << 30  # bytes, unless asked to
DECODING = 1  # goes up when decoding changes, so that no cache keeps old pixels
QUICK = 20_000  # sets up to this size are read whole by the quick check
SAMPLE = 1_000  # images of a larger set that it reads


class Track(Protocol):
    """Shows progress over an iterable; rich's ``track`` is one."""

    def __call__(self, items: Iterable[Any], description: str, total: int) -> Iterable[Any]: ...


def silent(items: Iterable[Any], description: str, total: int) -> Iterable[Any]:
    return items


@dataclass(frozen=True)
class Checked:
    """What is left of a split."""

    kept: NDArray[np.int64]
    """Positions of the images that are left, among those that were given."""
    broken: tuple[str, ...] = ()
    """What was left out, and why: the `problem` of each `BrokenImage`."""
    contents: NDArray[np.uint64] | None = None
    """A digest of each image, when all were read: equal images have equal digests."""


def check_images(
    images: Images, *, in_memory: str, check: str, strict: str = "", track: Track = silent
) -> tuple[Images, Checked]:
    """Check images and hold them in memory where that is wanted. Broken ones are left out and recorded.

    ``strict`` is what to advise where a broken image is an error instead.
    """
    if isinstance(images, ArrayImages):
        return images, Checked(np.arange(len(images)), contents=_digests(images.pixels))
    if in_memory == "yes" or (in_memory == "auto" and _is_small(images)):
        held = _hold(images, strict=strict, must=in_memory == "yes", track=track)
        if held is not None:
            return held
    if not isinstance(images, EncodedImages):
        return images, Checked(np.arange(len(images)))
    missing = _missing(images)
    if missing and strict:
        _refuse(list(missing.values()), images, "Check --root.")
    there = np.setdiff1d(np.arange(len(images)), np.array(list(missing), dtype=np.int64))
    present = images.take(there) if missing else images
    assert isinstance(present, EncodedImages)
    present = present.for_random_access()
    problems = tuple(error.problem for error in missing.values())
    if check == "none" or not len(there):
        return present, Checked(there, problems)
    left, found = _read(present, whole=check == "full" or len(present) <= QUICK, strict=strict, track=track)
    return left, Checked(there[found.kept], problems + found.broken, found.contents)


def _hold(images: Images, *, strict: str, must: bool, track: Track) -> tuple[Images, Checked] | None:
    """Decode everything into one array, kept in the cache; None if the sizes differ."""
    broken: dict[int, BrokenImage] = {}
    pixels: NDArray[np.uint8] | None = None

    def build() -> NDArray[np.uint8]:
        nonlocal pixels
        for index in track(images.scan_order().tolist(), "reading images", len(images)):
            try:
                image = np.asarray(images.read(index))
            except BrokenImage as error:
                broken[index] = error
                continue
            if pixels is None:
                pixels = np.zeros((len(images), *image.shape), dtype=np.uint8)
            if image.shape != pixels.shape[1:]:
                raise _UnequalSizes(
                    f"--in-memory yes needs images of one size; {images.name(index)} is {_size(image.shape)}, "
                    f"others are {_size(pixels.shape[1:])}. Use --in-memory no."
                )
            pixels[index] = image
        if broken or pixels is None:
            raise _SomeBroken  # not kept in the cache: the files should be mended
        return pixels

    try:
        key = hashlib.sha256(f"{DECODING}{images.fingerprint()}".encode(errors="surrogateescape")).hexdigest()
        pixels = cached_array(f"pixels/{key[:32]}", build)
    except _UnequalSizes as error:
        if must:
            raise ValueError(str(error)) from None
        return None
    except _SomeBroken:
        if strict or pixels is None:
            _refuse([broken[index] for index in sorted(broken)], images, strict or "Replace them.")
    kept = np.array([index for index in range(len(images)) if index not in broken], dtype=np.int64)
    pixels = pixels[kept] if broken else pixels
    problems = tuple(broken[index].problem for index in sorted(broken))
    left = ArrayImages(pixels, images.take(kept) if broken else images)
    return left, Checked(kept, problems, _digests(pixels))


class _UnequalSizes(Exception):
    pass


class _SomeBroken(Exception):
    pass


def _read(images: EncodedImages, *, whole: bool, strict: str, track: Track) -> tuple[Images, Checked]:
    """Decode all images, or a sample, on several threads: decoding large images leaves the interpreter free.

    Where a sample has broken images that are to be left out, all are read.
    """
    generator = np.random.default_rng(0)
    chosen = np.arange(len(images)) if whole else np.sort(generator.choice(len(images), SAMPLE, replace=False))
    contents = np.zeros(len(images), dtype=np.uint64)

    def look(index: int) -> BrokenImage | None:
        try:
            contents[index] = _digest(np.asarray(images.read(index)))
        except BrokenImage as error:
            return error
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # in pieces: a future for each of a million images would take a gigabyte
        pieces = (chosen[start : start + 1024].tolist() for start in range(0, len(chosen), 1024))
        looked = (pair for piece in pieces for pair in zip(piece, pool.map(look, piece), strict=True))
        broken = {index: error for index, error in track(looked, "checking images", len(chosen)) if error}
    if broken and strict:
        _refuse(list(broken.values()), images, strict)
    if broken and not whole:
        return _read(images, whole=True, strict=strict, track=track)
    kept = np.setdiff1d(np.arange(len(images)), np.array(list(broken), dtype=np.int64))
    left = images.take(kept) if broken else images
    problems = tuple(error.problem for error in broken.values())
    return left, Checked(kept, problems, contents[kept] if whole else None)


def _missing(images: EncodedImages) -> dict[int, BrokenImage]:
    """Files that do not exist, found by listing each folder once instead of asking for each file."""
    if not isinstance(images, FileImages):
        return {}
    listed: dict[str, set[str]] = {}
    missing = {}
    for index, path in enumerate(images.paths):
        folder, name = os.path.split(path)
        if folder not in listed:
            try:
                listed[folder] = {entry.name for entry in os.scandir(images.root / folder)}
            except OSError:
                listed[folder] = set()
        if name not in listed[folder]:
            missing[index] = BrokenImage(f"{path} does not exist below the root")
    return missing


def _refuse(broken: list[BrokenImage], images: Images, advice: str) -> NoReturn:
    if len(broken) == 1:
        raise BrokenImage(broken[0].problem, advice) from None
    shown = "; ".join(error.problem for error in broken[:3]) + ("; ..." if len(broken) > 3 else "")
    raise BrokenImage(f"{len(broken):,} of {len(images):,} images cannot be read: {shown}", advice) from None


def _is_small(images: Images) -> bool:
    for index in range(min(len(images), 10)):
        try:
            size = images.read(index).size
            return max(size) <= SMALL and 3 * size[0] * size[1] * len(images) <= LARGEST
        except BrokenImage:
            continue
    return False


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[0]}"


def _digests(pixels: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.array([_digest(image) for image in pixels], dtype=np.uint64)


def _digest(image: NDArray[np.uint8]) -> int:
    shape = np.array(image.shape, dtype="<i8").tobytes()[:16]
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8, salt=shape).digest(), "big")
