"""A rehearsal: a run as it is, but for a few steps on synthetic images, broken off and resumed in every stage.

Model, method, transform, optimiser, precision, image size and images per class are those of the run. Batches are small,
there are two epochs of one step, so that every phase of a method has its turn, and few images are evaluated.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data.catalog import Entry, find
from ..data.config import DataConfig
from ..data.datasets import Data
from ..data.image_set import ImageSet
from ..data.images import ArrayImages, PackedImages
from ..data.longtail import exponential
from ..data.manifest import Manifest, Split, describe_groups
from ..training.config import TrainConfig, check_config
from ..training.hardware import with_precision
from ..training.loop import RunResults, Trainer
from ..training.reporter import Reporter
from ..training.run_folder import RunFolder
from ..training.signals import Interruptible
from .runs import hash_of

if TYPE_CHECKING:
    from .task import Task

EPOCHS, BATCH, FEW = 2, 2, 2
"""Epochs of each stage, images of a micro-batch, and pictures that there are, which is also how many are evaluated."""
SIDES = {"cifar10-lt": 32, "cifar100-lt": 32, "glyphs-lt": 32, "tiny-imagenet-lt": 64}
"""Pixels of images that are held in memory; others are photographs."""
PHOTOGRAPH, NATURAL = (500, 375), 256.0
"""Their size, and the imbalance factor of sets that are long-tailed by nature: that of ImageNet-LT."""


def rehearsal_of(task: Task) -> Task:
    """The rehearsal of a run: a task with a name of its own, so that it never passes for the run."""
    config = task.config
    batch = BATCH * config.optim.accumulation * task.processes
    given = [field.name for field in fields(config.options) if getattr(config.options, field.name) is not None]
    short: dict[str, Any] = {name: batch for name in given if name.endswith("batch_size")}
    if hasattr(config.options, "stage2_epochs"):
        short["stage2_epochs"] = EPOCHS
    config = replace(config, optim=replace(config.optim, epochs=EPOCHS, batch_size=batch), checkpoint_epochs=1,
                     options=replace(config.options, **short))  # fmt: skip
    about = task.about | {"cell": f"rehearsal of {task.about['cell']}"}
    return replace(task, title=f"rehearsal of {task.title}", name=name_of(task.name), config=config,
                   words=f"rehearsal-{task.words}", about=about, rehearse=True)  # fmt: skip


def name_of(run: str) -> str:
    """What the rehearsal of a run is called."""
    return hash_of(["rehearsal", run])


def rehearse(config: TrainConfig, data: Data) -> dict[str, Any]:
    """Carry a rehearsal out. It leaves no files; an error says what the run could not do."""
    check_config(config)
    config, breaks, begin = with_precision(config), Breaks(), time.perf_counter()
    random = config.model.pretrained and not _at_hand(config.model.model)
    if random:
        config = replace(config, model=replace(config.model, pretrained=False))
    _clear(config)
    try:
        with Interruptible() as interrupt:
            results = None
            while results is None:
                trainer = Rehearsal(config, RunFolder(config.output), breaks, interrupt, data)
                try:
                    results = trainer.run(resume=bool(breaks.stages))
                except BrokenOff:
                    continue
    finally:
        _clear(config)
    taken, expected = sum(results["phases"].values()), EPOCHS * len(breaks.stages)
    if taken != expected:
        raise ValueError(f"it took {taken} optimiser steps instead of {expected}.")
    return {"phases": results["phases"], "seconds": time.perf_counter() - begin, "random_weights": random}


class BrokenOff(Exception):
    """A rehearsal is to be resumed."""


class Breaks(Reporter):
    """Breaks every stage off after its first checkpoint."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def end_epoch(self, entry: dict[str, Any]) -> None:
        if not math.isfinite(entry["loss"]):  # on an accelerator the loop looks at it later than this
            raise ValueError(f"the loss of {entry['stage']} is {entry['loss']} in epoch {entry['epoch']}.")
        if entry["epoch"] == 0:
            if entry["stage"] in self.stages:
                raise ValueError(f"{entry['stage']} began anew instead of going on from its checkpoint.")
            self.stages.append(entry["stage"])
            raise BrokenOff


class Rehearsal(Trainer):
    """The loop with epochs of one step, which evaluates few images."""

    def _epoch(self, epoch: int) -> None:
        main = self.stage.main
        main.length = main.batch_size * main.world_size * self.stage.optim.accumulation
        self.stage.per_epoch = 1
        super()._epoch(epoch)

    def _end_epoch(self, epoch: int, speed: float) -> None:
        with self._few_images():
            super()._end_epoch(epoch, speed)

    def _finish(self) -> RunResults:
        with self._few_images():
            return super()._finish()

    @contextmanager
    def _few_images(self) -> Iterator[None]:
        whole = self.pieces.splits
        self.pieces.splits = {name: split.subset(_spread(len(split))) for name, split in whole.items()}
        try:
            yield
        finally:
            self.pieces.splits = whole


def synthetic_data(config: DataConfig) -> Data:
    """A data set with the classes and the images per class of a named one, which are few pictures again and again."""
    facts = find(config.dataset)
    counts = _class_counts(config, facts)
    names = [f"class {label}" for label in range(len(counts))]
    labels = {"train": np.repeat(np.arange(len(counts)), counts), "test": _spread(len(counts))}
    if config.val_fraction or config.val_per_class:
        labels["val"] = labels["test"]
    sets = {name: ImageSet(_pictures(config.dataset, len(own)), own, names) for name, own in labels.items()}
    whole = sets["train"].counts
    splits = {name: Split.of(data, None, "synthetic") for name, data in sets.items()}
    groups, statistics = describe_groups(whole, config.groups), {"imbalance_factor": whole.imbalance_factor}
    manifest = Manifest(config.dataset, {"profile": "synthetic"}, names, splits, None, groups, statistics)
    return Data(sets["train"], sets["test"], sets.get("val"), manifest, facts.transform)


def _class_counts(config: DataConfig, facts: Entry) -> list[int]:
    """Images per class by the exponential rule; for a set that has lists, as many in all as these."""
    classes = config.num_classes or facts.classes
    if not facts.fixed:
        factor = config.imbalance or facts.imbalance or 1.0
        return exponential(config.max_per_class or facts.largest or 1, classes, factor)
    shares = NATURAL ** -np.linspace(0.0, 1.0, classes)
    return [max(1, round(facts.images * share)) for share in (shares / shares.sum()).tolist()]


def _pictures(dataset: str, number: int) -> ArrayImages | PackedImages:
    noise = np.random.default_rng(0).integers(0, 256, (FEW, 8, 8, 3), dtype=np.uint8)
    which = np.arange(number) % FEW
    width, height = (SIDES[dataset],) * 2 if dataset in SIDES else PHOTOGRAPH
    drawn = [np.asarray(Image.fromarray(picture).resize((width, height))) for picture in noise]
    if dataset in SIDES:
        channels_first = np.ascontiguousarray(np.stack(drawn).transpose(0, 3, 1, 2))[which]
        return ArrayImages(channels_first.transpose(0, 2, 3, 1))  # as loaders store them, so that they copy nothing
    files = [io.BytesIO() for _ in drawn]
    for picture, file in zip(drawn, files, strict=True):
        Image.fromarray(picture).save(file, "JPEG")
    sizes = np.array([len(file.getvalue()) for file in files])
    stored = np.frombuffer(b"".join(file.getvalue() for file in files), dtype=np.uint8)
    return PackedImages(stored, (sizes.cumsum() - sizes)[which], sizes[which])


def _spread(length: int) -> NDArray[np.int64]:
    """Few places, spread over all."""
    return np.arange(min(FEW, length)) * length // min(FEW, length)


def _at_hand(model: str) -> bool:
    """Whether timm's weights of a model lie on this machine."""
    import timm  # noqa: PLC0415 - slow to import
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    place = getattr(timm.get_pretrained_cfg(model), "hf_hub_id", None)
    return place is not None and isinstance(try_to_load_from_cache(place, "model.safetensors"), str)


def _clear(config: TrainConfig) -> None:
    if os.environ.get("RANK", "0") == "0":
        shutil.rmtree(config.output, ignore_errors=True)
