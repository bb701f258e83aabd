"""On an accelerator no step of the engine makes the host wait for it, but for what ``MAY_WAIT`` lists."""

import pytest
import torch
from no_waits import Waits
from training.guarded import MAY_WAIT, guarded
from training.runs import assert_same, settings

from spectail.methods.registry import METHODS
from spectail.testing import register_network
from spectail.training import watch
from spectail.training.loop import train

RUNS = {
    "norm and average": {"model__model": "tiny-norm", "optim__ema": 0.8},
    "clipping and micro-batches": {"optim__clip": 0.5, "optim__accumulation": 2, "optim__optimizer": "sgd"},
    "images one by one": {"transform": "cifar-strong"},
    "features": {"probe": True, "model__model": "tiny"},
    "two streams": {"method": "decoupled"},
    "deferred weights": {"options": {"defer": "reweight"}},
    "bf16": {"optim__precision": "bf16"},
    "remix, pasted": {"method": "remix", "options": {"mix": "cutmix", "base_loss": "ldam"}},
    "concutmix, lite": {"method": "concutmix", "options": {"mode": "lite"}},
    "gml, all classes": {"method": "gml", "options": {"divide": "all", "stage2_epochs": 2}},
    "balms, by images": {
        "method": "balms",
        "options": {"meta_draw": "item", "stage2_batch_size": 16, "stage2_epochs": 1},
    },
    "metasaug, fixed meta data": {"method": "metasaug", "options": {"meta_per_class": 3}},
    "metasaug, diagonal, whole network": {
        "method": "metasaug",
        "options": {"covariance": "diagonal", "virtual": "all"},
    },
    "metasaug, psd": {"method": "metasaug", "options": {"psd": True}},
    "metasaug, frozen": {"method": "metasaug", "options": {"frozen": True}},
}


def tiny(output, **changes):
    register_network()  # one that BBN can double
    entry = METHODS.get(changes.get("method", "ce"))
    if entry is not None and hasattr(entry.load().options, "stage2_epochs"):  # not the many steps of a new head
        changes["options"] = {"stage2_epochs": 1} | changes.get("options", {})
    return settings(output, **({"model__model": "testing-net"} | changes))


@pytest.fixture
def watched(monkeypatch):
    with guarded(monkeypatch) as made:
        yield made


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if not entry.car])
def test_no_method_waits(method, watched, tmp_path):
    train(tiny(tmp_path / "run", method=method))
    assert all(watched.steps.values())
    assert sum(watched.steps.values()) >= 8


@pytest.mark.parametrize("name", RUNS)
def test_no_setting_waits(name, watched, tmp_path):
    train(tiny(tmp_path / "run", **RUNS[name]))
    assert sum(watched.steps.values()) >= 6


@pytest.mark.parametrize("method", METHODS)
def test_no_method_waits_with_car(method, monkeypatch, tmp_path):
    """The first batch of a stage may be looked at, to find labels that cannot be right."""
    with guarded(monkeypatch, free=1) as watched:
        train(tiny(tmp_path / "run", method=method, car__enabled=True, car__solver="fixed"))
    assert sum(watched.steps.values()) >= 7


@pytest.mark.parametrize("place", MAY_WAIT, ids=lambda place: place[1])
def test_what_may_wait_does(place, monkeypatch, tmp_path):
    method = "balms" if place[1] == "draw" else "metasaug"
    options = {"psd": True} if place[1] == "cut_off" else {}
    others = [other for other in MAY_WAIT if other is not place]
    with guarded(monkeypatch, may_wait=others), pytest.raises(Waits):
        train(tiny(tmp_path / "run", method=method, options=options))


def test_the_path_of_an_accelerator_leads_to_the_same_model(monkeypatch, tmp_path):
    train(tiny(tmp_path / "plain", method="concutmix", optim__ema=0.8))
    with guarded(monkeypatch):
        train(tiny(tmp_path / "guarded", method="concutmix", optim__ema=0.8))
    assert_same(tmp_path / "plain", tmp_path / "guarded")


def test_a_diverged_run_is_noticed_without_waiting(watched, monkeypatch, tmp_path):
    monkeypatch.setattr(watch, "EVERY", 3)
    changes = {"optim__optimizer": "sgd", "optim__lr": 1e30, "optim__schedule": "constant", "optim__epochs": 3}
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step 3, epoch 0; training stops"):
        train(tiny(tmp_path / "run", **changes))
    assert sum(watched.steps.values()) == 6  # the loss of step 3 set out then, and was looked at three steps later
    state = torch.load(tmp_path / "run" / "diverged.pt", weights_only=True)
    assert len(state["indices"]["main"]) == 16
