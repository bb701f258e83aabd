"""Named train and test transforms: the recipes of the long-tail literature, one image at a time.

``preset("cifar").train`` maps a PIL image to a normalised float32 tensor (3, size, size). Where a recipe can also be
run on whole batches of small images in memory, ``batch_train`` and ``batch_test`` hold the fast path.

Images of any size go through any preset. At the recipe's own size the published steps are all that happens. Where a
recipe pads and crops, another image is first resized so that its shorter side is ``size``; training then crops at
random along the longer side too, testing takes the centre.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from .._utils import torchvision_ops  # noqa: F401  (before torchvision)
from .._utils.names import nearest
from .batch_transforms import BatchTransform, Triple
from .crops import CropTransform
from .decoding import to_rgb

from torchvision.transforms import InterpolationMode, v2  # isort: skip

CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
INATURALIST = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class Recipe:
    """A published recipe. Lengths are fractions of ``size``, so that it can be scaled to another input size.

    Training runs in the order of the fields: resize, pad and crop or else RandomResizedCrop, flip, colour, cutout.
    """

    size: int
    statistics: tuple[Triple, Triple]
    train_resize: float = 0.0
    pad: float = 0.0
    scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = True
    colour: tuple[str, ...] = ()
    cutout: float = 0.0
    test_resize: float = 1.0
    fast: bool = False
    """Crop and resize in one step, and leave the rest to whole batches."""


# The weak views of contrastive methods. At 224 pixels BCL and its followers do not blur; PaCo does.
SIM = ("some jitter", "some grey")
RECIPES = {
    "cifar": Recipe(32, CIFAR, pad=1 / 8),
    "cifar-strong": Recipe(32, CIFAR, pad=1 / 8, colour=("autoaugment",), cutout=1 / 2),
    "cifar-auto": Recipe(32, CIFAR, pad=1 / 8, colour=("autoaugment",)),
    "cifar-sim": Recipe(32, CIFAR, scale=(0.2, 1.0), colour=(*SIM, "some blur")),
    "tiny": Recipe(64, IMAGENET, pad=1 / 8),
    "imagenet": Recipe(224, IMAGENET, colour=("jitter",), test_resize=256 / 224),
    "imagenet-strong": Recipe(224, IMAGENET, colour=("jitter", "randaugment"), test_resize=256 / 224),
    "imagenet-sim": Recipe(224, IMAGENET, colour=SIM, test_resize=256 / 224),
    "inat": Recipe(224, INATURALIST, test_resize=256 / 224),
    "vit-224": Recipe(224, IMAGENET, train_resize=246 / 224, scale=(0.8, 1.0), test_resize=246 / 224),
    "glyphs": Recipe(32, HALF, pad=1 / 16, flip=False),
}
RECIPES |= {f"{name}-fast": replace(recipe, fast=True) for name, recipe in RECIPES.items() if recipe.size == 224}
PRESETS = tuple(RECIPES)


@dataclass(frozen=True)
class Preset:
    """A recipe made concrete: see ``preset``."""

    name: str
    size: int
    mean: Triple
    std: Triple
    interpolation: str
    train: Callable[[Any], Tensor]
    test: Callable[[Any], Tensor]
    batch_train: BatchTransform | CropTransform | None
    batch_test: BatchTransform | CropTransform | None
    test_size: int | None = None
    """Of test images, where it is not ``size``: several crops are cut from them."""

    def describe(self) -> str:
        """Every step with its settings, for the record of a run."""
        lines = [f"{self.name}: {self.size} x {self.size}, mean {self.mean}, std {self.std}, {self.interpolation}"]
        for name in ("train", "test"):
            made = getattr(self, name)
            lines += [f"{name}:", *(f"  {_words(step)}" for step in getattr(made, "transforms", [made]))]
        return "\n".join(lines)


def preset(
    name: str,
    *,
    size: int | None = None,
    model: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: str | None = None,
    randaugment: str | None = None,
    erasing: float = 0.0,
) -> Preset:
    """Build the transforms of a named recipe.

    Args:
        name: one of ``PRESETS``.
        size: another input size; paddings, holes and resizes keep their ratio to it.
        model: a timm model whose declared mean, std and interpolation replace the recipe's. Where the recipe resizes
            for the test, the checkpoint's ``crop_pct`` is used as well. Neither weights nor model are loaded.
        mean, std: three numbers each, for pixel values in [0, 1]. They win over ``model``, which wins over the recipe.
        interpolation: "nearest", "bilinear", "bicubic", "box", "hamming" or "lanczos", for every resize.
        randaugment: timm's name of a RandAugment that training images get as well.
        erasing: probability with which a random part of a training image is erased.

    Example:
        >>> from PIL import Image
        >>> cifar = preset("cifar")
        >>> cifar.train(Image.new("RGB", (32, 32))).shape
        torch.Size([3, 32, 32])
        >>> preset("vit-224", model="vit_small_patch16_224.augreg_in21k_ft_in1k").mean
        (0.5, 0.5, 0.5)
        >>> preset("cifr")
        Traceback (most recent call last):
        ...
        ValueError: there is no preset 'cifr'; did you mean 'cifar' or 'cifar-sim'?
    """
    if name not in RECIPES:
        raise ValueError(f"there is no preset {name!r}; {nearest(name, PRESETS)}")
    recipe = RECIPES[name]
    if randaugment is not None and not randaugment.startswith("rand"):
        raise ValueError(f"RandAugment is named as in timm, such as rand-m9-n2-mstd0.5; got {randaugment!r}.")
    size = recipe.size if size is None else size
    if not isinstance(size, int) or size < 8:
        raise ValueError(f"size must be a whole number of pixels, 8 or more; got {size!r}.")
    statistics, way, test_side = recipe.statistics, "bilinear", round(size * recipe.test_resize)
    if model is not None:
        statistics, way, crop_pct = _declared(model)
        if recipe.test_resize > 1:
            test_side = math.floor(size / crop_pct)
    mean = _triple("mean", statistics[0] if mean is None else mean)
    std = _triple("std", statistics[1] if std is None else std)
    if min(std) <= 0:
        raise ValueError(f"std must be positive; got {std}.")
    mode = _mode(way if interpolation is None else interpolation)
    if recipe.fast:
        jitter = 0.4 if recipe.colour == ("jitter",) else 0.0
        colour = () if jitter else tuple(COLOUR[step](size, mean) for step in recipe.colour)
        colour += (RandAugment(randaugment, size, mean),) if randaugment else ()
        centre = CropTransform(size=size, mean=mean, std=std, interpolation=mode.value, side=test_side)
        random = replace(centre, scale=recipe.scale, flip=recipe.flip, jitter=jitter, colour=colour)
        if erasing:
            erased = v2.Compose([random, RandomErasing(erasing)])
            return Preset(name, size, mean, std, mode.value, erased, centre, None, centre)
        return Preset(name, size, mean, std, mode.value, random, centre, None if colour else random, centre)
    pad, cutout = round(size * recipe.pad), round(size * recipe.cutout)

    if recipe.pad:
        train = [v2.Resize(size, mode), v2.RandomCrop(size, padding=pad)]
    else:
        train = [v2.RandomResizedCrop(size, scale=recipe.scale, interpolation=mode)]
    if recipe.train_resize:
        train.insert(0, v2.Resize(round(size * recipe.train_resize), mode))
    train += [v2.RandomHorizontalFlip()] if recipe.flip else []
    train += [COLOUR[step](size, mean) for step in recipe.colour]
    train += [RandAugment(randaugment, size, mean)] if randaugment else []
    tensor, normalise = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)], v2.Normalize(mean, std)
    hole = [Cutout(cutout)] if cutout else []
    test = [v2.Resize(test_side, mode), v2.CenterCrop(size)]
    return Preset(
        name=name,
        size=size,
        mean=mean,
        std=std,
        interpolation=mode.value,
        train=v2.Compose([as_rgb, *train, *tensor, *hole, normalise, *([RandomErasing(erasing)] if erasing else [])]),
        test=v2.Compose([as_rgb, *test, *tensor, normalise]),
        batch_train=BatchTransform(size=size, pad=pad, flip=recipe.flip, mean=mean, std=std)
        if recipe.pad and not (recipe.colour or randaugment or erasing)
        else None,
        batch_test=BatchTransform(size=size, mean=mean, std=std) if recipe.test_resize == 1 else None,
    )


MARGIN = 24 / 224
"""What test images are larger by where several crops are cut from them, as in LIFT."""


def with_margin(made: Preset) -> Preset:
    """A preset whose test images are somewhat larger, so that crops of ``size`` can be cut from them."""
    side = made.size + round(made.size * MARGIN)
    test = CropTransform(size=side, side=side, mean=made.mean, std=made.std, interpolation=made.interpolation)
    return replace(made, test=test, batch_test=test, test_size=side)


def contrastive_views(base: Preset) -> list[Callable[[Any], Tensor]]:
    """A strong view and two weak ones in the style of contrastive learning, at the size and statistics of a preset.

    Small photographs get AutoAugment and the CIFAR recipe of weak views, large ones RandAugment and ImageNet's. Other
    data, such as characters, which must not be mirrored, get three draws of their own training transform.
    """
    family, fast = base.name.split("-")[0], "-fast" if base.name.endswith("-fast") else ""
    names = {"cifar": ("cifar-auto", "cifar-sim"), "tiny": ("cifar-auto", "cifar-sim")}.get(
        family,
        (f"imagenet-strong{fast}", f"imagenet-sim{fast}")
        if family in ("imagenet", "inat", "vit")
        else (base.name, base.name),
    )
    same = {"size": base.size, "mean": base.mean, "std": base.std, "interpolation": base.interpolation}
    strong, weak = (preset(name, **same).train for name in names)  # type: ignore[arg-type]
    return [strong, weak, weak]


class Views:
    """Several views of one image, each with its own draws: ``Views([strong.train, sim.train, sim.train])(image)``."""

    def __init__(self, transforms: Iterable[Callable[[Any], Tensor]]) -> None:
        self.transforms = tuple(transforms)
        if not self.transforms or not all(callable(transform) for transform in self.transforms):
            raise TypeError(f"Views needs a list of transforms, such as preset('cifar').train; got {transforms!r}.")

    def __call__(self, image: Any) -> tuple[Tensor, ...]:
        return tuple(transform(image) for transform in self.transforms)


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


class RandomErasing:
    """timm's random erasing: with some probability a random rectangle of an image becomes noise."""

    def __init__(self, probability: float) -> None:
        from timm.data.random_erasing import RandomErasing as Erasing  # noqa: PLC0415

        self.probability = probability
        self.erase: Any = Erasing(probability, mode="pixel", device="cpu")  # type: ignore[no-untyped-call]

    def __call__(self, image: Tensor) -> Tensor:
        erased: Tensor = self.erase(image.clone())
        return erased

    def __repr__(self) -> str:
        return f"RandomErasing({self.probability})"


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


def _declared(model: str) -> tuple[tuple[Triple, Triple], str, float]:
    """Statistics, interpolation and crop_pct that a timm checkpoint was trained with."""
    import timm  # noqa: PLC0415

    try:
        config = timm.get_pretrained_cfg(model)
    except RuntimeError:  # a known model, but not with this tag
        config = None
    if config is None:
        known = sorted({*timm.list_models(), *timm.list_models(pretrained=True)})
        raise ValueError(f"timm has no model {model!r}; {nearest(model, known)}")
    statistics = _triple("mean", config.mean), _triple("std", config.std)
    return statistics, config.interpolation, config.crop_pct


def _triple(name: str, values: Sequence[float]) -> Triple:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != 3:
        raise ValueError(f"{name} must be three numbers, one per colour; got {values!r}.")
    return numbers


def _mode(name: str) -> Any:
    try:
        return InterpolationMode(name)
    except ValueError:
        known = [mode.value for mode in InterpolationMode]
        raise ValueError(f"there is no interpolation {name!r}; {nearest(name, known)}") from None


def _words(step: Any) -> str:
    if isinstance(step, v2.RandomApply):
        return f"with probability {step.p}: {', '.join(map(_words, step.transforms))}"
    return getattr(step, "__name__", None) or repr(step)
