"""GML: a fresh head with the loss of the whole batch, and its probabilities averaged with those of the old head."""

import math

import pytest
import torch
from torch import nn
from training.runs import metrics, predictions, results, settings

from spectail import ClassCounts
from spectail.data import load
from spectail.data.batch import Batch
from spectail.methods import Stage, Step
from spectail.models.heads import EnsembleHead
from spectail.training.loop import train
from spectail.training.trained import load_trained

COUNTS = (100, 20, 5)
Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])


def run(folder, **options):
    own = {"stage2_epochs": 2, "stage2_batch_size": 34}
    train(settings(folder, method="gml", options=own | options, keep_checkpoints=9, eval_train=False))
    return folder


def by_hand(old_logits, new_logits, counts, share, *, removed=False):
    """p = share softmax(z_old) + (1 - share) softmax(z_new), for one image after the other; ``removed``: without the
    prior of the old head."""
    counts = counts if removed else [1] * len(counts)
    rows = []
    for old, new in zip(old_logits.tolist(), new_logits.tolist(), strict=True):
        adjusted = [math.exp(z - math.log(n / sum(counts))) for z, n in zip(old, counts, strict=True)]
        plain = [math.exp(z) for z in new]
        rows.append([
            share * a / sum(adjusted) + (1 - share) * b / sum(plain) for a, b in zip(adjusted, plain, strict=True)
        ])  # fmt: skip
    return torch.tensor(rows, dtype=torch.float64)


# the loss


@pytest.mark.parametrize(
    ("options", "labels", "wanted"),
    [
        ({}, [0, 1, 2, 2], 1.37312),
        ({"sampling": "class-balanced"}, [0, 1, 2, 2], 0.56123),  # without the prior
        ({"divide": "present"}, [0, 0, 2, 2], 1.73030),
        ({"divide": "all"}, [0, 0, 2, 2], 1.15353),
    ],
)
def test_loss_of_the_second_stage(make, options, labels, wanted):
    assert make("gml", **options).criterion(Z, torch.tensor(labels)).item() == pytest.approx(wanted, abs=2e-5)


def test_sampling_follows_the_option_in_the_second_stage_only(make):
    for how in ("instance", "class-balanced"):
        method = make("gml", sampling=how)
        assert method.streams(Stage("stage1"))["main"].kind == "instance"
        assert method.streams(Stage("stage2"))["main"].kind == how


def test_stages(make):
    method = make("gml")
    first, second = method.stages()
    assert (second.epochs, second.train, second.norm) == (20, "head", "frozen")
    assert {"optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "batch_size": 512}.items() <= second.optim.items()
    assert first.optim == {}
    assert not method.loss_spans_ranks  # of the second stage only: see test_two_processes


# the two heads


def head_of(method, weight=None):
    model_head = method.make_head("linear", 3)
    if weight is not None:
        model_head.weight.data, model_head.bias.data = weight, torch.tensor([0.3, -0.2, 0.1])
    return model_head


@pytest.mark.parametrize("reuse", [False, True])
def test_the_old_head_is_kept_and_the_new_one_begins_afresh(make, reuse):
    from spectail.models.classifier import Classifier

    method = make("gml", reuse_head=reuse)
    weight = torch.tensor([[9.0, 1.0, 0.0], [0.0, 8.0, 1.0], [1.0, 0.0, 7.0]])
    model = Classifier(nn.Identity(), head_of(method, weight.clone()))
    features = torch.randn(4, 3)
    before = model(features).detach()
    method.begin_stage(model, Step(Stage("stage1")), resumed=False)
    torch.testing.assert_close(model(features), before)
    assert not model.head.kept
    method.begin_stage(model, Step(Stage("stage2")), resumed=False)
    assert torch.equal(model.head.old_weight, weight)
    torch.testing.assert_close(model.head.old_bias, torch.tensor([0.3, -0.2, 0.1]))
    assert torch.equal(model.head.weight, weight) == reuse
    if not reuse:  # of the size of a new linear layer
        assert model.head.weight.abs().max() <= 1 / math.sqrt(3) + 1e-6


def test_a_resumed_stage_begins_nothing_afresh(make):
    from spectail.models.classifier import Classifier

    method = make("gml")
    model = Classifier(nn.Identity(), head_of(method, torch.eye(3)))
    method.begin_stage(model, Step(Stage("stage2")), resumed=True)
    assert torch.equal(model.head.weight, torch.eye(3))
    assert not model.head.kept


@pytest.mark.parametrize("prior", [None, "keep", "remove"])
@pytest.mark.parametrize("share", [0.5, 0.2, 0.0])
def test_what_inference_and_car_see(make, share, prior):
    """Without being asked nothing is taken off the old head: that would be logit adjustment under another name."""
    from spectail.models.classifier import Classifier

    method = make("gml", ensemble=share, **({} if prior is None else {"old_prior": prior}))
    model = Classifier(nn.Identity(), head_of(method))
    step = Step(Stage("stage2"))
    method.begin_stage(model, step, resumed=False)
    features, head = torch.randn(4, 3), model.head
    assert isinstance(head, EnsembleHead)
    old = features @ head.old_weight.T + head.old_bias
    new = features @ head.weight.T + head.bias
    outcome = method.loss(model, {"main": Batch(features, Y, torch.arange(4))}, step)
    torch.testing.assert_close(outcome.loss, method.criterion(new, Y))  # the loss is of the new head alone
    wanted = by_hand(old.detach(), new.detach(), COUNTS, share, removed=prior == "remove")
    torch.testing.assert_close(outcome.logits.softmax(1).double(), wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(method.inference(model)(features).softmax(1).double(), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_share_outside_is_refused(tmp_path, share):
    with pytest.raises(ValueError, match=r"--ensemble must lie in \[0, 1\)"):
        train(settings(tmp_path / "run", method="gml", options={"ensemble": share}))
    assert not (tmp_path / "run").exists()


def test_a_cosine_head_is_refused(tmp_path):
    with pytest.raises(ValueError, match="gml needs a linear head"):
        train(settings(tmp_path / "run", method="gml", model__head="cosine"))


# in the engine


@pytest.mark.parametrize("share", [0.5, 0.25, 0.0])
def test_predictions_are_the_average_of_both_heads(tmp_path, saved, test_images, share):
    folder = run(tmp_path / "run", ensemble=share)
    states = saved(folder)
    first, last = states[1], states[-1]
    assert torch.equal(last["model.head.old_weight"], first["model.head.weight"])
    assert torch.equal(last["model.head.old_bias"], first["model.head.bias"])
    assert not torch.equal(last["model.head.weight"], first["model.head.weight"])
    trained = load_trained(folder)
    with torch.no_grad():
        features = trained.model.backbone(test_images(trained))
    old = features @ first["model.head.weight"].T + first["model.head.bias"]
    new = features @ last["model.head.weight"].T + last["model.head.bias"]
    counts = load(trained.config.data).counts.counts.tolist()
    found = torch.from_numpy(predictions(folder)["logits"]).softmax(1).double()
    torch.testing.assert_close(found, by_hand(old, new, counts, share), rtol=1e-3, atol=1e-5)
    assert results(folder)["phases"] == {"stage1": 10, "stage2": 4}


def test_the_fresh_head_has_the_loss_of_a_fresh_head(tmp_path):
    """The second stage starts near log K, above where the first one ended."""
    lines = metrics(run(tmp_path / "run", stage2_lr=1e-6, sampling="class-balanced"))
    assert lines[2]["loss"] == pytest.approx(math.log(6), abs=0.35)


def test_counts_of_the_shift_are_those_of_the_training_set(make):
    head = make("gml", sampling="class-balanced", old_prior="remove").make_head("linear", 4)
    wanted = [-math.log(n / 125) for n in COUNTS]
    torch.testing.assert_close(head.shift.tolist(), wanted, atol=1e-6, rtol=0)
    assert ClassCounts(COUNTS).total == 125


# the prior of the old head, after --stage1


def old_shift(folder, first, **options):
    """What was added to the logits of the old head, in a second stage on a run of another kind."""
    own = {"stage2_epochs": 1, "stage2_batch_size": 34}
    train(settings(folder, method="gml", stage1=str(first), options=own | options, eval_train=False))
    return load_trained(folder).model.head.shift


def test_the_prior_of_the_old_head_is_that_of_the_option(tmp_path):
    """Whatever the method of the run, and whatever a run of gml has stored."""
    train(settings(tmp_path / "ce", eval_train=False))
    train(settings(tmp_path / "bsm", method="balanced-softmax", eval_train=False))
    counts = load_trained(tmp_path / "ce").manifest.counts
    removed = torch.tensor([-math.log(n / sum(counts.tolist())) for n in counts.tolist()])
    for name, first, options, wanted in (
        ("default", "ce", {}, 0 * removed),
        ("a", "ce", {"old_prior": "keep"}, 0 * removed),
        ("b", "bsm", {"old_prior": "remove"}, removed),
        ("c", "a", {"old_prior": "remove"}, removed),
        ("d", "b", {"old_prior": "keep"}, 0 * removed),
    ):
        torch.testing.assert_close(old_shift(tmp_path / name, tmp_path / first, **options), wanted)
