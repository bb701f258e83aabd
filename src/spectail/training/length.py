"""How long a head must be trained: a ladder of lengths, until twice as long is no better on held-out images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from numpy.typing import NDArray
from torch import Tensor

from ..data.datasets import Data
from ..data.feature_set import FeatureSet
from ..data.longtail import hold_out
from ..methods.deferred import LossOptions
from ..methods.registry import find_method
from .build import make_pieces
from .config import CARConfig, TrainConfig
from .heads import Head, steps_per_epoch, train_head, trains_on_arrays
from .reporter import Reporter

LADDER = (250, 500, 1_000, 2_000, 4_000, 8_000)
"""Lengths in optimiser steps that are tried until one is long enough."""
LEAST_WITH_CAR = 1_000
"""Steps of a head that CAR helps to train: its history must have met the rare classes often. With 340 steps on
CIFAR-100-LT, where the loss itself no longer falls, `car-worst` lost 3 points of the lowest tenth of the classes; with
1,020 steps or more it gains 2 to 3."""
FALL, LEAST = 0.01, 0.005
"""A training of twice the length must lower the held-out loss by this share of it, and by so much, to be worth it."""
MANY = 625
"""Held-out images for which that holds. With fewer the loss is uncertain by more, and so it must fall by more."""

LEAST_EPOCHS = 10
"""Of a run whose last fifth says anything."""


@dataclass(frozen=True)
class Length:
    """How long training must be, and how that was found."""

    head: Head
    losses: dict[int, float]
    """Held-out loss by length, in the order of trying."""
    converged: bool
    """False if the loss was still falling when the ladder, or the time, ended, or if nothing was held out."""

    @property
    def steps(self) -> int:
        return self.head.steps


def whole_epochs(ladder: Sequence[int], per_epoch: int) -> list[int]:
    """The lengths of a ladder in whole epochs, without those that are then hardly longer than the one before.

    Example:
        >>> whole_epochs((250, 500, 1_000, 2_000), 68), whole_epochs((250, 500, 1_000, 2_000), 725)
        ([272, 544, 1020, 2040], [725, 1450, 2175])
        >>> whole_epochs((250, 500, 1_000), 5_000)  # one length says nothing
        [5000, 10000]
    """
    found: list[int] = []
    for steps in ladder:
        whole = -(-steps // per_epoch) * per_epoch
        if not found or 2 * whole >= 3 * found[-1]:
            found.append(whole)
    return found if len(found) > 1 or len(ladder) == 1 else [found[0], 2 * found[0]]


def least_steps(config: TrainConfig) -> int:
    """Steps below which no head is judged, whatever its loss."""
    return LEAST_WITH_CAR if config.car.enabled or find_method(config.method).car else 0


def find_length(
    features: Tensor,
    labels: NDArray[np.int64],
    names: Sequence[str],
    config: TrainConfig,
    held: tuple[Tensor, NDArray[np.int64]],
    *,
    ladder: Sequence[int] = LADDER,
    least: int = 0,
) -> Length:
    """Train with one length after the other, each with a schedule of its own, until twice as long is no better.

    The lengths are those of the ladder in whole epochs, and the one that is found is ``least`` steps or more, if the
    ladder has them. ``held`` are features and labels that are not trained on.
    """
    lengths = whole_epochs(ladder, steps_per_epoch(len(labels), config))
    doubt = max(1.0, math.sqrt(MANY / max(len(held[1]), 1)))
    losses: dict[int, float] = {}
    best: Head | None = None
    for steps in lengths:
        head = train_head(features, labels, names, config, steps)
        losses[steps] = head.loss(held[0], torch.from_numpy(held[1]).to(features.device))
        known = list(losses.values())
        if best is not None and not known[-1] < known[-2] - doubt * max(FALL * known[-2], LEAST):
            enough = next((longer for longer in lengths if longer >= least), lengths[-1])
            if best.steps < enough:
                best = head if steps == enough else train_head(features, labels, names, config, enough)
            return Length(best, losses, len(held[1]) > 0)
        best = head
    assert best is not None
    return Length(best, losses, False)


HELD_OUT = 0.2


def with_length(config: TrainConfig, data: Data | None, reporter: Reporter) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings with as many epochs as the run needs where they say 0; and how that was found: the held-out loss of
    each length, and whether the ladder was long enough.

    A fifth of each class is held out to find the length; the run itself then learns from all images, in as many more
    steps. A method with several stages, or with streams of its own, is as long as cross entropy.
    """
    if config.optim.epochs:
        return config, {}
    pieces = make_pieces(replace(config, optim=replace(config.optim, epochs=1)), reporter, data)
    table = pieces.splits["train"]
    assert isinstance(table, FeatureSet)
    held = hold_out(table.labels, table.names, fraction=HELD_OUT, seed=config.seed)
    trained = replace(config, method="ce", options=LossOptions(), car=CARConfig())
    one = config if trains_on_arrays(config.method) else trained
    out = torch.from_numpy(held)
    length = find_length(
        table.features[~out], table.labels[~held], table.names, one, (table.features[out], table.labels[held]),
        least=least_steps(one),
    )  # fmt: skip
    per_epoch, steps = -(-len(table) // config.optim.batch_size), max(length.steps, least_steps(config))
    epochs = max(1, round(steps * len(table) / int((~held).sum()) / per_epoch))
    losses = {str(tried): none_if_unknown(loss) for tried, loss in length.losses.items()}
    found = [{"epochs": epochs, "steps": steps, "converged": length.converged, "losses": losses}]
    broadcast_object_list(found)  # ranks must agree, whatever their rounding
    agreed: dict[str, Any] = found[0]
    why = f"the loss on held-out images stops falling after {agreed['steps']:,} steps"
    if not held.any():
        why = "there are too few images to hold some out and find a length"
    elif not agreed["converged"]:
        why = f"after {agreed['steps']:,} steps the loss on held-out images is still falling, and longer is not tried"
    elif str(agreed["steps"]) not in list(agreed["losses"])[:-1]:  # where it stopped falling
        why = f"CAR is trained for {least_steps(config):,} steps at least"
    reporter.start(f"{agreed['epochs']} epochs: {why}")
    return replace(config, optim=replace(config.optim, epochs=agreed["epochs"])), agreed


def none_if_unknown(loss: float) -> float | None:
    """A loss as a file of JSON can hold it: that of no images is not a number."""
    return loss if math.isfinite(loss) else None


@dataclass(frozen=True)
class LateGain:
    """What a training gained at its end."""

    points: float
    error: float
    """Standard error from the jumps between epochs."""


def late_gain(lines: Sequence[Mapping[str, Any]]) -> LateGain | None:
    """How much accuracy, on validation data or on the watched part of the test set, rose in the last fifth of the
    epochs; None where too few were measured. Both ends are means over a tenth of the epochs.

    Example:
        >>> late_gain([{"val_balanced": min(epoch, 9.0)} for epoch in range(20)])
        LateGain(points=0.0, error=0.0)
        >>> late_gain([{"loss": 1.0}]) is None
        True
    """
    for name in ("val_balanced", "watched_test_overall"):
        values = np.array([line[name] for line in lines if line.get(name) is not None])
        if len(values) >= LEAST_EPOCHS:
            tenth, end = len(values) // 10, len(values) - len(values) // 5
            jumps = np.diff(values[end - tenth :])
            noise = float(np.sqrt((jumps**2).mean() / 2))  # of one epoch
            points = values[-tenth:].mean() - values[end - tenth : end].mean()
            return LateGain(float(points), noise * float(np.sqrt(2 / tenth)))
    return None
