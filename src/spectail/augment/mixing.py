"""Mixing batches: mixup, CutMix and its box. Every random quantity is an argument; ``Draws`` gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._core import waits


@dataclass(frozen=True)
class Box:
    """Columns [x0, x1) and rows [y0, y1) of an image."""

    x0: int
    x1: int
    y0: int
    y1: int
    height: int
    width: int

    @property
    def share(self) -> float:
        """What is left of the image that the box is pasted into: the label factor after clipping."""
        return 1 - (self.x1 - self.x0) * (self.y1 - self.y0) / (self.height * self.width)


def cut_box(lam: float, height: int, width: int, cx: int, cy: int) -> Box:
    """The CutMix box of area about (1 - lam) H W around a centre, clipped to the image.

    The half sides are int(side * sqrt(1 - lam)) // 2. Use ``box.share``, not ``lam``, for labels.

    Example:
        >>> box = cut_box(0.36, 32, 32, cx=16, cy=10)
        >>> (box.x0, box.x1, box.y0, box.y1), box.share
        ((4, 28, 0, 22), 0.484375)
    """
    if not 0 <= lam <= 1:
        raise ValueError(f"lam must lie in [0, 1]; got {lam}.")
    if not (0 <= cx < width and 0 <= cy < height):
        raise ValueError(f"the centre must lie in the image of {width} x {height}; got ({cx}, {cy}).")
    side = float(np.sqrt(1 - lam))
    half_width, half_height = int(width * side) // 2, int(height * side) // 2
    return Box(
        max(cx - half_width, 0), min(cx + half_width, width), max(cy - half_height, 0), min(cy + half_height, height),
        height, width,
    )  # fmt: skip


def paste(background: Tensor, foreground: Tensor, box: Box) -> Tensor:
    """The background with the same box of the foreground in it, as a new tensor."""
    for name, images in (("background", background), ("foreground", foreground)):
        if images.ndim != 4:
            raise ValueError(
                f"cutting boxes needs images (N, C, H, W); the {name} has shape {tuple(images.shape)}. "
                "Features, as in probe mode, can only be mixed by mixup."
            )
        if tuple(images.shape[2:]) != (box.height, box.width):
            raise ValueError(
                f"the box was drawn for images of {box.width} x {box.height}; "
                f"the {name} is {images.shape[3]} x {images.shape[2]}."
            )
    if len(foreground) != len(background):
        raise ValueError(f"as many foregrounds as backgrounds are needed; got {len(foreground)} and {len(background)}.")
    mixed = background.clone()
    mixed[:, :, box.y0 : box.y1, box.x0 : box.x1] = foreground[:, :, box.y0 : box.y1, box.x0 : box.x1]
    return mixed


def mixup(images: Tensor, partners: Tensor, lam: float) -> Tensor:
    """lam * images + (1 - lam) * partners."""
    if images.shape != partners.shape:
        raise ValueError(f"mixup needs batches of one shape; got {tuple(images.shape)} and {tuple(partners.shape)}.")
    return torch.lerp(partners, images, lam)


class Draws:
    """Random numbers of one step: ``shared`` are the same on every rank, ``own`` are this rank's.

    Both come from one number of the run's generator, so that ranks with batches of different sizes stay in step.
    """

    def __init__(self, generator: torch.Generator, rank: int = 0) -> None:
        seed = int(torch.randint(2**62, (), generator=generator))
        self.shared, self.own = np.random.default_rng([seed]), np.random.default_rng([seed, 1 + rank])

    def lam(self, alpha: float) -> float:
        """Beta(alpha, alpha)."""
        return float(self.shared.beta(alpha, alpha))

    def chance(self, probability: float) -> bool:
        return bool(self.shared.random() < probability)

    def box(self, lam: float, height: int, width: int) -> Box:
        cx, cy = int(self.shared.integers(width)), int(self.shared.integers(height))
        return cut_box(lam, height, width, cx, cy)

    def partners(self, count: int, device: torch.device) -> Tensor:
        """A permutation of the batch."""
        return waits.sent(torch.from_numpy(self.own.permutation(count)), device)
