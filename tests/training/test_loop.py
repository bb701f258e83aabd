"""The loop against slow computations: steps, rates, averages, selection, stages, streams, logs, divergence."""

import dataclasses
import json
import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from training.runs import IMAGES, Losses, Stop, StopAt, assert_same, metrics, predictions, results, settings, shake

from spectail import CAR
from spectail.cli.console import _figures
from spectail.data import load
from spectail.data.loader import Loader
from spectail.methods import registry
from spectail.methods.base import Method, Outcome, Stage, Stream
from spectail.training import probe
from spectail.training.build import make_pieces
from spectail.training.car_term import CARTerm
from spectail.training.config import OptimConfig
from spectail.training.config_io import read_yaml, write_yaml
from spectail.training.loop import train
from spectail.training.optim import make_optimizer, rate
from spectail.training.reporter import Reporter
from spectail.training.trained import load_trained


def weights(folder, name="model.safetensors"):
    return load_file(folder / name)


def saved_model(config, name="model.safetensors"):
    pieces = make_pieces(config, Reporter())
    pieces.model.load_state_dict(weights(config.output, name))
    return pieces, pieces.model.eval()


@torch.no_grad()
def accuracy(model, data, preset):
    """Mean of the accuracies of the classes, in percent."""
    found = [(model(batch.images).argmax(1), batch.labels) for batch in Loader(data, preset, batch_size=64)]
    guess, label = (torch.cat(part) for part in zip(*found, strict=True))
    return 100 * np.mean([float((guess[label == k] == k).float().mean()) for k in label.unique()])


class Recorder(Method):
    """Cross entropy that remembers its calls."""

    calls: list = []  # noqa: RUF012 - emptied by the fixture

    def begin_epoch(self, step):
        self.calls.append(("epoch", step.stage.name, step.epoch, step.index))

    def loss(self, model, batches, step):
        self.calls.append(("loss", step.stage.name, step.index, {name: len(b.labels) for name, b in batches.items()}))
        return super().loss(model, batches, step)

    def after_step(self, model, step):
        self.calls.append(("after", step.stage.name, step.index))


@pytest.fixture
def method(monkeypatch):
    """Registers a Method subclass under the name "mine"."""

    def add(kind, **entry):
        monkeypatch.setattr(registry.Entry, "load", lambda self, load=registry.Entry.load: (
            kind if self.name == "mine" else load(self)))  # fmt: skip
        monkeypatch.setitem(registry.METHODS, "mine", registry.Entry("mine", "of a test", "base:Method", **entry))
        Recorder.calls.clear()
        return "mine"

    return add


# -- results --

FIELDS = """method car phases dataset imbalance model seed epochs selection overall head medium tail worst_test
worst_test_class worst_test_interval zero_classes worst_train worst_ratio bottom_10pct harmonic_mean geometric_mean
macro_f1 ece spectral_norm per_class groups bottom_20pct line seconds"""


@pytest.mark.parametrize("changes", [{}, {"method": "car"}, {"eval_train": False}, {"probe": True}])
def test_every_field_of_the_results(changes, tmp_path):
    found = train(settings(tmp_path / "run", **changes))
    assert set(FIELDS.split()) <= found.keys()
    assert found == json.loads((tmp_path / "run" / "results.json").read_text())
    assert (found["dataset"], found["imbalance"], found["model"], found["seed"]) == ("glyphs-lt", 6, "tiny", 0)
    assert (found["epochs"], found["selection"], found["phases"]) == (2, "last epoch", {"train": 10})
    assert found["head"] is None  # no class has more than 100 images
    assert (found["car"] is None) == (found["method"] != "car")
    assert len(found["per_class"]) == 6
    assert (found["worst_train"] is None) == ("eval_train" in changes)
    expected = {"config.yaml", "manifest.json", "metrics.jsonl", "results.json", "predictions.npz", "checkpoints",
                "model.safetensors", "digests.json", ".run.lock"}  # fmt: skip
    assert {path.name for path in (tmp_path / "run").iterdir()} == expected


def test_results_have_the_line_that_shifting_the_logits_draws(tmp_path):
    """Of the test set and of held-out images; not shifted it is the figures of the run."""
    found = train(settings(tmp_path / "run", data__val_fraction=0.3))
    for figures in (found, found["val"]):
        line = figures["line"]
        for name in ("overall", "balanced", "medium", "tail", "worst_test", "bottom_10pct", "bottom_20pct"):
            assert line[name][line["shifts"].index(0.0)] == figures[name]
    logits, labels, counts = (found.predictions[name] for name in ("logits", "labels", "class_counts"))
    for shift, overall in zip(found["line"]["shifts"], found["line"]["overall"], strict=True):
        predicted = (logits - shift * np.log(counts / counts.sum())).argmax(1)
        assert overall == pytest.approx(100 * (predicted == labels).mean())


def test_what_a_report_needs_of_a_run_is_still_in_memory_when_it_ends(tmp_path):
    config = settings(tmp_path / "run")
    results = train(config)
    with np.load(tmp_path / "run" / "predictions.npz") as saved:
        assert {*saved.files} == {*results.predictions} == {"logits", "labels", "class_names", "class_counts"}
        assert all(np.array_equal(saved[name], values) for name, values in results.predictions.items())
    assert results.data.manifest.identity == results["identity"]
    again = train(config, resume=True)  # nothing was computed, so there is nothing to take over
    assert (again.predictions, again.data) == (None, None)
    assert again == results


def test_results_say_what_car_was(tmp_path):
    found = train(settings(tmp_path / "a", method="car", car__preset="classwise", optim__epochs=1))["car"]
    assert (found["alpha"], found["preset"]) == (10.0, "classwise")
    found = train(settings(tmp_path / "b", car__enabled=True, car__alpha=2, car__r0=0.4, optim__epochs=1))["car"]
    assert (found["alpha"], found["preset"], found["r0"]) == (2.0, "paper", 0.4)


def test_predictions_are_those_of_the_saved_model(tmp_path):
    config = settings(tmp_path / "run", model__model="small-cnn", optim__ema=0.5)
    found = train(config)
    pieces, model = saved_model(config)
    with torch.no_grad():
        logits = torch.cat([model(batch.images) for batch in Loader(pieces.data.test, pieces.preset, batch_size=50)])
    kept = predictions(config.output)
    np.testing.assert_allclose(kept["logits"], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(kept["labels"], pieces.data.test.labels)
    assert kept["class_counts"].tolist() == pieces.data.counts.tolist()
    assert kept["class_names"].tolist() == list(pieces.data.train.names)
    assert found["overall"] == pytest.approx(100 * (kept["logits"].argmax(1) == kept["labels"]).mean())


def test_loss_goes_down(tmp_path):
    heard = Losses()
    config = settings(tmp_path / "run", model__model="small-cnn", optim__epochs=8, data__imbalance=1.5,
                      data__num_classes=3)  # fmt: skip
    train(config, reporter=heard)
    assert heard.entries[-1]["loss"] < 0.6 * heard.entries[0]["loss"]
    assert heard.steps == metrics(tmp_path / "run")[-1]["step"]


def test_logged_loss_is_the_mean_over_images(tmp_path):
    """With a learning rate of almost nothing the loss of an epoch is that of the first weights."""
    config = settings(
        tmp_path / "run", optim__lr=1e-12, optim__epochs=1, optim__weight_decay=0, transform="cifar-strong"
    )
    train(config)
    pieces, model = saved_model(config)
    stored = Loader(
        pieces.data.train, pieces.preset, batch_size=16, sampler=_order(config, pieces.data.train.labels), seed=0
    )
    with torch.no_grad():
        losses = torch.cat([nn.functional.cross_entropy(model(b.images), b.labels, reduction="none") for b in stored])
    assert len(losses) == IMAGES
    assert metrics(config.output)[0]["loss"] == pytest.approx(float(losses.mean()), rel=1e-4)


def _order(config, labels):
    from spectail.data.samplers import LongTailSampler

    return LongTailSampler(labels, "instance", seed=config.seed, epochs=config.optim.epochs, num_classes=6)


# -- optimisation --


@pytest.mark.parametrize("schedule", ["cosine", "step", "constant"])
def test_learning_rates(schedule):
    optim = OptimConfig(schedule=schedule, lr=0.3, min_lr=0.03, warmup_epochs=1.5, milestones=(0.5, 0.8),
                        decay_factor=0.1)  # fmt: skip
    per_epoch, epochs = 4, 5
    steps, warm = per_epoch * epochs, 6
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], optim.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(optim, step, steps, per_epoch))
    for step in range(steps):
        expected = {
            "cosine": 0.03 + 0.27 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2,
            "step": 0.3 * 0.1 ** ((step >= 10) + (step >= 16)),
            "constant": 0.3,
        }[schedule]
        if step < warm:
            expected = 0.3 * (step + 1) / warm
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        optimizer.step()
        scheduler.step()
    assert rate(optim, steps, steps, per_epoch) == pytest.approx({"cosine": 0.1, "step": 0.01, "constant": 1}[schedule])


def test_logged_learning_rate(tmp_path):
    train(settings(tmp_path / "run", optim__schedule="step", optim__milestones=[0.5], optim__epochs=4))
    assert [line["lr"] for line in metrics(tmp_path / "run")] == pytest.approx([0.01, 1e-4, 1e-4, 1e-4])


def test_decay_groups():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LayerNorm(4), nn.Linear(4, 2))
    module[3].weight.requires_grad_(False)
    decayed, spared = make_optimizer(module, OptimConfig(weight_decay=0.1)).param_groups
    assert [id(p) for p in decayed["params"]] == [id(module[0].weight)]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {id(p) for p in spared["params"]} == {
        id(p) for p in (module[0].bias, *module[1].parameters(), *module[2].parameters(), module[3].bias)
    }
    (everything,) = make_optimizer(module, OptimConfig(optimizer="sgd", weight_decay=0.1)).param_groups
    assert len(everything["params"]) == 7
    assert everything["weight_decay"] == 0.1
    with pytest.raises(ValueError, match="nothing is trainable"):
        make_optimizer(module.requires_grad_(False), OptimConfig())


def by_hand(config, steps):
    """Weights after some steps of plain SGD with coupled decay, momentum and clipping, and all weights on the way."""
    optim = config.optim
    trainer_pieces = make_pieces(config, Reporter())
    model = trainer_pieces.model.train()
    loader = Loader(
        trainer_pieces.data.train, trainer_pieces.preset, batch_size=optim.batch_size,
        sampler=_order(config, trainer_pieces.data.train.labels), seed=config.seed,
    )  # fmt: skip
    speed = [torch.zeros_like(p) for p in model.parameters()]
    way, number = [], 0
    for epoch in range(optim.epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            gradients = torch.autograd.grad(
                nn.functional.cross_entropy(model(batch.images), batch.labels), model.parameters()
            )
            norm = torch.stack([g.norm() for g in gradients]).norm()
            factor = min(1.0, optim.clip / (float(norm) + 1e-6)) if optim.clip else 1.0
            with torch.no_grad():
                for place, (p, g) in enumerate(zip(model.parameters(), gradients, strict=True)):
                    g = g * factor + optim.weight_decay * p
                    speed[place] = g if number == 0 else optim.momentum * speed[place] + g
                    p -= optim.lr * rate(optim, number, steps, 5) * speed[place]
            number += 1
            way.append(deepcopy(model.state_dict()))
    assert number == steps
    return way


@pytest.mark.parametrize("changes", [{}, {"optim__clip": 0.3}, {"optim__ema": 0.7}, {"model__model": "tiny-norm"}])
def test_sgd_by_hand(changes, tmp_path):
    config = settings(tmp_path / "run", optim__optimizer="sgd", optim__lr=0.1, optim__weight_decay=0.02, **changes)
    train(config)
    way = by_hand(config, 10)
    expected = dict(way[-1])
    if config.optim.ema:
        expected = dict(way[0])
        for state in way[1:]:
            expected = {name: 0.7 * expected[name] + 0.3 * state[name] for name in expected}
    for name, value in weights(config.output).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_diverged_run_stops_with_its_place(tmp_path):
    config = settings(tmp_path / "run", optim__optimizer="sgd", optim__lr=1e30, optim__schedule="constant")
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+, epoch 0; training stops") as error:
        train(config)
    assert str(tmp_path / "run" / "diverged.pt") in str(error.value)
    state = torch.load(tmp_path / "run" / "diverged.pt", weights_only=True)
    assert len(state["indices"]["main"]) == 16
    assert all(0 <= index < IMAGES for index in state["indices"]["main"])
    assert "learner" in state
    assert not (tmp_path / "run" / "results.json").exists()


def test_divergence_in_the_last_step_is_noticed(tmp_path):
    """No loss follows the last step, so the weights must be looked at before they become results."""
    config = settings(tmp_path / "run", optim__optimizer="sgd", optim__lr=1e38, optim__epochs=1, optim__batch_size=68)
    with pytest.raises(ValueError, match="nan|inf|finite|number"):
        train(config)


@pytest.mark.parametrize("wrong", [
    {"optim__accumulation": 0}, {"optim__lr": 0.0}, {"eval_every": 0}, {"optim__batch_size": 0}, {"optim__epochs": 0},
    {"optim__epochs": -1}, {"optim__ema": 1.5}, {"optim__batch_size": 15, "optim__accumulation": 2}, {"workers": -1},
    {"optim__lr": -1.0}, {"car__enabled": True, "car__beta": 5.0}, {"select_on": "val"}, {"stage1": "x"},
    {"device": "gpu"}, {"transform": "nope"}, {"trackers": ["nope"]},
    {"car__enabled": True, "car__stages": ["nope"]}, {"keep_checkpoints": -1}, {"checkpoint_every": -1},
    {"optim__warmup_epochs": -1.0}, {"optim__clip": -1.0},
], ids=str)  # fmt: skip
def test_settings_that_make_no_sense(wrong, tmp_path):
    with pytest.raises((ValueError, OSError)) as error:
        train(settings(tmp_path / "run", **wrong))
    assert len(str(error.value)) > 15
    AcceleratorState._reset_state()


def test_precision_may_change_in_one_process(tmp_path):
    """Two runs of one Python session, as in a notebook."""
    train(settings(tmp_path / "a", optim__epochs=1))
    try:
        train(settings(tmp_path / "b", optim__epochs=1, optim__precision="bf16"))
        c = settings(tmp_path / "c", optim__epochs=1)
        train(c)
    finally:
        AcceleratorState._reset_state()
    assert_same(tmp_path / "a", tmp_path / "c")


# -- selection --


def test_best_epoch_on_validation_data(tmp_path):
    changes = {"data__val_fraction": 0.3, "optim__epochs": 6, "optim__lr": 0.05}
    config = settings(tmp_path / "val", select_on="val", **changes)
    found = train(config)
    lines = metrics(config.output)
    best = max(range(6), key=lambda epoch: (lines[epoch]["val_balanced"], -epoch))
    assert found["selection"] == f"best epoch on validation data: {best}"
    pieces, model = saved_model(config)
    assert accuracy(model, pieces.data.val, pieces.preset) == pytest.approx(lines[best]["val_balanced"], abs=1e-3)
    assert accuracy(model, pieces.data.test, pieces.preset) == pytest.approx(found["balanced"], abs=1e-3)

    last = settings(tmp_path / "last", **changes)
    assert train(last)["selection"] == "last epoch"
    assert not (last.output / "best.safetensors").exists()
    pieces, model = saved_model(last)
    assert accuracy(model, pieces.data.val, pieces.preset) == pytest.approx(
        metrics(last.output)[-1]["val_balanced"], abs=1e-3
    )
    assert metrics(last.output) == lines  # evaluating and choosing do not change training


def test_selection_on_test_data_is_said(tmp_path):
    found = train(settings(tmp_path / "run", select_on="test"))
    assert "TEST data" in found["selection"]
    assert found["balanced"] == max(line["test_balanced"] for line in metrics(tmp_path / "run"))


def test_eval_every(tmp_path):
    train(settings(tmp_path / "run", data__val_fraction=0.3, eval_every=2, optim__epochs=5))
    assert [("val_overall" in line) for line in metrics(tmp_path / "run")] == [False, True, False, True, True]


# -- what is logged about CAR --


def test_logging_does_not_change_training(tmp_path):
    changes = {"model__model": "tiny-norm", "method": "car"}
    train(settings(tmp_path / "plain", **changes))
    train(settings(tmp_path / "logged", log_gradient=True, log_cm_gap=True, **changes))
    plain, logged = weights(tmp_path / "plain"), weights(tmp_path / "logged")
    for name in plain:
        assert torch.equal(plain[name], logged[name]), name


def test_logging_draws_no_random_numbers(tmp_path):
    changes = {"model__model": "tiny-dropout", "method": "car"}
    train(settings(tmp_path / "plain", **changes))
    train(settings(tmp_path / "logged", log_gradient=True, log_cm_gap=True, **changes))
    assert weights(tmp_path / "plain")["head.weight"].equal(weights(tmp_path / "logged")["head.weight"])


def test_logged_gradient_and_gap(tmp_path):
    config = settings(tmp_path / "run", method="car", log_gradient=True, log_cm_gap=True)
    train(config)
    state = torch.load(tmp_path / "run" / "checkpoints" / "step-00000010" / "state.pt", weights_only=True)
    pieces, model = saved_model(config)
    car = CAR(pieces.data.counts)
    car.load_state_dict({name.removeprefix("car."): value for name, value in state["car"].items()})
    images, labels = zip(*[(b.images, b.labels) for b in Loader(pieces.data.train, pieces.preset)], strict=True)
    images, labels = torch.cat(images), torch.cat(labels)

    logits = model(images).detach().double()
    confusion = torch.zeros(6, 6, dtype=torch.float64)
    for label in range(6):  # column: the true class; soft errors of every image of it
        rows = logits[labels == label]
        for row in rows:
            confusion[:, label] += _soft_errors(row, label) / len(rows)
    line = metrics(config.output)[-1]
    gap = float((car.confusion.double() - confusion).norm())
    assert line["cm_gap"] == pytest.approx(gap, rel=1e-3)
    assert line["cm_gap_relative"] == pytest.approx(gap / float(confusion.norm()), rel=1e-3)
    groups = {"head": [], "medium": [], "tail": []}
    for label, size in enumerate(torch.bincount(labels).tolist()):
        group = "head" if size > 100 else "tail" if size < 20 else "medium"
        groups[group].append(float(confusion[:, label].sum()))
    assert {name: line.get(f"confusion_{name}") for name in groups} == {
        name: pytest.approx(sum(errors) / len(errors), rel=1e-3) if errors else None for name, errors in groups.items()
    }

    assert len(labels) <= 256  # otherwise the batch is spread over the set, see below
    term = car.eval()(model(images), labels)
    gradients = torch.autograd.grad(term, list(model.parameters()))
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))
    assert line["car_gradient_norm"] == pytest.approx(norm, rel=1e-3)


def test_the_gradient_is_logged_on_a_batch_of_all_frequent_classes(tmp_path, monkeypatch):
    seen = []

    def spy(model, car, batches):
        seen.append(next(iter(batches)).labels)
        return 0.0

    monkeypatch.setattr("spectail.training.loop.car_gradient", spy)
    config = settings(tmp_path / "run", method="car", log_gradient=True, data__max_per_class=200, data__imbalance=10.0)
    train(config)
    counts = load(config.data).counts.counts
    (labels,) = {tuple(found.tolist()) for found in seen}  # the same at every epoch
    assert 128 < len(labels) <= 256 < int(counts.sum())
    share = torch.bincount(torch.tensor(labels), minlength=len(counts)) / len(labels)
    assert (share - counts / counts.sum()).abs().max() < 1 / len(labels) + 0.01


def _soft_errors(row, label):
    from spectail.functional import soft_confusion

    return soft_confusion(row[None], torch.tensor([label]))[:, label]


def test_car_starts_late_and_rises(tmp_path):
    config = settings(
        tmp_path / "run", method="car", car__start_epoch=1, car__warmup_epochs=1.0, car__alpha=2.0, optim__epochs=3
    )
    train(config)
    lines = metrics(config.output)
    assert "car" not in lines[0]
    assert "spectral_norm" in lines[0]  # its history moves from the start
    assert lines[1]["car"] > 0
    from spectail.methods.base import Step

    regulariser = CARTerm(load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=6).counts, config.car)
    found = [regulariser.weight(Step(Stage(), epochs=3, index=index, steps=15)) for index in range(15)]
    assert found == pytest.approx([0.0] * 5 + [0.4, 0.8, 1.2, 1.6, 2.0] + [2.0] * 5)


def test_car_before_its_start_is_plain_training(tmp_path):
    train(settings(tmp_path / "ce"))
    train(settings(tmp_path / "late", car__enabled=True, car__start_epoch=2))
    assert weights(tmp_path / "ce")["head.weight"].equal(weights(tmp_path / "late")["head.weight"])


# -- stages, streams, views --


class TwoStages(Recorder):
    def stages(self):
        return [Stage("one"), Stage("two", epochs=1, train="head", fresh_head=True, optim={"lr": 0.05})]


def test_two_stages(method, tmp_path):
    config = settings(tmp_path / "run", method=method(TwoStages), model__model="tiny-norm", keep_checkpoints=9)
    found = train(config)
    assert found["phases"] == {"one": 10, "two": 5}
    assert [(line["stage"], line["epoch"], line["step"]) for line in metrics(config.output)] == [
        ("one", 0, 5), ("one", 1, 10), ("two", 0, 15)]  # fmt: skip
    assert [call for call in Recorder.calls if call[0] == "epoch"] == [
        ("epoch", "one", 0, 0), ("epoch", "one", 1, 5), ("epoch", "two", 0, 0)]  # fmt: skip
    before = torch.load(config.output / "checkpoints" / "step-00000010" / "state.pt", weights_only=True)["learner"]
    after = weights(config.output)
    for name, value in after.items():
        same = torch.equal(value, before[f"model.{name}"])
        assert same == name.startswith("backbone."), name
    assert metrics(config.output)[-1]["lr"] == pytest.approx(0.0)


@pytest.mark.parametrize("stop", [{"steps": 4}, {"epochs": 2}, {"steps": 12}, {"epochs": 3}], ids=str)
def test_two_stages_resumed(stop, method, tmp_path):
    changes = {"method": method(TwoStages), "model__model": "tiny-norm", "car__enabled": True, "optim__ema": 0.8}
    train(settings(tmp_path / "whole", **changes))
    config = settings(tmp_path / "cut", checkpoint_every=1, **changes)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(**stop))
    shake()
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_each_stage_begins_without_a_history_of_car(method, tmp_path, monkeypatch):
    """The first term of either stage is that of a CAR which has seen one batch."""
    firsts, forward = {}, CARTerm.forward

    def spy(self, outcome, step):
        term = forward(self, outcome, step)
        seen = (outcome.logits.detach().clone(), outcome.target.clone(), float(term.detach()) / self.alpha)
        firsts.setdefault(step.stage.name, seen)
        return term

    monkeypatch.setattr(CARTerm, "forward", spy)
    train(settings(tmp_path / "run", method=method(TwoStages), car__enabled=True, car__beta=0.9))
    counts = load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=6).counts
    assert list(firsts) == ["one", "two"]
    for logits, target, value in firsts.values():
        assert value == pytest.approx(float(CAR(counts, beta=0.9)(logits, target)), rel=1e-5)


def test_car_in_chosen_stages_only(method, tmp_path):
    changes = {"method": method(TwoStages), "car__enabled": True}
    train(settings(tmp_path / "two", car__stages=["two"], **changes))
    assert [("car" in line) for line in metrics(tmp_path / "two")] == [False, False, True]
    train(settings(tmp_path / "one", car__stages=["one"], **changes))
    assert [("car" in line) for line in metrics(tmp_path / "one")] == [True, True, False]


def test_the_best_epoch_is_one_of_the_last_stage(method, tmp_path):
    """A method with two stages is never reported by a model that has not gone through both."""

    class Spoiled(Recorder):
        def stages(self):
            return [Stage("one", epochs=6), Stage("two", epochs=1, train="head", fresh_head=True, optim={"lr": 1e-9})]

    config = settings(tmp_path / "run", method=method(Spoiled), select_on="val", data__val_fraction=0.3)
    train(config)
    line = metrics(config.output)[-1]
    pieces, model = saved_model(config)
    assert accuracy(model, pieces.data.val, pieces.preset) == pytest.approx(line["val_balanced"], abs=1e-3)


def test_stage_one_from_a_run(method, tmp_path):
    first = settings(tmp_path / "first", model__model="tiny-norm")
    train(first)
    config = settings(
        tmp_path / "second", method=method(TwoStages), model__model="tiny-norm", stage1=str(first.output), seed=3
    )
    found = train(config)
    assert found["phases"] == {"two": 5}
    for name, value in weights(config.output).items():
        assert torch.equal(value, weights(first.output)[name]) == name.startswith("backbone."), name


class KeepsHead(TwoStages):
    def stages(self):
        return [Stage("one"), Stage("two", epochs=1, train="head", optim={"lr": 1e-12, "weight_decay": 0.0})]


def test_stage_one_brings_its_head(method, tmp_path):
    first = settings(tmp_path / "first")
    train(first)
    config = settings(tmp_path / "second", method=method(KeepsHead), stage1=str(first.output), seed=3)
    train(config)
    for name, value in weights(config.output).items():
        torch.testing.assert_close(value, weights(first.output)[name], rtol=1e-5, atol=1e-6)


def test_stage_one_of_another_network_is_refused(method, tmp_path):
    """A bias of the head that happens to fit must not hide a backbone that stays random."""
    first = settings(tmp_path / "first", model__model="small-cnn", optim__epochs=1)
    train(first)
    with pytest.raises(ValueError, match="first|stage1"):
        train(settings(tmp_path / "second", method=method(TwoStages), stage1=str(first.output)))


def test_stage_one_that_is_not_there(method, tmp_path):
    config = settings(tmp_path / "run", method=method(TwoStages), stage1=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="--stage1"):
        train(config)


class TwoStreams(Recorder):
    seen: list = []  # noqa: RUF012

    def streams(self, stage):
        return {"main": Stream(), "balanced": Stream("class-balanced")}

    def loss(self, model, batches, step):
        self.seen.append({name: batch.labels.clone() for name, batch in batches.items()})
        logits = model(torch.cat([batches["main"].images, batches["balanced"].images]))
        labels = torch.cat([batches["main"].labels, batches["balanced"].labels])
        own = logits[: len(batches["main"].labels)]
        return Outcome(self.criterion(logits, labels), own, batches["main"].labels)


def test_two_streams(method, tmp_path):
    TwoStreams.seen.clear()
    config = settings(tmp_path / "run", method=method(TwoStreams), optim__epochs=30, car__enabled=True)
    train(config)
    main = torch.cat([entry["main"] for entry in TwoStreams.seen])
    balanced = torch.cat([entry["balanced"] for entry in TwoStreams.seen])
    counts = load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=6).counts.tolist()
    assert torch.bincount(main).tolist() == [30 * count for count in counts]
    np.testing.assert_allclose(torch.bincount(balanced) / len(balanced), 1 / 6, atol=0.04)


@pytest.mark.parametrize("stop", [{"steps": 3}, {"epochs": 1}, {"steps": 8}], ids=str)
def test_two_streams_resumed(stop, method, tmp_path):
    changes = {"method": method(TwoStreams), "car__enabled": True, "model__model": "tiny-dropout"}
    train(settings(tmp_path / "whole", **changes))
    config = settings(tmp_path / "cut", checkpoint_every=1, **changes)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(**stop))
    shake()
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_own_random_numbers_are_resumed(method, tmp_path):
    class Noisy(Method):
        def loss(self, model, batches, step):
            logits = model(batches["main"].images)
            noise = torch.randn(logits.shape, generator=step.generator)
            return Outcome(self.criterion(logits + noise, batches["main"].labels), logits, batches["main"].labels)

    name = method(Noisy)
    train(settings(tmp_path / "whole", method=name))
    config = settings(tmp_path / "cut", checkpoint_every=1, method=name)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=7))
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_parts_are_trained_and_saved(method, tmp_path):
    class Scaled(Method):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.scale = nn.Parameter(torch.ones(1))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def loss(self, model, batches, step):
            self.calls += 1
            logits = model(batches["main"].images)
            return Outcome(self.criterion(self.scale * logits, batches["main"].labels), logits, batches["main"].labels)

    name = method(Scaled)
    train(settings(tmp_path / "whole", method=name))
    config = settings(tmp_path / "cut", checkpoint_every=1, method=name)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=7))
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    state = torch.load(tmp_path / "cut" / "checkpoints" / "step-00000010" / "state.pt", weights_only=True)["learner"]
    assert int(state["method.calls"]) == 10
    assert float(state["method.scale"]) != 1.0
    assert not any("scale" in key for key in weights(tmp_path / "cut"))


def test_after_step_changes_the_weights(method, tmp_path):
    class Ball(Method):
        def after_step(self, model, step):
            with torch.no_grad():
                model.head.weight.copy_(torch.renorm(model.head.weight, 2, 0, 0.1))

    train(settings(tmp_path / "run", method=method(Ball)))
    assert float(weights(tmp_path / "run")["head.weight"].norm(dim=1).max()) <= 0.1 + 1e-6


def test_several_views(method, tmp_path):
    class Views(Method):
        shapes: list = []  # noqa: RUF012

        def views(self, preset, stream):
            return [preset.train, preset.test]

        def loss(self, model, batches, step):
            images, labels = batches["main"].images, batches["main"].labels
            self.shapes.append([view.shape for view in images])
            logits = model(torch.cat(images))
            return Outcome(self.criterion(logits, labels.repeat(2)), logits[: len(labels)], labels)

    train(settings(tmp_path / "run", method=method(Views), car__enabled=True, optim__epochs=1))
    assert len(Views.shapes) == 5
    assert all(len(entry) == 2 and entry[0] == entry[1] for entry in Views.shapes)


def test_inference_is_what_is_measured(method, tmp_path):
    class Reversed(Method):
        def inference(self, model):
            class Minus(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.model = model

                def forward(self, x):
                    return -self.model(x)

            return Minus()

    config = settings(tmp_path / "run", method=method(Reversed))
    train(config)
    pieces, model = saved_model(config)
    with torch.no_grad():
        logits = torch.cat([model(b.images) for b in Loader(pieces.data.test, pieces.preset, batch_size=256)])
    np.testing.assert_allclose(predictions(config.output)["logits"], -logits, rtol=1e-4, atol=1e-5)


def test_no_logits_no_car(method, tmp_path):
    class Silent(Method):
        def loss(self, model, batches, step):
            return super().loss(model, batches, step)._replace(logits=None)

    train(settings(tmp_path / "silent", method=method(Silent), car__enabled=True))
    train(settings(tmp_path / "ce"))
    assert weights(tmp_path / "silent")["head.weight"].equal(weights(tmp_path / "ce")["head.weight"])


def test_accumulation_counts_optimiser_steps(method, tmp_path):
    config = settings(tmp_path / "run", method=method(Recorder), optim__accumulation=4)
    found = train(config)  # 68 images: 17 micro-batches of 4, so four steps of 16 images and one of 4
    assert found["phases"] == {"train": 10}
    sizes = [call[3]["main"] for call in Recorder.calls if call[0] == "loss"]
    assert sizes == [4] * 34
    assert [call[2] for call in Recorder.calls if call[0] == "after"] == list(range(1, 11))


def test_batch_that_cannot_be_split(tmp_path):
    with pytest.raises(ValueError, match="--batch-size 16 must be a multiple of 1 processes times 3 micro-batches"):
        train(settings(tmp_path / "run", optim__accumulation=3))


# -- probe mode --


def test_probe_leaves_the_backbone_alone(tmp_path):
    config = settings(tmp_path / "run", probe=True, model__model="tiny-norm")
    fresh = make_pieces(settings(tmp_path / "x", model__model="tiny-norm"), Reporter()).model.state_dict()
    train(config)
    for name, value in weights(config.output).items():
        assert torch.equal(value, fresh[name]) == name.startswith("backbone."), name


def test_probe_features_of_another_precision_are_not_used(tmp_path, monkeypatch):
    """The cache of features must tell precisions apart."""
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache-a"))
    train(settings(tmp_path / "alone", probe=True))
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache-b"))
    AcceleratorState._reset_state()
    try:
        train(settings(tmp_path / "half", probe=True, optim__precision="bf16"))
    finally:
        AcceleratorState._reset_state()
    train(settings(tmp_path / "after", probe=True))
    assert_same(tmp_path / "alone", tmp_path / "after")


def test_probe_computes_a_feature_once_for_all_cuts_of_the_data(tmp_path, monkeypatch):
    """Other validation data of the same images need no backbone, and give what computing them would give."""
    computed, compute = [], probe._compute

    def counted(backbone, split, *rest):
        computed.append(len(split))
        return compute(backbone, split, *rest)

    monkeypatch.setattr(probe, "_compute", counted)
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache"))
    train(settings(tmp_path / "whole", probe=True))
    images = sum(computed)
    for seed in (0, 1):
        train(settings(tmp_path / f"cut{seed}", probe=True, data__val_per_class=1, data__val_seed=seed))
    assert sum(computed) == images
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "other"))
    train(settings(tmp_path / "again", probe=True, data__val_per_class=1, data__val_seed=1))
    assert sum(computed) == 2 * images
    # Not bit for bit: an image was in another batch, and a kernel may round a batch of another size differently.
    other, cut, again = (predictions(tmp_path / name) for name in ("cut0", "cut1", "again"))
    np.testing.assert_array_equal(cut["labels"], again["labels"])
    np.testing.assert_allclose(cut["logits"], again["logits"], rtol=1e-4, atol=1e-5)
    assert not np.allclose(cut["logits"], other["logits"], rtol=1e-2, atol=1e-3)  # they were not all the same


def test_probe_refuses_methods_that_need_images(method, tmp_path):
    class Images(Method):
        needs_images = True

    with pytest.raises(ValueError, match="cannot be used in probe mode"):
        train(settings(tmp_path / "run", probe=True, method=method(Images)))


# -- the data path --


def photos(root):
    for label, images in (("a", 8), ("b", 5), ("c", 4)):
        (root / label).mkdir(parents=True)
        for index in range(images):
            pixels = np.random.default_rng([index, images]).integers(0, 256, (90, 100, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{index}.jpg")
    return {"dataset": f"folder:{root}"}


def test_a_run_on_pictures_says_its_transform_and_its_wait(tmp_path):
    """The model is later used with the transform of its run, whatever is usual then."""
    changes = {"data": photos(tmp_path / "photos"), "model__img_size": 32, "model__model": "tiny", "workers": 1}
    config = settings(tmp_path / "run", **changes)
    assert config.transform is None
    train(config)
    saved = read_yaml(config.output / "config.yaml")
    assert saved.transform == load_trained(config.output).preset.name == "imagenet-fast"
    assert train(config, resume=True)["overall"] == results(config.output)["overall"]  # no other settings
    lines = [json.loads(line) for line in (config.output / "metrics.jsonl").read_text().splitlines()]
    assert all(line["data_seconds"] >= 0 for line in lines)
    assert _figures({"images_per_second": 50.0, "data_seconds": 12.3}) == "50 images/s  waited 12 s for data"
    write_yaml(config.output / "config.yaml", dataclasses.replace(saved, transform=None))  # as earlier versions did
    (config.output / "digests.json").unlink()
    with pytest.warns(UserWarning, match="has no digests"):
        assert load_trained(config.output).preset.name == "imagenet"
