"""Tiny runs for the tests of the engine: settings, networks without batch norm, and comparison of run folders."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn

from spectail.methods import base
from spectail.methods.registry import METHODS, Entry, find_method
from spectail.models.build import MODELS
from spectail.models.small import SmallViT
from spectail.training.config_io import from_dict
from spectail.training.reporter import Reporter

DATA = {"dataset": "glyphs-lt", "num_classes": 6, "max_per_class": 24, "imbalance": 6}
FLAGS = ("--dataset", "glyphs-lt", "--num-classes", "6", "--max-per-class", "24", "--imbalance", "6",
         "--batch-size", "16", "--epochs", "2", "--device", "cpu", "--workers", "0")  # fmt: skip
QUICK = (*FLAGS, "--model", "tiny")  # where the commands of this process know the networks below
IMAGES = 68


class Tiny(nn.Module):
    """Pooled pixels and one layer: fast, without batch norm."""

    num_features = 24

    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 24), nn.LayerNorm(24), nn.ReLU(), nn.Dropout(dropout)
        )

    def forward(self, x):
        return self.layers(x)


class TinyNorm(Tiny):
    """The same with batch norm."""

    def __init__(self):
        super().__init__()
        self.layers[3] = nn.BatchNorm1d(24)


TINY = {
    "tiny": ("pooled pixels", lambda options: Tiny()),
    "tiny-dropout": ("with dropout", lambda options: Tiny(0.5)),
    "tiny-vit": ("two blocks", lambda options: SmallViT(32, 16, width=12, depth=2, heads=2)),
    "tiny-norm": ("with batch norm", lambda options: TinyNorm()),
}


class Decoupled(base.Method):
    """All weights, then a fresh head on a frozen backbone with a second, balanced stream."""

    def stages(self):
        return [base.Stage("one"), base.Stage("two", epochs=1, train="head", fresh_head=True, optim={"lr": 0.05})]

    def streams(self, stage):
        if stage.name == "one":
            return {"main": base.Stream()}
        return {"main": base.Stream("class-balanced"), "other": base.Stream("reversed")}

    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        if "other" not in batches:
            return found
        other = self.criterion(model(batches["other"].images), batches["other"].labels)
        return found._replace(loss=(found.loss + other) / 2)


DECOUPLED = Entry("decoupled", "of the tests", "base:DecoupledOfTheTests")


def register():
    """For scripts; tests have the fixture of conftest."""
    MODELS.update(TINY)
    METHODS["decoupled"] = DECOUPLED
    base.DecoupledOfTheTests = Decoupled


def settings(output, **changes):
    """A run of two epochs of five steps, the last one of four images; nested names as in `optim__lr`.

    A second stage is as short, unless ``options`` say something else."""
    content = {
        "data": dict(DATA), "model": {"model": "tiny"}, "optim": {"epochs": 2, "batch_size": 16, "lr": 1e-2},
        "device": "cpu", "workers": 0, "output": str(output),
    }  # fmt: skip
    for name, value in changes.items():
        place, _, inner = name.partition("__")
        if inner:
            content.setdefault(place, {})[inner] = value
        else:
            content[place] = value
    kind = find_method(content.get("method", "ce")).load()
    if hasattr(kind.options, "stage2_epochs"):  # a new head would take thousands of steps
        content["options"] = {"stage2_epochs": 2} | content.get("options", {})
    return from_dict(content)


class Stop(Exception):
    """The moment a test cuts a run off."""


class StopAt(Reporter):
    """Raises after a number of optimiser steps (before they are saved), or at the end of an epoch (after)."""

    def __init__(self, steps=None, epochs=None):
        self.steps, self.epochs = steps, epochs

    def step(self, done, figures):
        if self.steps is not None:
            self.steps -= 1
            if self.steps == 0:
                raise Stop

    def end_epoch(self, entry):
        if self.epochs is not None:
            self.epochs -= 1
            if self.epochs == 0:
                raise Stop


class Losses(Reporter):
    """Keeps what the loop tells."""

    def __init__(self):
        self.lines, self.entries, self.steps = [], [], 0

    def start(self, text):
        self.lines.append(text)

    def step(self, done, figures):
        self.steps += 1

    def end_epoch(self, entry):
        self.entries.append(entry)


def shake():
    """Another state of every generator, as a new process would have."""
    torch.manual_seed(987)
    random.seed(987)
    np.random.seed(987)  # noqa: NPY002


def results(folder):
    content = json.loads((Path(folder) / "results.json").read_text())
    content.pop("seconds")
    return content


def metrics(folder):
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("images_per_second")
        line.pop("data_seconds")
    return lines


def predictions(folder):
    with np.load(Path(folder) / "predictions.npz") as found:
        return dict(found)


def assert_same(a, b):
    """Two run folders, bit for bit, times apart."""
    assert metrics(a) == metrics(b)
    assert (Path(a) / "model.safetensors").read_bytes() == (Path(b) / "model.safetensors").read_bytes()
    assert results(a) == results(b)
    first, second = predictions(a), predictions(b)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
