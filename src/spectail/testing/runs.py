"""Small runs for the checks: a network of two layers, 68 images of six classes, and a run that is cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..methods.registry import find_method
from ..models.build import MODELS
from ..training.config import TrainConfig
from ..training.config_io import from_dict
from ..training.loop import Trainer
from ..training.reporter import Reporter
from ..training.run_folder import RunFolder
from ..training.signals import Interruptible
from ..training.stage_run import StageRun


class TinyNetwork(nn.Module):
    """Pooled pixels, one layer and one block, without batch norm: results do not depend on how a batch is split."""

    num_features = 24

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 24), nn.LayerNorm(24))
        self.blocks = nn.Sequential(nn.Linear(24, 24))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(images).relu()).relu()
        return features


def register_network() -> None:
    """Make the network known as ``testing-net``."""
    MODELS.setdefault("testing-net", ("two layers, for the checks of spectail.testing", lambda options: TinyNetwork()))


def settings(method: str, output: Path, **changes: Any) -> TrainConfig:
    """A run of two epochs on 68 images of six classes. ``car`` and ``optim`` change those settings."""
    register_network()
    content: dict[str, Any] = {
        "method": method,
        "data": {"dataset": "glyphs-lt", "num_classes": 6, "max_per_class": 24, "imbalance": 6},
        "model": {"model": "testing-net"},
        "optim": {"epochs": 2, "batch_size": 16} | changes.pop("optim", {}),
        "device": "cpu",
        "workers": 0,
        "output": str(output),
    }
    if hasattr(find_method(method).load().options, "stage2_epochs"):  # a length that wins over that of a new head
        content["options"] = {"stage2_epochs": 1}
    return from_dict(content | changes)


def begun(config: TrainConfig, stage: int = 0) -> Trainer:
    """A trainer that waits for the first step of a stage."""
    trainer = Trainer(config, RunFolder(config.output), Reporter(), Interruptible())
    trainer.stage = StageRun(trainer.stages[stage], config, trainer.pieces, trainer.car_term, trainer.generator, None)
    trainer.stage.learner.train()
    return trainer


class Stop(Exception):
    """The moment a run is cut off."""


class StopAfter(Reporter):
    """Raises after so many steps of the run, before the last of them is saved."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step(self, done: int, figures: Any) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Stop


def assert_same(a: Path, b: Path, when: str) -> None:
    """Two run folders, bit for bit."""
    for name in ("model.safetensors", "predictions.npz"):
        same = (a / name).read_bytes() == (b / name).read_bytes()
        assert same, f"{name} differs from the uninterrupted run when {when}"
    first, second = (json.loads((folder / "results.json").read_text()) for folder in (a, b))
    differing = [key for key in first if key != "seconds" and first[key] != second[key]]
    assert not differing, f"results.json differs in {differing} when {when}"
