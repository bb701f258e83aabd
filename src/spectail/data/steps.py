"""The steps of the named transforms that torchvision does not have, and the colour steps as the recipes set them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from .._utils import torchvision_ops  # noqa: F401  (before torchvision)
from .batch_transforms import Triple
from .images import to_rgb

from torchvision.transforms import v2  # isort: skip


class Cutout:
    """One black square of ``hole`` pixels, its centre uniform over the image, clipped at the border."""

    def __init__(self, hole: int) -> None:
        self.hole = hole

    def __call__(self, image: Tensor) -> Tensor:
        top, left = (int(torch.randint(length, ())) - self.hole // 2 for length in image.shape[-2:])
        image = image.clone()
        image[..., max(top, 0) : top + self.hole, max(left, 0) : left + self.hole] = 0
        return image

    def __repr__(self) -> str:
        return f"Cutout(hole={self.hole})"


class RandAugment:
    """timm's RandAugment: n of 15 operations, each carried out with probability 1/2; magnitudes clipped to [0, 10].

    Corners that a rotation, shear or shift leaves empty get the mean colour.
    """

    def __init__(self, config: str, size: int, mean: Triple) -> None:
        from timm.data.auto_augment import rand_augment_transform  # noqa: PLC0415  (timm only where it is needed)

        self.config = config
        settings = {"translate_const": int(0.45 * size), "img_mean": tuple(round(255 * value) for value in mean)}
        self.augment: Any = rand_augment_transform(config, settings)

    def __call__(self, image: Image.Image) -> Image.Image:
        augmented: Image.Image = self.augment(image)
        return augmented

    def __repr__(self) -> str:
        return f"RandAugment({self.config!r})"


def as_rgb(image: Image.Image) -> Image.Image:
    """The first step of every preset: grey, palette and transparent images become RGB."""
    if not isinstance(image, Image.Image):
        raise TypeError(
            f"A preset's train and test take a PIL image, got {type(image).__name__}; Image.fromarray makes one from "
            "a uint8 array."
        )
    return to_rgb(image)


COLOUR: dict[str, Callable[[int, Triple], Any]] = {
    "jitter": lambda size, mean: v2.ColorJitter(0.4, 0.4, 0.4, 0.0),
    "autoaugment": lambda size, mean: v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, fill=128),
    "randaugment": lambda size, mean: RandAugment("rand-m10-n2-mstd0.5", size, mean),
    "some jitter": lambda size, mean: v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
    "some grey": lambda size, mean: v2.RandomGrayscale(p=0.2),
    # 13 pixels: three standard deviations on either side at the largest sigma
    "some blur": lambda size, mean: v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], p=0.5),
}
