"""From encoded bytes to pixels: whole images, or parts of them at another size without decoding more than they need."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Those that are read. Pillow knows more, some of which start other programs: Ghostscript for PostScript."""
SIGNATURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WEBP", b"GIF8": "GIF", b"BM": "BMP"}


class BrokenImage(ValueError):
    """An image that cannot be read.

    Args:
        problem: which image, and what is wrong with it.
        advice: a sentence that says what to do about it; not part of what a manifest records.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}. {advice}" if advice else problem)
        self.problem = problem


class Crop(NamedTuple):
    """A part of an image, in pixels as PIL counts them, and the square that it becomes."""

    left: int
    top: int
    right: int
    bottom: int
    size: int
    interpolation: str = "bilinear"


Choose: TypeAlias = Callable[[int, int], Sequence[Crop]]


def decode(data: bytes | memoryview) -> Image.Image:
    """An RGB image from encoded bytes. Grey and palette images are converted, transparency is laid on white."""
    with _opened(io.BytesIO(data)) as image:
        image.load()
        return to_rgb(image)


def decode_crops(data: bytes | memoryview, choose: Choose) -> list[NDArray[np.uint8]]:
    """Parts of an image, (3, size, size) each, decoded once. ``choose`` gets width and height and says which parts."""
    frame, crops = _jpeg_frame(data), None
    if frame is not None:
        at, width, height = frame
        crops = choose(width, height)
        with suppress(ValueError):  # Pillow's reader of files will say what is wrong
            return _from_jpeg(data, at, width, height, crops)
    with _opened(io.BytesIO(data)) as image:
        return cut(image, choose(*image.size) if crops is None else crops)


def _from_jpeg(
    data: bytes | memoryview, at: int, width: int, height: int, crops: Sequence[Crop]
) -> list[NDArray[np.uint8]]:
    """By Pillow's decoder alone. No further down than the parts reach: the header is made to say that it ends there."""
    by = _spare(crops)
    lines = min(max(crop.bottom for crop in crops) + 2 * by, height)  # colours of a row are mixed with the next one's
    shorter = bytearray(data)
    shorter[at : at + 2] = lines.to_bytes(2, "big")
    image = Image.frombytes("RGB", (-(-width // by), -(-lines // by)), shorter, "jpeg", ("RGB", "", by, 0))
    return _parts(image, crops, by)


def cut(image: Image.Image, crops: Sequence[Crop]) -> list[NDArray[np.uint8]]:
    """The parts of an image that is decoded, or only opened."""
    by, (width, height) = _spare(crops), image.size
    image.draft(None, (width // by, height // by))  # does nothing but to an unread JPEG
    image.load()
    return _parts(to_rgb(image), crops, by if image.size != (width, height) else 1)


def _spare(crops: Sequence[Crop]) -> int:
    """How many times smaller a JPEG may be decoded so that every part still has the pixels for its size."""
    spare = min(min(crop.right - crop.left, crop.bottom - crop.top) // crop.size for crop in crops)
    return next((by for by in (8, 4, 2) if spare >= by), 1)


def _parts(image: Image.Image, crops: Sequence[Crop], by: int) -> list[NDArray[np.uint8]]:
    edges = [[round(edge / by) for edge in crop[:4]] for crop in crops]
    parts = [image.crop((left, top, right, bottom)) for left, top, right, bottom in edges]
    return [_resized(part, crop.size, crop.interpolation) for part, crop in zip(parts, crops, strict=True)]


def _resized(image: Image.Image, size: int, way: str) -> NDArray[np.uint8]:
    if way in ("bilinear", "bicubic"):
        # PIL's rule by torch, which has vector instructions for it; a fourth byte a pixel makes both of them faster
        stored = torch.frombuffer(bytearray(image.tobytes("raw", "RGBX")), dtype=torch.uint8)
        pixels = stored.view(1, image.height, image.width, 4).permute(0, 3, 1, 2)
        made = F.interpolate(pixels, size=(size, size), mode=way, antialias=True)[0].numpy()
    else:
        made = np.asarray(image.resize((size, size), Image.Resampling[way.upper()])).transpose(2, 0, 1)
    planes = np.empty((3, size, size), dtype=np.uint8)
    for plane, colour in zip(planes, made, strict=False):  # four times as fast as all three at once
        plane[:] = colour
    return planes


def to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        deep = np.asarray(image, dtype=np.float64)
        scale = 255 / 65535 if image.mode.startswith("I;16") or deep.max(initial=0) > 255 else 1.0
        image = Image.fromarray(np.clip(deep * scale, 0, 255).round().astype(np.uint8))
    elif image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


@contextmanager
def _opened(stream: io.BytesIO) -> Iterator[Image.Image]:
    head = bytes(stream.getbuffer()[:4])
    formats = [known for signature, known in SIGNATURES.items() if head.startswith(signature)] or FORMATS
    try:
        with Image.open(stream, formats=formats) as image:
            yield image
    except UnidentifiedImageError:
        raise BrokenImage("is no image that can be read" if head else "is empty") from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, Image.DecompressionBombError, Warning) as error:
        raise BrokenImage(f"cannot be read as an image ({error})") from None


def _jpeg_frame(data: bytes | memoryview) -> tuple[int, int, int] | None:
    """Where a JPEG says how high it is, its width and its height; None but for the plain kind.

    That is one whose rows can be decoded one by one: three colours in one scan.
    """
    if bytes(data[:3]) != b"\xff\xd8\xff":
        return None
    at, found = 2, None
    while at + 10 < len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xC0:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            usual = data[at + 9] == 3 and 0 < width * height <= (Image.MAX_IMAGE_PIXELS or 0)
            found = (at + 5, width, height) if usual else None
        elif 0xC1 <= kind <= 0xCF and kind != 0xC4:
            return None
        elif kind == 0xDA:
            return found if data[at + 4] == 3 else None
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None
