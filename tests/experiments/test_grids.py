"""Cells that are compared differ in what their names say, and in nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from spectail.experiments.catalog import find_experiment
from spectail.experiments.grids import ABLATIONS, CHOSEN
from spectail.experiments.runs import Run
from spectail.experiments.scales import sized
from spectail.training.config_io import flat, to_dict


def config_of(experiment, label):
    cell = next(cell for cell in find_experiment(experiment).cells if cell.label == label)
    return Run(cell, "quick", sized(cell, "quick"), 0).config(Path("run"))


def differences(experiment, one, other):
    first, second = (flat(to_dict(config_of(experiment, label))) for label in (one, other))
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ("Balanced Softmax + CAR, logits not shifted", "Balanced Softmax + CAR, logits shifted",
         {"method", "car.enabled"}),
        ("Balanced Softmax + CAR class-wise, not shifted", "Balanced Softmax + CAR class-wise, shifted",
         {"method", "car.enabled"}),
        ("CAR", "CAR without EMA", {"car.beta"}),
        ("CAR", "CAR without Lambda", {"car.weighting"}),
        ("CAR class-wise", "CAR class-wise without margin", {"car.gamma"}),
        ("CE", "CAR", {"method"}),
    ],
)  # fmt: skip
def test_an_ablation_changes_one_thing(one, other, what):
    assert {one, other} <= ABLATIONS.keys()
    assert differences("ablations", one, other) == what


@pytest.mark.parametrize("experiment", ["combinations", "worst-class"])
def test_the_shipped_settings_are_among_the_methods(experiment):
    found = flat(to_dict(config_of(experiment, "car-balanced")))
    assert {name: found[name] for name in CHOSEN} == CHOSEN


def test_selection_holds_out_other_data_for_every_seed():
    cell = find_experiment("search").cells[0]
    seeds = [Run(cell, "quick", sized(cell, "quick"), seed).config(Path("run")).data.val_seed for seed in (0, 3)]
    assert seeds == [0, 3]
