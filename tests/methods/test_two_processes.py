"""Every method on two processes with half batches is the method on one process with whole ones."""

import numpy as np
import pytest
import torch
from forked import torchrun
from methods import rank_methods
from methods.rank_methods import PLAIN, RUNS
from safetensors.torch import load_file
from training.runs import metrics, predictions, results, settings

from spectail.training.loop import train


@pytest.fixture(scope="module")
def two(tmp_path_factory, shared_cache):
    """All runs under one launch, which ends by itself or is ended."""
    folder = tmp_path_factory.mktemp("two")
    torchrun(rank_methods.__file__, folder, timeout=180, SPECTAIL_CACHE=shared_cache)
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
