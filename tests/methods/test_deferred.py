"""Deferred re-weighting and re-sampling (DRW, DRS) for any method that is a loss."""

import math

import pytest
import torch
from training.runs import Stop, StopAt, assert_same, metrics, results, settings, shake

from spectail.losses.base import LabelLoss
from spectail.methods.deferred import DeferOptions, LossOptions, switch_epoch
from spectail.methods.registry import METHODS
from spectail.training.loop import train

COUNTS = (100, 20, 5)
LOSSES = [
    "ce",
    "focal",
    "cb",
    "ldam-drw",
    "balanced-softmax",
    "logit-adjustment",
    "tau-norm",
    "car",
    "car-balanced",
    "car-worst",
]


def effective(counts, beta):
    weights = [(1 - beta) / (1 - beta**n) for n in counts]
    return [weight * len(counts) / sum(weights) for weight in weights]


def test_which_methods_may_be_deferred():
    for name in LOSSES:
        assert isinstance(METHODS[name].load().options, DeferOptions)
    for name in ("balms", "bbn", "wb", "gml", "los", "crt", "lws"):  # they have schedules of their own
        assert not isinstance(METHODS[name].load().options, DeferOptions)


@pytest.mark.parametrize(
    ("share", "epochs", "wanted"),
    [(0.8, 200, 160), (0.8, 100, 80), (0.8, 90, 72), (0.8, 10, 8), (0.8, 5, 4), (0.8, 3, 2), (0.8, 2, 1), (0.8, 1, 1),
     (0.0, 10, 1), (1.0, 10, 9), (0.5, 2, 1), (0.01, 3, 1), (0.99, 3, 2)],
)  # fmt: skip
def test_switch_leaves_room_for_both_parts(share, epochs, wanted):
    assert switch_epoch(share, epochs) == wanted


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_switch_outside_training_is_refused(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        switch_epoch(share, 10)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "cb"])
@pytest.mark.parametrize("beta", [0.9, 0.9999])
def test_drw_switches_the_weights_of_every_loss(make, at, name, beta):
    method = make(name, defer="reweight", defer_beta=beta)
    for epoch, wanted in ((159, [1.0] * 3), (160, effective(COUNTS, beta))):
        method.begin_epoch(at(epoch))
        found = method.criterion.class_weights()
        found = [1.0] * 3 if found is None else found.tolist()
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert [method.phase(at(epoch)) for epoch in (159, 160)] == ["train", "reweighted"]


@pytest.mark.parametrize("name", [name for name in METHODS if isinstance(METHODS[name].load().options, LossOptions)])
def test_late_weights_are_averaged_as_asked(make, at, name):
    """By hand, from what each label costs: the sum of w * cost over the sum of w, or over the number of images."""
    logits = torch.tensor([[0.6, 0.1, -0.2], [0.3, 0.5, 0.0], [0.4, 0.2, 0.35], [0.1, 0.2, 0.3]])
    labels = torch.tensor([0, 1, 2, 2])
    weights = effective(COUNTS, 0.9999)
    for average in ("weights", "samples"):
        method = make(name, defer="reweight", weight_average=average)
        method.begin_epoch(at(160))
        assert isinstance(method.criterion, LabelLoss)
        costs = method.criterion.costs(logits).tolist()
        total = sum(weights[label] * row[label] for row, label in zip(costs, labels.tolist(), strict=True))
        divisor = sum(weights[label] for label in labels.tolist()) if average == "weights" else len(labels)
        assert method.criterion(logits, labels).item() == pytest.approx(total / divisor, rel=1e-5)


def test_class_balanced_has_one_flag_for_the_average(make):
    assert not hasattr(make("cb").options, "weight_average")
    assert [make("cb", average=average).criterion.average for average in ("samples", "weights")] == [
        "samples",
        "weights",
    ]


def test_class_balanced_has_its_weights_from_the_start(tmp_path):
    with pytest.raises(ValueError, match="cb weighs classes from the start; .* --method ce --defer reweight"):
        train(settings(tmp_path / "run", method="cb", options={"defer": "reweight"}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", LOSSES)
def test_drs_switches_the_sampler_and_leaves_the_loss(make, at, name):
    method = make(name, defer="resample", defer_at=0.5)
    before = method.criterion.class_weights()
    (stream,) = method.streams(at(0).stage).values()
    assert (stream.kind, stream.then, stream.switch) == ("instance", "class-balanced", 100)
    method.begin_epoch(at(199))
    after = method.criterion.class_weights()
    assert (before is None and after is None) or torch.equal(before, after)
    assert [method.phase(at(epoch)) for epoch in (99, 100)] == ["train", "resampled"]


def test_nothing_is_deferred_unless_asked(make, at):
    for name in set(LOSSES) - {"ldam-drw"}:
        method = make(name)
        before = method.criterion.class_weights()
        method.begin_epoch(at(199))
        assert method.criterion.class_weights() is before
        (stream,) = method.streams(at(0).stage).values()
        assert stream.then is None
        assert method.phase(at(199)) == "train"


@pytest.fixture
def seen(monkeypatch):
    """Labels that a run trains on, by epoch."""
    found = {}
    from spectail.methods.base import Method

    plain = Method.loss

    def loss(self, model, batches, step):
        found.setdefault(step.epoch, []).extend(batches["main"].labels.tolist())
        return plain(self, model, batches, step)

    monkeypatch.setattr(Method, "loss", loss)
    return found


def test_drs_draws_classes_equally_often_in_the_late_part_only(tmp_path, seen):
    """Imbalance 20 in 600 images; over the late epochs every class has about a third of the images."""
    config = settings(tmp_path / "run", data__num_classes=3, data__max_per_class=200, data__imbalance=20,
                      options={"defer": "resample", "defer_at": 0.4}, optim__epochs=5, optim__batch_size=64,
                      eval_train=False)  # fmt: skip
    train(config)
    counts = [torch.tensor(seen[epoch]).bincount(minlength=3) for epoch in range(5)]
    assert torch.equal(counts[0], counts[1])  # every image once
    assert counts[0][0] / counts[0][2] == pytest.approx(20, rel=0.05)
    late = sum(counts[2:])
    expected = late.sum() / 3
    assert ((late - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees: 0.1 %
    assert results(tmp_path / "run")["phases"].keys() == {"train", "resampled"}


@pytest.mark.parametrize("how", ["reweight", "resample"])
def test_deferred_runs_resume_on_both_sides_of_the_switch(how, tmp_path):
    changes = {"options": {"defer": how, "defer_at": 0.5}, "checkpoint_every": 1, "optim__epochs": 2}
    train(settings(tmp_path / "whole", **changes))
    assert results(tmp_path / "whole")["phases"] == {"train": 5, {"reweight": "reweighted"}.get(how, "resampled"): 5}
    for steps in (3, 8):
        config = settings(tmp_path / f"cut{steps}", **changes)
        with pytest.raises(Stop):
            train(config, reporter=StopAt(steps=steps))
        shake()
        train(config, resume=True)
        assert_same(tmp_path / "whole", config.output)


@pytest.mark.parametrize("how", ["reweight", "resample"])
def test_the_first_part_is_plain_training(how, tmp_path):
    changes = {"optim__epochs": 4, "optim__schedule": "constant"}
    train(settings(tmp_path / "plain", **changes))
    train(settings(tmp_path / "late", options={"defer": how, "defer_at": 0.5}, **changes))
    plain, late = metrics(tmp_path / "plain"), metrics(tmp_path / "late")
    assert plain[:2] == late[:2]
    assert plain[2]["loss"] != late[2]["loss"]


@pytest.mark.parametrize(
    ("how", "option", "value"),
    [
        *((how, "defer_at", share) for how in ("reweight", "resample") for share in (1.5, -0.2)),
        ("reweight", "defer_beta", 1.5),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(how, option, value, tmp_path):
    with pytest.raises(ValueError, match=str(value)):
        train(settings(tmp_path / "run", options={"defer": how, option: value}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["reweight", "resample"])
def test_a_share_of_0_is_from_the_first_epoch_on(make, at, how):
    method = make("ce", defer=how, defer_at=0.0)
    assert method.deferred(at(0))
    if how == "resample":
        assert method.streams(method.stages()[0])["main"].switch == 0
    assert not make("ce", defer=how, defer_at=0.01).deferred(at(0))
