"""BBN: the emphasis over the epochs, the mixed logits and loss, the reversed stream, inference, and what is refused."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from training.runs import metrics, predictions, results, settings

from spectail import MixedTarget
from spectail.data.batch import Batch
from spectail.data.samplers import class_probabilities
from spectail.methods.bbn import emphasis, mixed_logits
from spectail.models.cifar_resnet import CifarResNet
from spectail.models.small import SmallCNN
from spectail.models.two_branch import TwoBranchClassifier
from spectail.training.loop import train

W = [[0.2, 0.1, -0.3, 0.4], [0.0, 0.3, 0.5, 0.1], [-0.1, 0.2, 0.2, -0.2]]
BIAS = [0.1, 0.0, -0.1]
FIRST, SECOND = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[0.5, -1.0]]).double()


@pytest.fixture
def head():
    found = nn.Linear(4, 3).double()
    found.weight.data, found.bias.data = torch.tensor(W, dtype=torch.float64), torch.tensor(BIAS, dtype=torch.float64)
    return found


def emphasis_at(epoch, at, make, **options):
    method = make("bbn", **options)
    method.begin_epoch(at(epoch))
    return method.emphasis


# emphasis


@pytest.mark.parametrize(
    ("one_based", "wanted"), [(1, 1.0), (2, 0.999975), (51, 0.9375), (101, 0.75), (151, 0.4375), (200, 0.009975)]
)
def test_emphasis_of_the_authors(make, at, one_based, wanted):
    assert emphasis(one_based - 1, 200) == pytest.approx(wanted, abs=1e-12)
    assert emphasis_at(one_based - 1, at, make) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("epochs", "horizon"), [(90, 100), (180, 200), (200, 200), (100, 100), (91, 91), (2, 2)])
def test_horizon_follows_the_authors_settings(make, epochs, horizon):
    assert make("bbn", epochs=epochs).horizon == horizon


def test_a_horizon_may_be_given(make, at):
    assert emphasis_at(10, at, make, epochs=90, horizon=40) == pytest.approx(1 - 1 / 16)
    assert emphasis_at(60, at, make, epochs=90, horizon=40) == 0.0  # never below


def test_emphasis_never_rises(make, at):
    found = [emphasis_at(epoch, at, make, epochs=30) for epoch in range(30)]
    assert found[0] == 1.0
    assert all(before > after for before, after in itertools.pairwise(found))
    assert found[-1] > 0


# the mixed step


@pytest.mark.parametrize(
    ("share", "logits", "loss"),
    [(1.0, [0.9, 1.2, 0.5], 1.10532), (0.75, [0.425, 0.975, 0.5], 1.31918), (0.0, [-1.0, 0.3, 0.5], 0.71386)],
)
def test_logits_and_loss_of_the_worked_example(make, head, share, logits, loss):
    found = mixed_logits(head, FIRST, SECOND, share)
    torch.testing.assert_close(found[0].tolist(), logits, atol=1e-9, rtol=0)
    target = MixedTarget(torch.tensor([0]), torch.tensor([2]), torch.tensor([share]))
    assert make("bbn").criterion(found, target).item() == pytest.approx(loss, abs=2e-5)


class Straight(nn.Module):
    """Two rows of a 2 x 2 image: each branch hands one of them on."""

    num_features = 2

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(2, 2, bias=False))

    def forward(self, x):
        return self.blocks(x)


def test_a_step_of_the_method_is_the_worked_example(make, at, head):
    method = make("bbn")
    model = method.build(Straight().double(), head)
    assert isinstance(model, TwoBranchClassifier)
    for branch in (model.branches.conventional, model.branches.rebalancing):
        branch.weight.data = torch.eye(2).double()
    main, other = (
        Batch(FIRST, torch.tensor([0]), torch.tensor([0])),
        Batch(SECOND, torch.tensor([2]), torch.tensor([1])),
    )
    heard = {}
    step = at(100, log=lambda name, value: heard.update({name: float(value)}))  # T = 101
    method.begin_epoch(step)
    outcome = method.loss(model, {"main": main, "reversed": other}, step)
    assert outcome.loss.item() == pytest.approx(1.31918, abs=2e-5)
    torch.testing.assert_close(outcome.logits[0].tolist(), [0.425, 0.975, 0.5], atol=1e-6, rtol=0)
    assert (outcome.target.a.tolist(), outcome.target.b.tolist()) == ([0], [2])
    torch.testing.assert_close(outcome.target.share.tolist(), [0.75])
    assert heard == {"emphasis": 0.75}


def test_inference_needs_no_factor(make, head):
    """The same image through both branches; here they give the features of the example for it."""
    model = make("bbn").build(Straight().double(), head)
    model.branches.conventional.weight.data = torch.diag(torch.tensor([1.0, 2.0])).double()
    model.branches.rebalancing.weight.data = torch.diag(torch.tensor([0.5, -1.0])).double()
    logits = make("bbn").inference(model)(torch.ones(1, 2).double())
    torch.testing.assert_close(logits[0].tolist(), [-0.05, 0.75, 0.5], atol=1e-9, rtol=0)
    torch.testing.assert_close(logits, mixed_logits(head, FIRST, SECOND, 0.5))  # the factor 2 makes the scales agree


@pytest.mark.parametrize("share_epoch", [0, 50, 199])
def test_the_loss_is_cross_entropy_of_both_labels(make, at, share_epoch):
    method = make("bbn", counts=(9, 4, 2))
    model = method.build(SmallCNN(), method.make_head("linear", 128)).train()
    draw = torch.Generator().manual_seed(3)
    main, other = (
        Batch(torch.randn(6, 3, 16, 16, generator=draw), torch.randint(3, (6,), generator=draw), torch.arange(6))
        for _ in range(2)
    )
    step = at(share_epoch)
    method.begin_epoch(step)
    outcome = method.loss(model, {"main": main, "reversed": other}, step)
    alpha = 1 - (share_epoch / 200) ** 2
    wanted = alpha * F.cross_entropy(outcome.logits, main.labels)
    wanted = wanted + (1 - alpha) * F.cross_entropy(outcome.logits, other.labels)
    torch.testing.assert_close(outcome.loss, wanted)
    outcome.loss.backward()
    late = [parameter.grad.abs().sum().item() for parameter in model.branches.rebalancing.parameters()]
    early = [parameter.grad.abs().sum().item() for parameter in model.branches.conventional.parameters()]
    assert all(early)
    assert any(late) == (share_epoch > 0)  # in the first epoch the second branch gets no signal


def test_the_trunk_runs_once_for_each_stream(make, at):
    method = make("bbn", counts=(9, 4, 2))
    backbone = CifarResNet(8)
    model = method.build(backbone, method.make_head("linear", 64)).train()
    sizes = []
    backbone.conv1.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    batches = {
        name: Batch(torch.randn(size, 3, 8, 8), torch.zeros(size, dtype=torch.int64), torch.arange(size))
        for name, size in (("main", 4), ("reversed", 4))
    }
    method.loss(model, batches, at(3))
    assert sizes == [4, 4]
    assert backbone.norm1.num_batches_tracked == 2


# streams


def test_the_second_stream_is_reversed(make, at):
    streams = make("bbn").streams(at(0).stage)
    assert {name: stream.kind for name, stream in streams.items()} == {"main": "instance", "reversed": "reversed"}
    assert all(stream.drop_last for stream in streams.values())


def test_reversed_probabilities():
    torch.testing.assert_close(
        class_probabilities([100, 20, 5], "reversed").tolist(), [0.03846, 0.19231, 0.76923], atol=2e-5, rtol=0
    )
    counts = [int(500 * 0.01 ** (c / 99)) for c in range(100)]
    found = class_probabilities(counts, "reversed")
    torch.testing.assert_close(found[[0, 99]].tolist(), [0.00043820, 0.04382022], atol=2e-8, rtol=0)
    assert found[np.array(counts) < 20].sum() == pytest.approx(0.768, abs=5e-4)
    np.testing.assert_allclose(class_probabilities([7, 7, 7], "reversed"), 1 / 3)


# in the engine


def test_a_run(tmp_path):
    train(settings(tmp_path / "run", method="bbn", model__model="small-cnn", optim__epochs=3))
    assert results(tmp_path / "run")["phases"] == {"train": 12}  # 68 images make four whole batches of 16
    emphases = [line["emphasis"] for line in metrics(tmp_path / "run")]
    torch.testing.assert_close(emphases, [1.0, 1 - 1 / 9, 1 - 4 / 9])
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert weights["head.weight"].shape == (6, 256)
    names = [name for name in weights if "conventional" in name]
    assert names
    for name in names:
        assert name.replace("conventional", "rebalancing") in weights
    kernel = "backbone.layers.2.conventional.conv.weight"
    assert not torch.equal(weights[kernel], weights[kernel.replace("conventional", "rebalancing")])


def test_car_sees_the_mixed_labels(tmp_path):
    train(settings(tmp_path / "run", method="bbn", car__enabled=True))
    assert all(line["car"] > 0 for line in metrics(tmp_path / "run"))


def test_a_named_block(tmp_path):
    train(settings(tmp_path / "run", method="bbn", options={"branch_at": "layers.2"}, optim__epochs=1))
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert "backbone.layers.2.rebalancing.weight" in weights
    assert np.isfinite(predictions(tmp_path / "run")["logits"]).all()


def test_a_block_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no block 'layer4.9' to be doubled. Its last one is 'layers.3'"):
        train(settings(tmp_path / "run", method="bbn", options={"branch_at": "layer4.9"}))
    assert not (tmp_path / "run").exists()


def test_probe_mode_is_refused(tmp_path):
    with pytest.raises(ValueError, match="bbn works on images and cannot be used in probe mode. Leave --probe out"):
        train(settings(tmp_path / "run", method="bbn", probe=True))
    assert not (tmp_path / "run").exists()


def test_a_cosine_head_is_refused(tmp_path):
    with pytest.raises(ValueError, match="bbn needs a linear head; got --head cosine"):
        train(settings(tmp_path / "run", method="bbn", model__head="cosine"))


def test_initial_weights_reach_both_branches(tmp_path):
    """--init fills the plain backbone; the block is doubled after that."""
    train(settings(tmp_path / "first", model__model="tiny-norm"))
    config = settings(tmp_path / "second", method="bbn", model__model="tiny-norm", model__init=str(tmp_path / "first"))
    from spectail.training.build import make_pieces
    from spectail.training.reporter import Reporter

    model = make_pieces(config, Reporter()).model
    wanted = load_file(tmp_path / "first" / "model.safetensors")["backbone.layers.3.weight"]
    assert torch.equal(model.branches.conventional.weight, wanted)
    assert torch.equal(model.branches.rebalancing.weight, wanted)


@pytest.mark.parametrize("horizon", [0, -5])
def test_a_horizon_before_the_first_epoch_is_refused(make, horizon):
    with pytest.raises(ValueError, match="horizon"):
        make("bbn", horizon=horizon)


def test_two_classes(tmp_path):
    train(settings(tmp_path / "run", method="bbn", data__num_classes=2, optim__epochs=1))
    assert math.isfinite(metrics(tmp_path / "run")[0]["loss"])
