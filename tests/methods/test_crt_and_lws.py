"""cRT and LWS, and what all methods with a second stage on a frozen backbone share."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training.runs import Stop, StopAt, assert_same, metrics, results, settings, shake

from spectail.methods import Stage, Step
from spectail.methods.two_stage import scaled
from spectail.models.classifier import Classifier
from spectail.training.loop import train

TWO_STAGES = ["crt", "lws", "balms", "wb", "gml", "los"]
FRESH = {"crt": True, "lws": False, "balms": True, "wb": False, "gml": True, "los": False}
LENGTHS = {
    "crt": (10, 90),
    "lws": (5, 90),
    "balms": (2000, 13000),
    "wb": (10, 200),
    "gml": (20, 200),
    "los": (20, 200),
}
every = pytest.mark.parametrize("name", TWO_STAGES)


def run(folder, name, **changes):
    options = {"stage2_epochs": 2, "stage2_batch_size": 16} | changes.pop("options", {})
    train(settings(folder, method=name, options=options, keep_checkpoints=9, eval_train=False, **changes))
    return folder


def parts(state, start):
    return {name: value for name, value in state.items() if name.startswith(start)}


# cRT


def test_crt_samples_classes_equally_in_the_second_stage(make):
    for name in ("crt", "lws"):
        method = make(name)
        first, second = method.stages()
        assert method.streams(first)["main"].kind == "instance"
        assert method.streams(second)["main"].kind == "class-balanced"
        assert (second.fresh_head, second.optim["lr"], second.optim["weight_decay"]) == (name == "crt", 0.2, 5e-4)


# LWS


def lws_model(method):
    return Classifier(nn.Linear(3, 3), method.make_head("linear", 3))


def test_lws_learns_factors_alone_in_the_second_stage(make):
    method = make("lws")
    model = lws_model(method)
    wanted = {"stage1": {"head.weight", "head.bias"}, "stage2": {"head.scales"}}
    for stage in ("stage1", "stage2", "stage1"):
        method.begin_stage(model, Step(Stage(stage)), resumed=False)
        trained = {name for name, value in model.named_parameters() if value.requires_grad and "head" in name}
        assert trained == wanted[stage]


def test_a_step_of_lws_by_hand(make):
    """d loss / d scale_k = mean over images of (softmax_k - onehot_k) * plain logit_k."""
    method = make("lws")
    model = lws_model(method)
    method.begin_stage(model, Step(Stage("stage2")), resumed=False)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 0])
    logits = model(x)
    torch.nn.functional.cross_entropy(logits, y).backward()
    plain = (model.backbone(x) @ model.head.weight.T + model.head.bias).detach()
    error = plain.softmax(1) - torch.nn.functional.one_hot(y, 3)
    torch.testing.assert_close(model.head.scales.grad, (error * plain).mean(0))


def test_an_lws_run_keeps_the_vectors_and_moves_the_factors(tmp_path, saved):
    states = saved(run(tmp_path / "run", "lws"))
    first, last = states[1], states[3]
    assert torch.equal(first["model.head.scales"], torch.ones(6))
    for name in ("model.head.weight", "model.head.bias"):
        assert torch.equal(first[name], last[name])
    assert (last["model.head.scales"] != 1).all()


# every second stage


@every
@pytest.mark.parametrize("norm", ["frozen", "drift"])
def test_the_backbone_is_bit_identical_after_the_second_stage(name, norm, tmp_path, saved):
    """Its running statistics too, unless they are let drift; then they do."""
    states = saved(run(tmp_path / "run", name, model__model="tiny-norm", options={"stage2_norm": norm}))
    first, last = parts(states[1], "model.backbone"), parts(states[-1], "model.backbone")
    running = [key for key in first if "running" in key or "tracked" in key]
    assert len(running) == 3
    for key in first:
        assert torch.equal(first[key], last[key]) == (key not in running or norm == "frozen"), key
    saved_model = load_file(tmp_path / "run" / "model.safetensors")
    for key, value in last.items():
        assert torch.equal(saved_model[key.removeprefix("model.")], value)


@every
def test_what_statistics_do_unless_told(make, name):
    """They drift in the released code of all but GML, which has none."""
    assert make(name).stages()[1].norm == ("frozen" if name == "gml" else "drift")


@every
def test_the_head_is_fresh_or_goes_on(name, tmp_path, saved):
    """A second stage with a rate next to zero shows where the head began."""
    options = {"stage2_lr": 1e-9, "stage2_epochs": 1} | ({"threshold": 1.0} if name == "wb" else {})  # nothing to cut
    states = saved(run(tmp_path / "run", name, options=options, optim__lr=0.05))
    before, after = states[1]["model.head.weight"], states[2]["model.head.weight"]
    assert torch.allclose(before, after, atol=1e-6) != FRESH[name]
    if FRESH[name]:
        assert after.abs().max() <= 1 / 24**0.5 + 1e-4  # as a new linear layer


@every
def test_phases_count_the_steps_of_both_stages(name, tmp_path):
    run(tmp_path / "run", name)
    per_epoch = 4 if name == "balms" else 5  # whole batches only
    assert results(tmp_path / "run")["phases"] == {"stage1": 10, "stage2": 2 * per_epoch}
    lines = metrics(tmp_path / "run")
    assert [(line["stage"], line["epoch"]) for line in lines] == [
        (stage, epoch) for stage in ("stage1", "stage2") for epoch in (0, 1)
    ]
    assert lines[-1]["step"] == 10 + 2 * per_epoch


@every
@pytest.mark.parametrize("epochs", [1, 2, 12, 90, 200, 320])
def test_the_second_stage_scales_with_the_first(make, name, epochs):
    length, of = LENGTHS[name]
    _, second = make(name, epochs=epochs).stages()
    assert second.epochs == max(1, round(epochs * length / of))
    assert make(name, epochs=epochs, stage2_epochs=7).stages()[1].epochs == 7
    assert scaled(length, of, of) == length


@pytest.mark.parametrize("epochs", [0, -3])
def test_a_second_stage_without_epochs_is_refused(epochs, tmp_path):
    with pytest.raises(ValueError, match="--stage2-epochs"):
        train(settings(tmp_path / "run", method="crt", options={"stage2_epochs": epochs}, optim__epochs=1))
    assert not (tmp_path / "run").exists()


@every
def test_options_of_the_second_stage_are_used(make, name):
    options = {"stage2_lr": 0.77, "stage2_weight_decay": 0.03, "stage2_batch_size": 48, "stage2_norm": "drift"}
    first, second = make(name, stage2_schedule="cosine-epochs", **options).stages()
    wanted = {"lr": 0.77, "weight_decay": 0.03, "batch_size": 48, "schedule": "cosine-epochs", "optimizer": "sgd"}
    assert wanted.items() <= second.optim.items()
    assert (second.norm, first.optim) == ("drift", {})


def test_the_second_stage_follows_its_own_schedule(tmp_path):
    options = {"stage2_schedule": "cosine-epochs", "stage2_lr": 0.01, "stage2_epochs": 10}
    run(tmp_path / "run", "los", options=options, optim__warmup_epochs=1.0, optim__schedule="step")
    rates = [line["lr"] for line in metrics(tmp_path / "run") if line["stage"] == "stage2"]
    # logged after the last step of the epoch, when the rate is already that of the next
    torch.testing.assert_close(rates[0], 0.009045, atol=1e-6, rtol=0)
    torch.testing.assert_close(rates[7], 0.000245, atol=1e-6, rtol=0)
    assert rates[8] == 0.0


@pytest.mark.parametrize("name", ["wb", "gml", "lws", "balms"])
def test_resumed_inside_the_second_stage(name, tmp_path):
    """What a second stage begins with (cap, old head, factors, rates) is not begun again."""
    changes = {"options": {"stage2_epochs": 2, "stage2_batch_size": 16}, "checkpoint_every": 1, "optim__epochs": 1}
    train(settings(tmp_path / "whole", method=name, **changes))
    config = settings(tmp_path / "cut", method=name, **changes)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=8))
    shake()
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("option", "value"),
    [("stage2_lr", -0.1), ("stage2_lr", 0.0), ("stage2_weight_decay", -1.0), ("stage2_batch_size", 0)],
)
def test_mistakes_about_the_second_stage_are_refused_before_the_first(option, value, tmp_path):
    with pytest.raises(ValueError, match=f"--{option.replace('_', '-')}"):
        train(settings(tmp_path / "run", method="crt", options={option: value}, optim__epochs=1))
    assert not (tmp_path / "run").exists()
