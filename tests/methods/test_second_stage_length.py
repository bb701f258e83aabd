"""How long a second stage is: a new head gets the steps it needs, unless a length is asked for."""

import math

import pytest
from training.runs import IMAGES, Stop, StopAt, assert_same, results, settings, shake

from spectail import ClassCounts
from spectail.methods import METHODS
from spectail.methods.base import MOST_EPOCHS
from spectail.training.config_io import from_dict
from spectail.training.loop import train
from spectail.training.reporter import Reporter


class Said(Reporter):
    def __init__(self):
        self.lines = []

    def start(self, text):
        self.lines.append(text)


def second(name, epochs, **options):
    config = from_dict({"method": name, "options": options})
    return METHODS[name].load()(ClassCounts([9, 4, 2]), config.options, epochs=epochs).stages()[1]


@pytest.mark.parametrize(
    ("name", "steps"),
    [("balms", 2000), ("gml", 440), ("crt", 0), ("lws", 0), ("wb", 0), ("los", 0)],
)
def test_only_new_heads_that_gain_by_it_have_a_floor(name, steps):
    """2,000 are the authors' of BALMS; for cRT, WB and LOS longer second stages were worse."""
    for epochs in (1, 12, 200):
        assert second(name, epochs).least_steps == steps
    assert second(name, 12, stage2_epochs=3).least_steps == 0
    assert second(name, 12, stage2_epochs=3).epochs == 3


def test_an_old_head_that_goes_on_has_none():
    assert second("gml", 12, reuse_head=True).least_steps == 0


@pytest.mark.parametrize(("name", "floor"), [("balms", 7), ("gml", 7), ("balms", 2000)])
def test_a_short_run_gets_the_steps(tmp_path, monkeypatch, name, floor):
    """68 images in batches of 16: 4 full ones and one that BALMS leaves out. Never more than MOST_EPOCHS."""
    monkeypatch.setattr(METHODS[name].load(), "least_steps", floor)
    monkeypatch.setattr("spectail.training.stage_run.MOST_EPOCHS", 3)
    said = Said()
    options = {"stage2_batch_size": 16, "stage2_epochs": None}
    train(settings(tmp_path / "run", method=name, options=options, eval_train=False), reporter=said)
    per_epoch = IMAGES // 16 + (name == "gml")
    epochs = 2 if floor == 7 else 3
    assert results(tmp_path / "run")["phases"]["stage2"] == epochs * per_epoch
    assert f"stage2 has {epochs} epochs instead of 1: a new head needs about {floor:,} steps (--stage2-epochs)" in (
        said.lines
    )


def test_a_length_that_is_asked_for_wins(tmp_path):
    options = {"stage2_batch_size": 16, "stage2_epochs": 1}
    train(settings(tmp_path / "run", method="balms", options=options, eval_train=False))
    assert results(tmp_path / "run")["phases"]["stage2"] == IMAGES // 16


@pytest.mark.parametrize(("images", "epochs"), [(10847, 96), (9502, 112)])
def test_2000_steps_fit_into_the_most_epochs(images, epochs):
    """CIFAR-100-LT at imbalance factors 100 and 200, in full batches of 512."""
    assert math.ceil(2000 / (images // 512)) == epochs <= MOST_EPOCHS


@pytest.mark.parametrize("name", ["balms", "gml"])
def test_a_longer_stage_resumes_to_the_bit(tmp_path, monkeypatch, name):
    monkeypatch.setattr(METHODS[name].load(), "least_steps", 9)
    changes = {"method": name, "options": {"stage2_batch_size": 16}, "checkpoint_every": 1, "eval_train": False}
    train(settings(tmp_path / "whole", **changes))
    config = settings(tmp_path / "cut", **changes)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=17))  # 10 are of the first stage
    shake()
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
