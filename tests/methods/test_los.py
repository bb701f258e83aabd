"""LOS: plain cross entropy first, then the same head goes on with almost flat labels."""

import math

import pytest
import torch
from training.runs import metrics, results, settings

from spectail.data.batch import Batch
from spectail.losses import CrossEntropyLoss, LabelOverSmoothLoss
from spectail.methods import Stage, Step
from spectail.training.loop import train

Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])


@pytest.mark.parametrize(
    ("stage", "delta", "wanted"),
    [("stage1", 0.98, 0.67585), ("stage2", 0.98, 1.32102), ("stage2", 0.9, 1.26835), ("stage2", 0.1, 0.74169)],
)
def test_labels_are_flat_in_the_second_stage_only(make, stage, delta, wanted):
    batch = {"main": Batch(Z, Y, torch.arange(4))}
    outcome = make("los", delta=delta).loss(torch.nn.Identity(), batch, Step(Stage(stage)))
    assert outcome.loss.item() == pytest.approx(wanted, abs=2e-5)
    assert torch.equal(outcome.logits, Z)


def test_stages(make):
    method = make("los")
    assert isinstance(method.plain, CrossEntropyLoss)
    assert isinstance(method.criterion, LabelOverSmoothLoss)
    first, second = method.stages()
    assert (first.train, first.optim) == ("all", {})
    assert (second.epochs, second.train, second.fresh_head, second.norm) == (20, "head", False, "drift")
    assert {"optimizer": "sgd", "lr": 5e-4, "weight_decay": 0.0, "momentum": 0.9}.items() <= second.optim.items()
    assert method.streams(second)["main"].kind == "instance"


def test_counts_do_not_matter_to_the_loss(make):
    one, other = make("los").criterion(Z, Y), make("los", counts=(1, 50, 7)).criterion(Z, Y)
    assert torch.equal(one, other)


def test_the_head_goes_on_from_the_first_stage(tmp_path, saved):
    """With a tiny rate the head hardly moves: it is not a new one."""
    options = {"stage2_epochs": 1, "stage2_lr": 1e-7}
    train(settings(tmp_path / "run", method="los", options=options, keep_checkpoints=9, optim__lr=0.1))
    states = saved(tmp_path / "run")
    for name in ("model.head.weight", "model.head.bias"):
        torch.testing.assert_close(states[2][name], states[1][name], rtol=0, atol=1e-5)
    assert not torch.equal(states[2]["model.head.weight"], states[1]["model.head.weight"])


def test_the_loss_sinks_to_its_floor(tmp_path):
    """The entropy of the flat label; a long second stage comes close to it, and never below."""
    options = {"stage2_epochs": 8, "stage2_lr": 0.5, "delta": 0.98}
    train(settings(tmp_path / "run", method="los", options=options, optim__lr=0.05))
    right, wrong = 0.02 + 0.98 / 6, 0.98 / 6
    floor = -right * math.log(right) - 5 * wrong * math.log(wrong)
    losses = [line["loss"] for line in metrics(tmp_path / "run") if line["stage"] == "stage2"]
    assert all(loss > floor for loss in losses)
    assert losses[0] > floor + 0.05
    assert losses[-1] < floor + 0.005
    assert results(tmp_path / "run")["phases"] == {"stage1": 10, "stage2": 40}
