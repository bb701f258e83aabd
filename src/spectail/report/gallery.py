"""A picture of what augmentation does: images of a real batch before and after, with the label mass printed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ..augment.mixing import Draws
from ..data.image_set import ImageSet
from ..data.loader import Batch
from ..data.transforms import Preset
from ..targets import MixedTarget
from ..training.config_io import from_dict
from ..training.loop import Trainer
from ..training.reporter import Reporter
from ..training.run_folder import RunFolder
from ..training.signals import Interruptible
from ..training.stage_run import StageRun
from .figures import save as save_figure

EVEN = {"mix_alpha": 30.0}
"""A Beta distribution around one half: usual draws often show one of the two images only."""
SHOWN: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mixup", "remix", EVEN | {"tau": 0.0}),
    ("CutMix", "remix", EVEN | {"tau": 0.0, "mix": "cutmix"}),
    ("ReMix", "remix", EVEN),
    ("ReMix with CutMix", "remix", EVEN | {"mix": "cutmix"}),
    ("CMO", "cmo", EVEN | {"probability": 1.0, "plain_first": 0, "plain_last": 0}),
    ("ConCutMix", "concutmix", EVEN | {"probability": 1.0}),
    ("ConCutMix lite", "concutmix", EVEN | {"mode": "lite", "probability": 1.0}),
)
TRANSFORMS = ("cifar-auto", "cifar-sim", "imagenet-strong")
"""Recipes that change one image at a time."""
LONGEST = 18
"""Letters of a class name that fit under a picture beside its share."""


class Strip(NamedTuple):
    """A line of the gallery: pictures (H, W, 3) of one kind, and what stands under each."""

    title: str
    pictures: list[NDArray[np.float32]]
    captions: list[str]


class Mixed(NamedTuple):
    """One step of a method: what was there, what the backbone saw, and the target."""

    trainer: Trainer
    main: Tensor
    partner: Tensor
    seen: Tensor
    target: MixedTarget


def save(path: Path, data: dict[str, Any], columns: int = 6, seed: int = 1) -> None:
    """Write the gallery as PNG. ``data`` are settings of the data set, as in a configuration.

    Every picture comes from the engine: batches as a run draws them, what the network was given, and the target that
    the method returned.
    """
    strips = [
        strip
        for title, method, options in SHOWN
        for strip in mixed_strips(title, captured(method, options, data, seed), columns)
    ]
    strips += [strip for name in TRANSFORMS for strip in transform_strips(name, data, seed, columns)]
    save_figure(draw(strips, columns), path)


def draw(strips: list[Strip], columns: int) -> Figure:
    figure = Figure(figsize=(1.5 * columns + 1.6, 1.75 * len(strips)), layout="constrained")
    axes = figure.subplots(len(strips), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
    for row, strip in zip(axes, strips, strict=True):
        row[0].set_ylabel(strip.title, fontsize=9)
        for axis, picture, captions in zip(row, strip.pictures, strip.captions, strict=False):
            axis.imshow(picture)
            axis.set_xlabel(captions, fontsize=7)
    return figure


def mixed_strips(title: str, mixed: Mixed, columns: int) -> list[Strip]:
    """Images, partners and mixes, those first whose classes differ most in size."""
    target, sizes = mixed.target, mixed.trainer.counts.counts
    logs = sizes.double().log()
    order = (logs[target.a] - logs[target.b]).abs().argsort(descending=True)[:columns].tolist()
    names, preset = mixed.trainer.pieces.splits["train"].names, mixed.trainer.pieces.preset
    captions: dict[str, list[str]] = {"image": [], "partner": [], "mixed": []}
    for column in order:
        a, b, share = int(target.a[column]), int(target.b[column]), float(target.share[column])
        captions["image"].append(f"{short(names[a])}\nn = {int(sizes[a])}")
        captions["partner"].append(f"{short(names[b])}\nn = {int(sizes[b])}")
        captions["mixed"].append(f"{short(names[a])} {share:.0%}\n{short(names[b])} {1 - share:.0%}")
    images = {"image": mixed.main, "partner": mixed.partner, "mixed": mixed.seen}
    return [
        Strip(f"{title}\n{what}", [picture(images[what][column], preset) for column in order], captions[what])
        for what in images
    ]


def transform_strips(name: str, data: dict[str, Any], seed: int, columns: int) -> list[Strip]:
    """Images as a test would see them, and as training does; the label stays whole."""
    trainer, batches = batch_of("ce", {}, data, seed, transform=name)
    batch, train, preset = batches["main"], trainer.pieces.splits["train"], trainer.pieces.preset
    assert isinstance(train, ImageSet)
    plain = [preset.test(train.images.read(row)) for row in batch.indices[:columns].tolist()]
    labels = batch.labels[:columns].tolist()
    before = [f"{short(train.names[label])}\nn = {int(trainer.counts.counts[label])}" for label in labels]
    after = [f"{short(train.names[label])} 100%\n" for label in labels]
    return [
        Strip(f"{name}\nimage", [picture(image, preset) for image in plain], before),
        Strip(f"{name}\naugmented", [picture(image, preset) for image in batch.images[:columns]], after),
    ]


def batch_of(
    method: str, options: dict[str, Any], data: dict[str, Any], seed: int, **more: Any
) -> tuple[Trainer, dict[str, Batch]]:
    """A run at its first step, and the batches of that."""
    with tempfile.TemporaryDirectory() as folder:
        config = from_dict(
            {"method": method, "options": options, "data": data, "device": "cpu", "workers": 0, "seed": seed,
             "output": folder, "optim": {"batch_size": 32, "epochs": 1}} | more
        )  # fmt: skip
        trainer = Trainer(config, RunFolder(config.output), Reporter(), Interruptible())
        trainer.stage = StageRun(trainer.stages[0], config, trainer.pieces, trainer.car_term, trainer.generator, None)
        trainer.stage.learner.train()
    trainer.method.begin_epoch(trainer.stage.step)
    (batches, *_), _ = next(trainer.stage.groups())
    return trainer, batches


def captured(method: str, options: dict[str, Any], data: dict[str, Any], seed: int) -> Mixed:
    """What the backbone is given in the first step of a run."""
    trainer, batches = batch_of(method, options, data, seed)
    seen: list[Tensor] = []
    trainer.pieces.model.backbone.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].clone()))
    same = torch.Generator()
    same.set_state(trainer.generator.get_state())
    target = trainer.stage.learner(batches, trainer.stage.step).target
    main, front = (
        None if batch is None else batch.images[0] if isinstance(batch.images, tuple) else batch.images
        for batch in (batches["main"], batches.get("foreground"))
    )
    assert main is not None
    # a foreground of its own, or images of the same batch in the order that the method drew
    partner = main[Draws(same).partners(len(main), main.device)] if front is None else front[: len(main)]
    return Mixed(trainer, main, partner, seen[0][: len(main)], target)


def picture(image: Tensor, preset: Preset) -> NDArray[np.float32]:
    shown = image.cpu() * torch.tensor(preset.std).view(3, 1, 1) + torch.tensor(preset.mean).view(3, 1, 1)
    pixels: NDArray[np.float32] = shown.clamp(0, 1).permute(1, 2, 0).numpy()
    return pixels


def short(name: str) -> str:
    """A class name that does not run into that of the next picture.

    Example:
        >>> short("Cypripedium parviflorum")
        'Cypripedium parvi…'
    """
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
