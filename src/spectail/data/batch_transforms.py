"""Whole-batch crop, flip and normalise for small images that fit in memory.

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
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .._core import waits

Triple: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of one batch, one row per image."""

    dy: np.ndarray[Any, Any]
    """First row of the crop in the padded image, 0 ... 2 pad."""
    dx: np.ndarray[Any, Any]
    """First column of the crop in the padded image, 0 ... 2 pad."""
    flip: np.ndarray[Any, Any] | None = None
    """True where the image is mirrored; None where the recipe does not mirror."""

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
    """Random crop, flip and normalisation of whole batches, in this order.

    Args:
        size: height and width of the images; input and output have the same size.
        pad: black border added on each side before the random crop; the crop moves by up to ``pad`` pixels.
        flip: mirror every second image, at random.
        mean, std: normalisation, for pixel values in [0, 1].

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
    mean: Triple
    std: Triple

    def __post_init__(self) -> None:
        if self.size < 1 or self.pad < 0:
            raise ValueError(f"size must be at least 1 and pad at least 0; got size={self.size}, pad={self.pad}.")
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3:
                raise ValueError(f"{name} must be three numbers; got {getattr(self, name)!r}.")
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive; got {self.std}.")

    def for_images(self, height: int, width: int) -> BatchTransform | None:
        """This transform, if it can do images of this size."""
        return self if (height, width) == (self.size, self.size) else None

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
        return Draws(dy=moves[0], dx=moves[1], flip=rng.random(n) < 0.5 if self.flip else None)

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
        by_numpy = waits.reads_are_free(stored.device)

        def convert(array: np.ndarray[Any, Any]) -> Any:
            return array if by_numpy else waits.sent(torch.from_numpy(np.array(array)), stored.device)

        centre = np.array([self.pad])
        draws = (Draws(dy=centre, dx=centre) if draws is None else draws)._each(convert)
        chosen = rows.cpu().numpy() if by_numpy else waits.sent(rows, stored.device)
        images: Any = (crops.numpy() if by_numpy else crops)[chosen, :, draws.dy, draws.dx]
        if draws.flip is not None:
            images = _mirrored(images, draws.flip)
        images = images.astype(np.float32) if by_numpy else images.float()
        # (x / 255 - mean) / std as one multiplication and one addition
        scale = [1 / (255 * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        factor, offset = convert(np.array([scale, shift], dtype=np.float32))[:, :, None, None]
        images *= factor
        images += offset
        return torch.from_numpy(images) if by_numpy else images


def _mirrored(images: Any, chosen: Any) -> Any:
    chosen = chosen != 0  # 0 and 1 will do as well
    if isinstance(images, np.ndarray):
        images[chosen] = images[chosen][..., ::-1]
        return images
    return torch.where(chosen[:, None, None, None], images.flip(3), images)  # images[chosen] would wait for the GPU
