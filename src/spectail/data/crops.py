"""Crop and resize in one step: the fast transforms of large pictures, and of small ones that are made large.

A `CropTransform` works in two places. Whoever decodes an image asks it for a crop (``draw``) and hands on the bytes of
that. ``finish`` mirrors, jitters and normalises a whole batch of them where the network is. `BatchCrop` does
everything to whole batches of small images in memory, there too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .._core import waits
from .decoding import Crop, cut, to_rgb

Triple: TypeAlias = tuple[float, float, float]
RATIO = (3 / 4, 4 / 3)
GREY = (0.299, 0.587, 0.114)
FINE = 64
"""Crops of small images lie on a grid so many times finer than their pixels."""
Finish: TypeAlias = tuple[float, ...]
"""What chance decides after the crop: 1 to mirror, three factors of colour steps, which step has which place."""


@dataclass(frozen=True, kw_only=True)
class CropTransform:
    """From a PIL image to a normalised tensor (3, size, size), or in a loader in two halves.

    Args:
        size: height and width of the result.
        mean, std: normalisation, for pixel values in [0, 1].
        interpolation: of the one resize there is.
        scale: share of the area of a random crop, as in RandomResizedCrop; None takes the centre.
        side: for the centre: what the shorter side would be resized to before ``size`` pixels are cut out.
        flip: mirror every second image, at random.
        jitter: strength of random brightness, contrast and saturation, in random order.
        colour: further steps, on the cut PIL image; they draw from the global generators.

    Example:
        >>> transform = CropTransform(size=2, side=2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> transform(Image.new("RGB", (40, 30), "white"))[0]
        tensor([[1., 1.],
                [1., 1.]])
    """

    size: int
    mean: Triple
    std: Triple
    interpolation: str = "bilinear"
    scale: tuple[float, float] | None = None
    side: int = 0
    flip: bool = False
    jitter: float = 0.0
    colour: tuple[Callable[[Any], Any], ...] = ()

    def draw(self, width: int, height: int, rng: np.random.Generator) -> tuple[Crop, Finish]:
        """All that chance decides about an image of this size."""
        if self.scale is None:
            return Crop(*_centre(width, height, self.size / self.side), self.size, self.interpolation), (0.0,) * 7
        crop = Crop(*_random(width, height, self.scale, rng), self.size, self.interpolation)
        flip = float(self.flip and rng.random() < 0.5)
        if not self.jitter:
            return crop, (flip, *[0.0] * 6)
        factors = rng.uniform(1 - self.jitter, 1 + self.jitter, 3).tolist()
        return crop, (flip, *factors, *map(float, rng.permutation(3)))

    def __call__(self, image: Image.Image) -> Tensor:
        """One image. Its draws follow from torch's generator, as those of torchvision's transforms do."""
        if not isinstance(image, Image.Image):
            raise TypeError(f"a transform takes a PIL image, got {type(image).__name__}; Image.fromarray makes one.")
        rng = np.random.default_rng(0 if self.scale is None else int(torch.randint(2**62, ())))
        crop, finish = self.draw(*image.size, rng)
        [pixels] = cut(to_rgb(image), [crop])
        return self.finish(torch.from_numpy(self.coloured(pixels))[None], torch.tensor([finish]))[0]

    def coloured(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not self.colour:
            return pixels
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        for step in self.colour:
            image = step(image)
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))

    def finish(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Bytes (B, 3, size, size) to a normalised float32 batch of the same shape, on their device."""
        if not waits.reads_are_free(pixels.device):
            images = pixels.float()
            images = torch.where(draws[:, 0, None, None, None] != 0, images.flip(3), images)
            return self._normalised(images, draws)  # type: ignore[no-any-return]
        batch = np.empty((len(pixels), 3, self.size, self.size), dtype=np.float32)
        numbers = draws.numpy()
        for at, image in enumerate(pixels.numpy()):  # one by one, each stays in the cache of a core
            batch[at] = image[..., ::-1] if numbers[at, 0] else image
            self._normalised(batch[at : at + 1], numbers[at : at + 1])
        return torch.from_numpy(batch)

    def _normalised(self, images: Any, draws: Any) -> Any:
        """Jitter and normalise in place: the same lines for numpy and torch."""
        if self.jitter:
            _jitter(images, draws[:, 1:, None, None, None])
        scale = [1 / (255 * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        numbers: Any = np.array([scale, shift], dtype=np.float32)[:, :, None, None]
        factor, offset = waits.sent(torch.from_numpy(numbers), images.device) if torch.is_tensor(images) else numbers
        images *= factor
        images += offset
        return images

    def for_images(self, height: int, width: int) -> BatchCrop | None:
        """What makes whole batches of images of this size, if they are smaller than what is made of them."""
        if self.colour or self.interpolation not in FILTERS or max(height, width) > self.size:
            return None
        return BatchCrop(self, height, width)


@dataclass(frozen=True)
class BatchCrop:
    """Whole batches of small images of one size in memory, made larger by two matrix products each.

    A row of weights says how an output row is mixed from stored rows. So crop, resize and mirror are together one
    matrix for the rows and one for the columns.
    """

    transform: CropTransform
    height: int
    width: int

    def prepare(self, pixels: np.ndarray[Any, Any]) -> Tensor:
        """Images (N, height, width, 3), uint8, to the (N, 3, height, width) that batches are made from."""
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))

    def draws(self, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """All random numbers for ``n`` images, one row each: four edges in stored pixels, and a `Finish`."""
        drawn = [self.transform.draw(FINE * self.width, FINE * self.height, rng) for _ in range(n)]
        return np.array([[*(edge / FINE for edge in crop[:4]), *finish] for crop, finish in drawn], dtype=np.float32)

    def __call__(self, stored: Tensor, rows: Tensor, draws: np.ndarray[Any, Any] | None = None) -> Tensor:
        """The images at ``rows`` as a new float32 batch (B, 3, size, size). ``draws=None``: those of a test."""
        own, device = self.transform, stored.device
        numbers = self.draws(1, np.random.default_rng(0)) if draws is None else draws
        drawn = waits.sent(torch.from_numpy(numbers.copy()), device)
        left, top, right, bottom, flip = drawn.T[:5]
        mirrored = flip != 0
        across = weights(
            torch.where(mirrored, right, left), torch.where(mirrored, left, right), self.width, own.size,
            own.interpolation,
        )  # fmt: skip
        down = weights(top, bottom, self.height, own.size, own.interpolation)
        images = stored[waits.sent(rows, device)].float()
        with torch.autocast(device.type, enabled=False):  # a method may fetch in the middle of its step
            images = (down[:, None] @ images) @ across[:, None].mT
        if own.interpolation != "bilinear":
            images.clamp_(0, 255)  # sharper filters overshoot
        drawn = drawn[:, 4:].expand(len(images), -1)
        if not waits.reads_are_free(device):
            return own._normalised(images, drawn)  # type: ignore[no-any-return]
        batch, rules = images.numpy(), drawn.numpy()
        for at in range(len(batch)):
            own._normalised(batch[at : at + 1], rules[at : at + 1])
        return images


def weights(first: Tensor, last: Tensor, stored: int, size: int, way: str) -> Tensor:
    """(B, size, stored): how each of ``size`` pixels from edge to edge is mixed from stored ones, by PIL's rule.

    With ``first`` behind ``last`` the result is mirrored.

    Example:
        >>> weights(torch.tensor([0.0]), torch.tensor([2.0]), 2, 4, "bilinear")[0, 1]
        tensor([0.7500, 0.2500])
    """
    step = ((last - first) / size)[:, None]
    centre = first[:, None] + (torch.arange(size, device=first.device) + 0.5) * step
    places = torch.arange(stored, device=first.device) + 0.5
    found = FILTERS[way](((places - centre[..., None]) / step.abs().clamp(min=1)[..., None]).abs())
    return found / found.sum(-1, keepdim=True)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


FILTERS: dict[str, Callable[[Tensor], Tensor]] = {"bilinear": _triangle, "bicubic": _cubic}


def _random(width: int, height: int, scale: tuple[float, float], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """The box of RandomResizedCrop: a share of the area, a ratio of 3:4 to 4:3, anywhere where it fits."""
    for _ in range(10):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * rng.random())
        ratio = RATIO[0] * (RATIO[1] / RATIO[0]) ** rng.random()
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(rng.random() * (width - wide + 1)), int(rng.random() * (height - high + 1))
            return left, top, left + wide, top + high
    wide = min(width, max(1, round(height * RATIO[1])))  # of a very long image the most that is allowed, centred
    high = min(height, max(1, round(width / RATIO[0])))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _centre(width: int, height: int, share: float) -> tuple[int, int, int, int]:
    """A square in the middle, ``share`` of the shorter side long."""
    edge = max(1, round(min(width, height) * share))
    left, top = (width - edge) // 2, (height - edge) // 2
    return left, top, left + edge, top + edge


def _jitter(images: Any, draws: Any) -> None:
    """Brightness, contrast and saturation of values in [0, 255]: blends with black, with mean grey and with grey."""
    for place in range(3):
        factor, what = draws[:, place], draws[:, 3 + place]
        grey = GREY[0] * images[:, :1] + GREY[1] * images[:, 1:2] + GREY[2] * images[:, 2:]
        mean = grey.mean((2, 3), keepdims=True)
        images *= factor
        images += (1 - factor) * (what == 1) * mean + (1 - factor) * (what == 2) * grey
        images[:] = images.clip(0, 255)
