"""What `fit` chooses from: the one list of trainings, and the post-hoc shifts that each of them can be used with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts import ClassCounts
from ..training.config import TrainConfig
from ..training.config_io import from_dict
from ..training.head_settings import HEADS, rate_for

AS_TRAINED = "network"
"""In place of features: the logits of a network that was trained here, with its own head."""
SHIFTS = tuple(round(float(shift), 2) for shift in np.arange(-1.0, 2.01, 0.1))
"""Multiples of the log prior that are taken off the logits of a trained head: a whole line for one training."""


@dataclass(frozen=True)
class Training:
    """A way to train a head. Every fold trains it once; all shifts of its logits come free."""

    name: str
    """How a person calls the loss."""
    features: str
    """What is done to the features first, as `--features` names it."""
    lr: float
    decay: float
    method: str
    simplicity: int
    """0 for cross entropy and Balanced Softmax; the higher, the more there is to explain and to go wrong."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of the run, nested as in config.yaml."""
    backbone: str = ""
    """The network that the features come from, where several were trained."""

    @property
    def title(self) -> str:
        if self.features == AS_TRAINED:
            return f"{self.backbone} network as trained"
        source = f" of {self.backbone} network" if self.backbone else ""
        return f"{self.name}, {self.features}{source}" + (f", decay {self.decay:g}" if self.decay else "")

    def config(self, base: TrainConfig) -> TrainConfig:
        """The settings of a run that trains it."""
        config = from_dict({"method": self.method} | self.settings, base)
        return replace(config, optim=replace(config.optim, lr=self.lr, weight_decay=self.decay))


@dataclass(frozen=True)
class Candidate:
    """A training, used with its logits shifted by ``-shift log(n_j / N)``."""

    training: Training
    shift: float

    @property
    def title(self) -> str:
        return self.training.title + (f", shift {self.shift:+g}" if self.shift else "")

    @property
    def simplicity(self) -> int:
        """A shift is one number, and no reason to prefer a candidate without: the goal says what the prior is worth."""
        return self.training.simplicity


LOSSES: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("cross entropy", "ce", 0, {}),
    ("Balanced Softmax", "balanced-softmax", 0, {}),
    ("class-balanced sampling", "ce", 1, {"options": {"defer": "resample", "defer_at": 0.0}}),
    ("LDAM-DRW", "ldam-drw", 1, {}),
    ("CAR, class-wise", "car", 2, {"car": {"preset": "classwise"}}),
    ("car-balanced", "car-balanced", 2, {}),
    ("car-worst", "car-worst", 2, {}),
)
"""Name, method, simplicity, settings."""
FEW, TINY = 500, 100
"""Rows below which only losses of simplicity 0 are tried, and only cross entropy: another one would have to be better
by more than the error of a figure that so few rows give."""


def trainings(width: int, methods: Sequence[str] | None = None, rows: int = FEW) -> list[Training]:
    """All trainings on so many rows with so many columns, or those of some methods.

    Cross entropy, which the choice is compared with, is always there, and first.
    """
    if methods is None:
        wanted = [loss for loss in LOSSES if rows >= FEW or loss[2] == 0][: 1 if rows < TINY else None]
    else:
        wanted = [loss for loss in LOSSES if loss[1] in (*methods, "ce")]
    return [
        Training(name, features, rate_for(features, width), decay, method, simplicity, settings)
        for name, method, simplicity, settings in wanted
        for features, decay in HEADS
    ]


def shifted(logits: NDArray[np.floating[Any]], shift: float, counts: ClassCounts) -> NDArray[np.floating[Any]]:
    return logits if shift == 0 else logits - np.asarray(shift * counts.frequencies.log().numpy(), logits.dtype)
