"""Focal and Class-Balanced as methods: their options reach the loss, and sigmoid forms start rare and undecayed."""

import math

import pytest
import torch
from torch import nn
from training.runs import settings

from spectail._utils import torchvision_ops  # noqa: F401 - before timm
from spectail.methods import Stage
from spectail.training.build import make_pieces
from spectail.training.config import OptimConfig
from spectail.training.loop import train
from spectail.training.optim import make_optimizer
from spectail.training.reporter import Reporter

Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])
SIGMOID = [("focal", {"form": "sigmoid"}), ("cb", {"base": "sigmoid"}), ("cb", {"base": "focal"})]
SOFTMAX = [("focal", {}), ("cb", {}), ("cb", {"base": "softmax-bce"})]
sigmoid = pytest.mark.parametrize(("name", "options"), SIGMOID)
softmax = pytest.mark.parametrize(("name", "options"), SOFTMAX)


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        ("focal", {}, 0.37533),
        ("focal", {"gamma": 2.0}, 0.22517),
        ("focal", {"gamma": 0.0}, 0.67585),
        ("focal", {"form": "sigmoid", "gamma": 0.0}, 1.90105),
        ("focal", {"form": "sigmoid"}, 1.00591),
        ("focal", {"form": "sigmoid", "gamma": 2.0}, 0.57088),
        ("focal", {"form": "sigmoid", "gamma": 2.0, "focal_alpha": 0.25}, 0.40832),
        ("cb", {}, 1.23088),
        ("cb", {"average": "weights"}, 0.92775),
        ("cb", {"base": "sigmoid"}, 2.80922),
        ("cb", {"base": "focal"}, 1.51611),
        ("cb", {"base": "focal", "gamma": 2.0}, 0.86769),
        ("cb", {"base": "softmax-bce"}, 0.73514),
    ],
)
def test_every_option_reaches_the_loss(make, name, options, wanted):
    assert make(name, **options).criterion(Z, Y).item() == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(
    ("beta", "wanted"), [(0.9, [0.65499, 0.74562, 1.59940]), (0.99, [0.17225, 0.59968, 2.22807]), (0.0, [1.0] * 3)]
)
def test_weights_of_class_balanced_hold_from_the_first_epoch(make, at, beta, wanted):
    method = make("cb", beta=beta)
    for epoch in (0, 199):
        method.begin_epoch(at(epoch))
        torch.testing.assert_close(method.criterion.class_weights().tolist(), wanted, atol=2e-5, rtol=0)


# sigmoid forms


@sigmoid
@pytest.mark.parametrize(("classes", "wanted"), [(100, -4.59512), (3, -math.log(2)), (2, 0.0)])
def test_the_bias_starts_rare(make, name, options, classes, wanted):
    head = make(name, counts=[9] * classes, **options).make_head("linear", 4)
    torch.testing.assert_close(head.bias.tolist(), [wanted] * classes, atol=2e-5, rtol=0)
    assert head.weight.std() > 0.05  # the weights start as ever
    assert torch.sigmoid(head.bias).sum().item() == pytest.approx(1.0, rel=1e-5)  # each class at 1 / K


@softmax
def test_softmax_forms_have_an_ordinary_bias(make, name, options):
    bias = make(name, **options).make_head("linear", 4).bias
    assert bias.abs().max() <= 0.5
    assert bias.unique().numel() == 3


@sigmoid
def test_a_cosine_head_has_no_bias_to_set(make, flat, name, options):
    method = make(name, **options)
    model = flat(method, kind="cosine")
    assert method.undecayed(model) == []


@sigmoid
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_bias_is_not_decayed(make, flat, name, options, optimizer):
    method = make(name, **options)
    model = flat(method)
    optim = OptimConfig(optimizer=optimizer, lr=0.1, weight_decay=0.5)
    made = make_optimizer(model, optim, method.undecayed(model))
    assert [group["weight_decay"] for group in made.param_groups if any(p is model.head.bias for p in group["params"])]
    before = model.head.bias.detach().clone(), model.head.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    assert torch.equal(model.head.bias, before[0])
    torch.testing.assert_close(model.head.weight.data, before[1] * (1 - 0.1 * 0.5))  # decay alone


@softmax
def test_softmax_forms_decay_everything_under_sgd(make, flat, name, options):
    method = make(name, **options)
    model = flat(method)
    assert method.undecayed(model) == []
    (group,) = make_optimizer(model, OptimConfig(optimizer="sgd", weight_decay=0.5)).param_groups
    assert group["weight_decay"] == 0.5


@sigmoid
def test_a_run_starts_so(name, options, tmp_path, saved):
    """The model that a run builds has the bias; one step with gradient zero and strong decay leaves it."""
    config = settings(tmp_path / "run", method=name, options=options)
    bias = make_pieces(config, Reporter()).model.head.bias
    torch.testing.assert_close(bias.tolist(), [-math.log(5)] * 6, atol=1e-6, rtol=0)
    assert isinstance(make_pieces(config, Reporter()).model.head, nn.Linear)


def test_decay_does_not_reach_the_bias_of_a_run(tmp_path, saved):
    """A rate of 1e-6 with a decay of 1e5: everything else shrinks to almost nothing, the bias stays."""
    changes = {"optim__optimizer": "sgd", "optim__lr": 1e-6, "optim__weight_decay": 1e5, "optim__momentum": 0.0}
    train(settings(tmp_path / "run", method="focal", options={"form": "sigmoid"}, **changes, optim__epochs=6))
    state = saved(tmp_path / "run")[-1]
    torch.testing.assert_close(state["model.head.bias"].tolist(), [-math.log(5)] * 6, atol=1e-3, rtol=0)
    assert state["model.head.weight"].abs().max() < 0.1


def test_one_stage_one_stream(make):
    for name in ("focal", "cb"):
        method = make(name)
        assert [stage.name for stage in method.stages()] == ["train"]
        assert [*method.streams(Stage())] == ["main"]
