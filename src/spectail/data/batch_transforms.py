"""Whole-batch crop, flip, jitter, cutout and normalise for small images that fit in memory.

A loader that handles 32 x 32 images one by one is slower than the network it feeds. Here all images lie in one uint8
tensor, already padded, and a batch is a handful of tensor operations: no Python per image, no worker processes.

    transform = BatchTransform(size=32, pad=4, flip=True, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    stored = transform.prepare(pixels)                      # once; .to(device) if you like
    batch = transform(stored, indices, transform.draws(len(indices), rng))

Every random number is drawn beforehand, as arrays (``Draws``). So a batch can be repeated exactly, and in distributed
training every rank can draw for the global batch and keep its share, ``draws[rank::world]``.

On the CPU the work is done by numpy in the calling thread, elsewhere by torch, with the same lines of code: all they
use exists in both. Numpy on one core is faster here than torch on two, and it never waits for a second thread that the
system has put aside, which on a busy machine costs far more than the batch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from .._core import waits

Triple: TypeAlias = tuple[float, float, float]
GREY = (0.2989, 0.587, 0.114)  # weights of red, green and blue, as in torchvision


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of one batch, one row per image. ``None`` where the recipe does not use them."""

    dy: np.ndarray[Any, Any]
    """First row of the crop in the padded image, 0 ... 2 pad."""
    dx: np.ndarray[Any, Any]
    """First column of the crop in the padded image, 0 ... 2 pad."""
    flip: np.ndarray[Any, Any] | None = None
    """True where the image is mirrored."""
    factors: np.ndarray[Any, Any] | None = None
    """(n, 3): factors of brightness, contrast and saturation; 1 leaves the image as it is."""
    hole: np.ndarray[Any, Any] | None = None
    """(n, 2): row and column of the centre of the cutout."""

    def __len__(self) -> int:
        return len(self.dy)

    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray[Any, Any]) -> Draws:
        """The draws of some images of the batch: ``draws[rank::world]``, ``draws[:16]``, ``draws[[3, 5]]``."""
        return self._each(lambda value: value[rows])

    def _each(self, function: Callable[[Any], Any]) -> Draws:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        made: dict[str, Any] = {name: None if value is None else function(value) for name, value in values.items()}
        return Draws(**made)


@dataclass(frozen=True, kw_only=True)
class BatchTransform:
    """Random crop, flip, jitter, cutout and normalisation of whole batches, in this order.

    Args:
        size: height and width of the images; input and output have the same size.
        pad: black border added on each side before the random crop; the crop moves by up to ``pad`` pixels.
        flip: mirror every second image, at random.
        jitter: ranges x of brightness, contrast and saturation. Each image gets its own factors, uniform in
            [1 - x, 1 + x]. The formulas are torchvision's for float images; the order is fixed (brightness, contrast,
            saturation), where torchvision shuffles it.
        cutout: side of one black square, its centre uniform over the image, clipped at the border; 0 for none.
        mean, std: normalisation, for pixel values in [0, 1].

    ``dataclasses.replace(transform, jitter=(0.4, 0.4, 0.4))`` makes a variant.

    Example:
        >>> transform = BatchTransform(size=2, pad=1, flip=True, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> stored = transform.prepare(np.full((10, 2, 2, 3), 255, dtype=np.uint8))
        >>> transform(stored, [3, 7])[0, 0]  # without draws: the test transform
        tensor([[1., 1.],
                [1., 1.]])
        >>> draws = Draws(dy=np.array([0, 1]), dx=np.array([1, 2]), flip=np.array([False, True]))
        >>> transform(stored, [3, 7], draws)[:, 0]
        tensor([[[-1., -1.],
                 [ 1.,  1.]],
        <BLANKLINE>
                [[-1.,  1.],
                 [-1.,  1.]]])
    """

    size: int
    pad: int = 0
    flip: bool = False
    jitter: Triple = (0.0, 0.0, 0.0)
    cutout: int = 0
    mean: Triple
    std: Triple

    def __post_init__(self) -> None:
        if self.size < 1 or self.pad < 0 or self.cutout < 0:
            raise ValueError(
                "size must be at least 1, pad and cutout at least 0; "
                f"got size={self.size}, pad={self.pad}, cutout={self.cutout}."
            )
        for name in ("jitter", "mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3:
                raise ValueError(f"{name} must be three numbers; got {getattr(self, name)!r}.")
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive; got {self.std}.")
        if not 0 <= min(self.jitter) <= max(self.jitter) <= 1:
            raise ValueError(f"jitter must lie in [0, 1]; got {self.jitter}.")

    def prepare(self, pixels: np.ndarray[Any, Any] | Tensor) -> Tensor:
        """Images (N, size, size, 3), uint8, to the padded (N, 3, size + 2 pad, size + 2 pad) that batches are cut from.

        The result is a plain tensor: move it with ``.to(device)`` and the batches are made there.
        """
        images = np.asarray(pixels)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise ValueError(
                f"pixels must be uint8 of shape (N, {self.size}, {self.size}, 3); "
                f"got {images.dtype} of shape {tuple(images.shape)}."
            )
        if images.shape[1:3] != (self.size, self.size):
            raise ValueError(
                f"images are {images.shape[1]} x {images.shape[2]}, this transform is for {self.size} x {self.size}; "
                "resize them once beforehand, or use the per-image transforms."
            )
        inside = slice(self.pad, self.pad + self.size)
        stored = np.zeros((len(images), 3, *[self.size + 2 * self.pad] * 2), dtype=np.uint8)
        stored[:, :, inside, inside] = images.transpose(0, 3, 1, 2)
        return torch.from_numpy(stored)

    def draws(self, n: int, rng: np.random.Generator) -> Draws:
        """All random numbers for ``n`` images."""
        moves = rng.integers(0, 2 * self.pad + 1, (2, n))
        reach = np.array(self.jitter)
        return Draws(
            dy=moves[0],
            dx=moves[1],
            flip=rng.random(n) < 0.5 if self.flip else None,
            factors=rng.uniform(1 - reach, 1 + reach, (n, 3)).astype(np.float32) if reach.any() else None,
            hole=rng.integers(0, self.size, (n, 2)) if self.cutout else None,
        )

    def __call__(
        self, stored: Tensor, indices: Tensor | np.ndarray[Any, Any] | Sequence[int], draws: Draws | None = None
    ) -> Tensor:
        """The images at ``indices`` as a new float32 batch (B, 3, size, size). ``draws=None``: the test transform."""
        if stored.dtype != torch.uint8 or stored.shape[1:] != (3, *[self.size + 2 * self.pad] * 2):
            raise ValueError(
                f"stored must come from prepare() of a transform with size={self.size} and pad={self.pad}; "
                f"got {stored.dtype} of shape {tuple(stored.shape)}."
            )
        rows = indices if isinstance(indices, Tensor) else torch.from_numpy(np.array(indices))
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise ValueError(f"indices must be a flat list of whole numbers; got {rows.dtype} of {tuple(rows.shape)}.")
        if draws is not None and len(draws) != len(rows):
            raise ValueError(f"draws are for {len(draws)} images, but there are {len(rows)} indices.")
        # Every possible crop of every image, as a view; indexing it copies the chosen ones.
        crops = stored.unfold(2, self.size, 1).unfold(3, self.size, 1)
        if waits.reads_are_free(stored.device):
            return torch.from_numpy(self._made(crops.numpy(), rows.cpu().numpy(), draws, np.asarray))
        return cast(Tensor, self._made(crops, waits.sent(rows, stored.device), draws, partial(_on, stored.device)))

    def _made(self, crops: Any, rows: Any, draws: Draws | None, convert: Callable[[Any], Any]) -> Any:
        """The batch, from numpy arrays or from tensors; ``convert`` makes the one or the other from a numpy array."""
        centre = np.array([self.pad])
        draws = (Draws(dy=centre, dx=centre) if draws is None else draws)._each(convert)
        images = crops[rows, :, draws.dy, draws.dx]
        if draws.flip is not None:
            images = _mirrored(images, draws.flip)
        images = images.astype(np.float32) if isinstance(images, np.ndarray) else images.float()
        if draws.factors is not None:
            images = _jittered(images, draws.factors)
        if draws.hole is not None:
            images *= self._outside(draws.hole, convert(np.arange(self.size)))
        # (x / 255 - mean) / std as one multiplication and one addition
        scale = [1 / (255 * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        factor, offset = convert(np.array([scale, shift], dtype=np.float32))[:, :, None, None]
        images *= factor
        images += offset
        return images

    def _outside(self, centres: Any, places: Any) -> Any:
        """(B, 1, size, size): False in each image's square."""
        distance = places - (centres - self.cutout // 2)[:, :, None]
        inside = (distance >= 0) & (distance < self.cutout)
        return ~(inside[:, 0, :, None] & inside[:, 1, None, :])[:, None]


def _mirrored(images: Any, chosen: Any) -> Any:
    chosen = chosen != 0  # 0 and 1 will do as well
    if isinstance(images, np.ndarray):
        images[chosen] = images[chosen][..., ::-1]
        return images
    return torch.where(chosen[:, None, None, None], images.flip(3), images)  # images[chosen] would wait for the GPU


def _jittered(images: Any, factors: Any) -> Any:
    """Brightness, contrast, saturation: blends with black, with the mean grey and with the grey image."""
    brightness, contrast, saturation = factors.T[:, :, None, None, None]
    images = _blend(images, 0, brightness)
    images = _blend(images, _grey(images).mean((2, 3), keepdims=True), contrast)
    return _blend(images, _grey(images), saturation)


def _blend(images: Any, other: Any, factor: Any) -> Any:
    """factor * images + (1 - factor) * other, kept in 0 ... 255."""
    other = other * (1 - factor)
    images *= factor  # in place: fresh memory is what costs most here
    images += other
    return images.clip(0, 255)


def _grey(images: Any) -> Any:
    red, green, blue = (images[:, channel : channel + 1] * weight for channel, weight in enumerate(GREY))
    return red + green + blue


def _on(device: torch.device, array: np.ndarray[Any, Any]) -> Tensor:
    return waits.sent(torch.from_numpy(np.array(array)), device)
