"""Weight Balancing: the cap and the projection, coupled decay, the recipe of both stages, and what flags may change."""

import json
import math

import pytest
import torch
from torch import nn
from training.runs import results, settings

from spectail.cli.train import parse
from spectail.methods import Stage, Step, weight_balancing
from spectail.methods.weight_balancing import cap, project
from spectail.models.classifier import Classifier
from spectail.training.config import OptimConfig
from spectail.training.config_io import from_dict, preset
from spectail.training.loop import train
from spectail.training.optim import make_optimizer, rate

W = [[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.6, 0.8]]
Z = [[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]]
GROW = {"stage2_lr": 2.0, "stage2_weight_decay": 0.0, "stage2_schedule": "constant", "loss": "softmax"}
"""A second stage in which vectors grow, so that the cap has work to do."""


def model_of(weight=W, bias=(5.0, -7.0, 9.0, 11.0)):
    head = nn.Linear(2, 4)
    head.weight.data, head.bias.data = torch.tensor(weight), torch.tensor(bias)
    return Classifier(nn.Identity(), head)


def limit_by_hand(weight, threshold):
    norms = [math.sqrt(sum(value * value for value in row)) for row in weight.tolist()]
    return min(norms) + threshold * (max(norms) - min(norms))


# cap and projection


@pytest.mark.parametrize(
    ("threshold", "limit", "wanted"),
    [
        (0.1, 1.4, [[0.84, 1.12], [1.0, 0.0], [0.0, 1.4], [0.6, 0.8]]),
        (0.5, 3.0, [[1.8, 2.4], [1.0, 0.0], [0.0, 2.0], [0.6, 0.8]]),
        (1.0, 5.0, W),
        (0.0, 1.0, [[0.6, 0.8], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]),
    ],
)
def test_the_worked_example(threshold, limit, wanted):
    weight = torch.tensor(W, dtype=torch.float64)
    found = cap(weight, threshold)
    assert found.item() == pytest.approx(limit, abs=1e-12)
    project(weight, found)
    torch.testing.assert_close(weight, torch.tensor(wanted, dtype=torch.float64))
    once = weight.clone()
    project(weight, found)
    torch.testing.assert_close(weight, once, rtol=0, atol=1e-15)  # idempotent


def test_how_many_rows_were_shortened():
    weight = torch.tensor(W)
    assert project(weight, torch.tensor(1.4)).item() == 2
    assert project(weight, torch.tensor(1.5)).item() == 0


def test_a_single_row_and_a_zero_row():
    weight = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert project(weight, torch.tensor(1.0)).item() == 1
    torch.testing.assert_close(weight, torch.tensor([[0.0, 0.0], [0.6, 0.8]]))


def test_a_step_projects_weights_and_leaves_the_bias(make):
    method, model = make("wb", counts=(9, 5, 3, 2)), model_of()
    heard = {}
    step = Step(Stage("stage2"), 0, 1, 1, 5, log=lambda name, value: heard.update({name: int(value)}))
    method.begin_stage(model, step, resumed=False)
    assert method.cap.item() == pytest.approx(1.4)
    method.after_step(model, step)
    torch.testing.assert_close(model.head.weight.data, torch.tensor([[0.84, 1.12], [1, 0], [0, 1.4], [0.6, 0.8]]))
    assert model.head.bias.tolist() == [5.0, -7.0, 9.0, 11.0]
    assert heard == {"rows_clipped": 2}
    assert model.head.weight.requires_grad


def test_the_first_stage_is_left_alone(make):
    method, model = make("wb", counts=(9, 5, 3, 2)), model_of()
    step = Step(Stage("stage1"), 0, 1, 1, 5)
    method.begin_stage(model, step, resumed=False)
    method.after_step(model, step)
    assert torch.equal(model.head.weight, torch.tensor(W))
    assert method.cap == torch.inf


def test_a_resumed_stage_keeps_the_cap_it_had(make):
    method, other = make("wb"), make("wb")
    method.begin_stage(model_of(), Step(Stage("stage2")), resumed=False)
    other.begin_stage(model_of([[1.0, 0.0]] * 4), Step(Stage("stage2")), resumed=True)
    other.load_state_dict(method.state_dict())
    assert other.cap.item() == pytest.approx(1.4)


# the recipe


def test_coupled_decay_of_sgd():
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(1.0)
    optimizer = make_optimizer(module, OptimConfig(optimizer="sgd", lr=0.01, weight_decay=0.1, momentum=0.9))
    for wanted in (0.994, 0.982606):
        module.weight.grad = torch.full((1, 1), 0.5)
        optimizer.step()
        assert module.weight.item() == pytest.approx(wanted, abs=2e-6)


def test_sgd_decays_everything():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    (group,) = make_optimizer(module, OptimConfig(optimizer="sgd", weight_decay=5e-3)).param_groups
    assert len(group["params"]) == 6
    assert group["weight_decay"] == 5e-3


def test_the_rate_once_an_epoch_and_one_epoch_ahead():
    optim = OptimConfig(optimizer="sgd", lr=0.01, schedule="cosine-epochs")
    optimizer = make_optimizer(nn.Linear(1, 1), optim)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(optim, step, 30, 3))
    rates = []
    for _ in range(30):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert all(rates[3 * epoch : 3 * epoch + 3] == [rates[3 * epoch]] * 3 for epoch in range(10))
    found = rates[::3]
    wanted = [0.01 * (1 + math.cos(math.pi * (epoch + 1) / 10)) / 2 for epoch in range(10)]
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close([found[0], found[1], found[8]], [0.009755, 0.009045, 0.000245], atol=1e-6, rtol=0)
    assert found[9] == 0.0


def test_stages_of_the_recipe(make):
    first, second = make("wb").stages()
    assert (first.name, first.epochs, first.train, first.optim) == ("stage1", None, "all", {})
    assert (second.name, second.epochs, second.train, second.fresh_head) == ("stage2", 10, "head", False)
    assert second.norm == "drift"
    wanted = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "schedule": "cosine"}
    assert wanted.items() <= second.optim.items()


@pytest.mark.parametrize(("loss", "wanted"), [("softmax-bce", 0.73514), ("softmax", 1.23088)])
def test_loss_of_the_second_stage(make, loss, wanted):
    logits = torch.tensor(Z, dtype=torch.float64)
    assert make("wb", loss=loss).criterion(logits, torch.tensor([0, 1, 2, 2])).item() == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize("method", ["wb", "los"])
def test_the_method_brings_what_it_needs(method):
    for config in (from_dict({"method": method}), parse(["--method", method])[0]):
        assert (config.optim.optimizer, config.optim.lr, config.optim.weight_decay) == ("sgd", 0.01, 5e-3)
        assert config.optim.epochs == OptimConfig().epochs


def test_it_replaces_a_preset_and_is_replaced_by_flags():
    with_preset = parse(["--preset", "demo", "--method", "wb"])[0]
    assert (with_preset.optim.lr, with_preset.optim.weight_decay) == (0.01, 5e-3)
    assert with_preset.optim.batch_size == preset("demo").optim.batch_size
    flags = ["--preset", "demo", "--weight-decay", "0.002", "--method", "wb", "--optimizer", "adamw"]
    config = parse(flags)[0]
    assert (config.optim.optimizer, config.optim.lr, config.optim.weight_decay) == ("adamw", 0.01, 0.002)
    content = {"method": "wb", "optim": {"lr": 0.3}}
    config = from_dict(content, preset("demo"))
    assert (config.optim.optimizer, config.optim.lr, config.optim.weight_decay) == ("sgd", 0.3, 5e-3)


def test_other_methods_bring_nothing():
    for method in ("ce", "ldam-drw", "crt", "gml"):
        assert from_dict({"method": method}, preset("demo")).optim == preset("demo").optim


def test_settings_of_a_run_are_read_back_as_they_were(tmp_path):
    """Essentials must not creep back in when a written configuration is read."""
    from spectail.training.config_io import read_yaml, write_yaml

    config = parse(["--method", "wb", "--lr", "0.5", "--optimizer", "adamw"])[0]
    write_yaml(tmp_path / "config.yaml", config)
    assert read_yaml(tmp_path / "config.yaml") == config


# in the engine


def run(folder, **options):
    changes = {"keep_checkpoints": 40, "checkpoint_every": 1, "optim__epochs": 1}
    train(settings(folder, method="wb", options=GROW | {"stage2_epochs": 2} | options, **changes))


def heads(states):
    return [state["model.head.weight"] for state in states]


def test_the_cap_is_taken_once_from_the_first_stage_and_holds_after_every_step(tmp_path, saved):
    run(tmp_path / "run", threshold=0.25)
    states = saved(tmp_path / "run")
    assert len(states) == 15  # five steps of the first stage, ten of the second
    limit = limit_by_hand(states[4]["model.head.weight"], 0.25)
    for state in states[5:]:
        assert state["method.cap"].item() == pytest.approx(limit, rel=1e-6)
        norms = state["model.head.weight"].norm(dim=1)
        assert norms.max() <= limit * (1 + 1e-6)
    assert (heads(states)[5].norm(dim=1) > limit * (1 - 1e-5)).any()  # the cap had work to do
    bias = states[14]["model.head.bias"]
    assert not torch.equal(bias, states[4]["model.head.bias"])
    assert results(tmp_path / "run")["phases"] == {"stage1": 5, "stage2": 10}


def test_once_an_epoch_vectors_may_be_longer_in_between(tmp_path, saved):
    run(tmp_path / "run", project="epoch")
    states = saved(tmp_path / "run")
    limit = limit_by_hand(states[4]["model.head.weight"], 0.1)
    longest = [weight.norm(dim=1).max().item() for weight in heads(states)[5:]]
    ends, inside = [longest[4], longest[9]], longest[:4] + longest[5:9]
    assert max(ends) <= limit * (1 + 1e-6)
    assert max(inside) > limit * 1.1


@pytest.mark.parametrize(("how", "accumulation"), [("step", 1), ("epoch", 1), ("step", 2)])
def test_rows_that_were_clipped_are_logged(how, accumulation, tmp_path, monkeypatch):
    """The mean of what the projections of the epoch cut, whether there is one for each step or one for the epoch."""
    counts, plain = [], weight_balancing.project

    def counted(weight, limit):
        counts.append(plain(weight, limit))
        return counts[-1]

    monkeypatch.setattr(weight_balancing, "project", counted)
    options = GROW | {"stage2_epochs": 1, "project": how, "threshold": 0.6}
    changes = {"optim__accumulation": accumulation, "optim__batch_size": 34, "optim__epochs": 1}  # two even steps
    train(settings(tmp_path / "run", method="wb", options=options, **changes))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "rows_clipped" not in lines[0]
    values = [value.item() for value in counts]
    assert len(values) == {"step": 2, "epoch": 1}[how]
    assert sum(values) > 0
    assert lines[1]["rows_clipped"] == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan])
def test_a_cap_outside_the_lengths_is_refused(threshold, tmp_path):
    """Below the shortest vector it might turn vectors round, above the longest it does nothing."""
    with pytest.raises(ValueError, match="threshold"):
        train(settings(tmp_path / "run", method="wb", options={"threshold": threshold}))
    assert not (tmp_path / "run").exists()
