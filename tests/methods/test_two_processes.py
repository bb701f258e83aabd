"""Every method on two processes with half batches is the method on one process with whole ones."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training.rank_runs import train_all
from training.runs import metrics, predictions, results, settings

from spectail.training.loop import train

PLAIN = {"optim__optimizer": "sgd", "optim__lr": 0.05, "optim__momentum": 0.9, "eval_train": False}
UNEVEN = {"optim__batch_size": 20, "data__imbalance": 10}  # an odd last batch: the ranks hold different numbers
SECOND = {"stage2_epochs": 2, "stage2_batch_size": 16}
EACH = {"transform": "cifar-strong"}  # images transformed one by one


def two_stages(method, **options):
    return {"method": method, "options": SECOND | options}


RUNS = {
    "ce": {},
    "ce-reweighted": {"options": {"defer": "reweight"}} | UNEVEN,
    "ce-resampled": {"options": {"defer": "resample"}},
    "focal": {"method": "focal"},
    "cb-samples": {"method": "cb"} | UNEVEN,
    "cb-weights": {"method": "cb", "options": {"average": "weights"}} | UNEVEN,
    "ldam-drw": {"method": "ldam-drw"} | UNEVEN,  # one epoch of each phase
    "balanced-softmax": {"method": "balanced-softmax"},
    "gml": two_stages("gml"),
    "gml-uneven": two_stages("gml", stage2_batch_size=20) | UNEVEN,
    "balms": two_stages("balms", meta_lr=0.05),
    "balms-item": two_stages("balms", meta_draw="item", meta_power=0.3),
    "balms-each": two_stages("balms") | EACH,
    "balms-car": two_stages("balms") | {"car__enabled": True},
    "bbn": {"method": "bbn", "optim__epochs": 3, "car__enabled": True},
    "wb": two_stages("wb"),
    "los": two_stages("los", stage2_lr=0.05),
    "crt": two_stages("crt"),
    "lws": two_stages("lws"),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory, ranks):
    """All runs on two processes."""
    folder = tmp_path_factory.mktemp("two")
    ranks(train_all, [(folder / name, PLAIN | changes) for name, changes in RUNS.items()], timeout=180)
    return folder


def last_state(folder):
    return torch.load(sorted((folder / "checkpoints").iterdir())[-1] / "state.pt", weights_only=False)["learner"]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(name, two, tmp_path):
    train(settings(tmp_path / "one", **(PLAIN | RUNS[name])))
    one, both = load_file(tmp_path / "one" / "model.safetensors"), load_file(two / name / "model.safetensors")
    assert one.keys() == both.keys()
    for key in one:
        np.testing.assert_allclose(both[key], one[key], rtol=1e-4, atol=2e-5, err_msg=key)
    alone, together = last_state(tmp_path / "one"), last_state(two / name)
    for key in alone:  # what the method holds too: rates, caps, weights
        np.testing.assert_allclose(together[key].float(), alone[key].float(), rtol=2e-4, atol=5e-5, err_msg=key)
    np.testing.assert_allclose(
        predictions(two / name)["logits"], predictions(tmp_path / "one")["logits"], rtol=1e-3, atol=2e-4
    )
    assert results(two / name)["phases"] == results(tmp_path / "one")["phases"]
    for alone, together in zip(metrics(tmp_path / "one"), metrics(two / name), strict=True):
        assert together.pop("stage") == alone.pop("stage")
        assert together == pytest.approx(alone, rel=1e-3, abs=1e-6)
