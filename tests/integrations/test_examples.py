"""Every example runs as it stands, and goes on where its text says that it does.

Ten classes, balanced: chance is 10 %. The limits lie about ten points below what was measured (beside them).
"""

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
    assert found.keys() == {*HERE, "baseline", "blobs"}
    assert all(found[name] < 85 for name in HERE)


def beats_cross_entropy(printed):
    plain, ours = (re.findall(rf"^{name}.*tail (\d+\.\d)", printed, re.MULTILINE)[-1]
                   for name in ("cross entropy", "CARLoss.balanced"))  # fmt: skip
    return float(ours) > float(plain)


def test_plain_torch(tmp_path):
    first = launch(EXAMPLES / "plain_torch.py", cwd=tmp_path)
    assert overall(first) > 38  # 51.2
    assert beats_cross_entropy(first)
    again = launch(EXAMPLES / "plain_torch.py", cwd=tmp_path)
    assert "epoch 0:" in first
    assert "epoch 12:" in again  # it went on
    assert "epoch 0:" not in again


def test_torchrun_ddp(tmp_path):
    printed = launch(*TORCHRUN, EXAMPLES / "torchrun_ddp.py", cwd=tmp_path)
    assert overall(printed) > 40  # 50.5
    assert beats_cross_entropy(printed)
    assert printed.count("epoch 11:") == 1  # one rank speaks
    first = torch.load(tmp_path / "runs" / "torchrun_ddp.pt")
    again = launch(*TORCHRUN, EXAMPLES / "torchrun_ddp.py", cwd=tmp_path)
    assert re.findall(r"epoch (\d+):", again) == [str(epoch) for epoch in range(12, 24)]
    assert overall(again) > overall(printed)
    saved = torch.load(tmp_path / "runs" / "torchrun_ddp.pt")
    for states, epochs in ((first, 12), (saved, 24)):  # 276 images in global batches of 32
        assert int(states["criterion"]["step"]) == epochs * 9
        assert int(states["optimizer"]["state"][0]["step"]) == epochs * 9


def test_with_accelerate(tmp_path):
    for epochs, limit in ((12, 36), (24, 46)):  # 46.8, then 56.0
        assert overall(launch(EXAMPLES / "with_accelerate.py", cwd=tmp_path)) > limit
        saved = torch.load(tmp_path / "runs" / "with_accelerate" / "custom_checkpoint_0.pkl")
        assert int(saved["step"]) == epochs * (276 // 16)


def test_with_accelerate_on_two_processes(tmp_path):
    printed = launch(*TORCHRUN, EXAMPLES / "with_accelerate.py", cwd=tmp_path)
    assert overall(printed) > 31  # 41.0
    assert printed.count("epoch 11:") == 1  # one job, not two
    saved = torch.load(tmp_path / "runs" / "with_accelerate" / "custom_checkpoint_0.pkl")
    assert int(saved["step"]) == 12 * (276 // 16 // 2)


def test_with_lightning(tmp_path):
    printed = launch(EXAMPLES / "with_lightning.py", cwd=tmp_path)
    assert overall(printed) > 41  # 51.5
    assert re.search(r"val/singular_value_1: \d", printed)
    (log,) = tmp_path.glob("runs/with_lightning/version_0/metrics.csv")
    header = log.read_text(encoding="utf-8").splitlines()[0]
    assert {"car/spectral_norm", "accuracy/tail", "val/worst_class"} <= set(header.split(","))
    (last,) = tmp_path.glob("runs/with_lightning/version_0/checkpoints/last.ckpt")
    assert "criterion.car.history.rows" in torch.load(last, weights_only=False)["state_dict"]


def test_with_huggingface(tmp_path):
    for epochs, more, limit in ((40, (), 36), (80, ("--resume",), 40)):  # 46.8, then more
        assert overall(launch(EXAMPLES / "with_huggingface.py", *more, cwd=tmp_path)) > limit
        last = tmp_path / "runs" / "with_huggingface" / f"checkpoint-{9 * epochs}"  # an epoch has 18 micro-batches
        state = torch.load(last / "optimizer.pt")["param_groups"][0]["spectail"]
        assert int(state["loss"]["step"]) == 18 * epochs


def test_with_timm(tmp_path):
    printed = launch(EXAMPLES / "with_timm.py", cwd=tmp_path)
    assert overall(printed) > 41  # 51.0
    assert beats_cross_entropy(printed)
    assert "loaded" in printed


@pytest.mark.parametrize("name", HERE)
def test_examples_speak_of_what_they_are(name):
    """A reader finds how to start it in the first lines."""
    assert f"examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").split('"""')[1]
