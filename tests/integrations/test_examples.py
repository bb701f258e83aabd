"""Every example runs as it stands."""

import re
from pathlib import Path

import pytest
import torch
from jobs import TORCHRUN, launch

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = ("plain_torch", "torchrun_ddp", "with_accelerate", "with_huggingface", "with_lightning", "with_timm")


def overall(printed):
    return float(re.findall(r"overall:? (\d+\.\d+)", printed)[-1])


def test_every_example_is_listed_and_short():
    found = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert found.keys() == {*HERE, "blobs"}
    assert all(found[name] < 80 for name in HERE)


def test_plain_torch(tmp_path):
    first = launch(EXAMPLES / "plain_torch.py", cwd=tmp_path)
    assert overall(first) > 25  # of ten classes
    again = launch(EXAMPLES / "plain_torch.py", cwd=tmp_path)
    assert "epoch 0:" in first
    assert "epoch 12:" in again  # it went on
    assert "epoch 0:" not in again


def test_torchrun_ddp(tmp_path):
    printed = launch(*TORCHRUN, EXAMPLES / "torchrun_ddp.py", cwd=tmp_path)
    assert overall(printed) > 25
    assert printed.count("epoch 11:") == 1  # one rank speaks
    assert "car.history.rows" in torch.load(tmp_path / "runs" / "torchrun_ddp.pt")["criterion"]


def test_with_accelerate(tmp_path):
    assert overall(launch(EXAMPLES / "with_accelerate.py", cwd=tmp_path)) > 25
    saved = torch.load(tmp_path / "runs" / "with_accelerate" / "custom_checkpoint_0.pkl")
    assert int(saved["step"]) == 12 * (276 // 16)


def test_with_lightning(tmp_path):
    printed = launch(EXAMPLES / "with_lightning.py", cwd=tmp_path)
    assert overall(printed) > 25
    assert re.search(r"val/singular_value_1: \d", printed)
    (log,) = tmp_path.glob("runs/with_lightning/version_0/metrics.csv")
    header = log.read_text(encoding="utf-8").splitlines()[0]
    assert {"car/spectral_norm", "accuracy/tail", "val/worst_class"} <= set(header.split(","))
    (last,) = tmp_path.glob("runs/with_lightning/version_0/checkpoints/last.ckpt")
    assert "criterion.car.history.rows" in torch.load(last, weights_only=False)["state_dict"]


def test_with_huggingface(tmp_path):
    assert overall(launch(EXAMPLES / "with_huggingface.py", cwd=tmp_path)) > 10
    last = max(tmp_path.glob("runs/with_huggingface/checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert "spectail" in torch.load(last / "optimizer.pt")["param_groups"][0]


def test_with_timm(tmp_path):
    printed = launch(EXAMPLES / "with_timm.py", cwd=tmp_path)
    assert overall(printed) > 10
    assert "loaded" in printed


@pytest.mark.parametrize("name", HERE)
def test_examples_speak_of_what_they_are(name):
    """A reader finds how to start it in the first lines."""
    assert f"examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").split('"""')[1]
