"""Changes made after training (logit adjustment, tau-normalisation), and for every method: what evaluation measured is
what a loaded or exported model computes."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training.runs import metrics, predictions, results, settings

from spectail.cli import export
from spectail.data import load
from spectail.methods.registry import METHODS
from spectail.models.classifier import Classifier
from spectail.training.loop import train
from spectail.training.trained import Normalised, load_trained

COUNTS = (100, 20, 5)
CASES = {name: {"method": name} for name in METHODS} | {
    "ldam-scale": {"method": "ldam-drw", "options": {"scale": 7.0}},
    "tau-norm-half": {"method": "tau-norm", "options": {"tau": 0.5}},
    "adjusted-flipped": {"method": "logit-adjustment", "options": {"tau": 1.7}, "flip_test": True},
    "gml-alone": {"method": "gml", "options": {"ensemble": 0.0}},
    "bbn-cnn": {"method": "bbn", "model__model": "small-cnn"},
    "crt-cosine": {"method": "crt", "model__head": "cosine"},
    "lws-probe": {"method": "lws", "probe": True, "model__model": "tiny-norm"},
    "adjusted-probe": {"method": "logit-adjustment", "probe": True},
    "balms-probe": {"method": "balms", "probe": True},
    "wb-average": {"method": "wb", "optim__ema": 0.5},
}


def two_vectors(bias=(5.0, -7.0, 9.0)):
    head = nn.Linear(2, 3)
    head.weight.data = torch.tensor([[3.0, 4.0], [0.0, 0.5], [-0.6, 0.8]])
    head.bias.data = torch.tensor(bias)
    return Classifier(nn.Identity(), head)


# logit adjustment


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.5])
def test_the_prior_is_taken_off_at_inference(make, tau):
    model = two_vectors()
    x = torch.randn(4, 2)
    found = make("logit-adjustment", tau=tau).inference(model)(x)
    for row, logits in zip(found.tolist(), model(x).tolist(), strict=True):
        for k in range(3):
            assert row[k] == pytest.approx(logits[k] - tau * math.log(COUNTS[k] / 125), abs=1e-5)


def test_adjustment_of_equal_counts_changes_no_probability(make):
    model, x = two_vectors(), torch.randn(4, 2)
    found = make("logit-adjustment", counts=(4, 4, 4), tau=3.0).inference(model)(x)
    torch.testing.assert_close(found.softmax(1), model(x).softmax(1))


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_adjusted_run_is_a_plain_run_with_shifted_predictions(tmp_path, tau):
    train(settings(tmp_path / "ce"))
    train(settings(tmp_path / "adjusted", method="logit-adjustment", options={"tau": tau}))
    plain, adjusted = (load_file(tmp_path / name / "model.safetensors") for name in ("ce", "adjusted"))
    assert plain.keys() == adjusted.keys()
    assert all(torch.equal(plain[name], adjusted[name]) for name in plain)
    before, after = predictions(tmp_path / "ce"), predictions(tmp_path / "adjusted")
    prior = before["class_counts"] / before["class_counts"].sum()
    np.testing.assert_allclose(after["logits"], before["logits"] - tau * np.log(prior), rtol=1e-5, atol=1e-5)
    assert [line["loss"] for line in metrics(tmp_path / "ce")] == [
        line["loss"] for line in metrics(tmp_path / "adjusted")
    ]


def test_adjustment_in_training_is_balanced_softmax(tmp_path):
    train(settings(tmp_path / "a", method="balanced-softmax", options={"tau": 1.3}))
    train(settings(tmp_path / "b", method="logit-adjustment", options={"tau": 1.3, "mode": "training"}))
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)
    np.testing.assert_array_equal(predictions(tmp_path / "a")["logits"], predictions(tmp_path / "b")["logits"])


def test_balanced_softmax_adds_nothing_at_inference(make):
    model = two_vectors()
    assert make("balanced-softmax", tau=2.0).inference(model) is model


# tau-normalisation


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 1.9])
def test_vectors_are_divided_by_a_power_of_their_length(make, tau):
    model = two_vectors()
    inference = make("tau-norm", tau=tau).inference(model)
    x = torch.tensor([[0.3, -1.2], [2.0, 0.1]])
    weight = model.head.weight.tolist()
    for row, image in zip(inference(x).tolist(), x.tolist(), strict=True):
        for k, w in enumerate(weight):
            dot = sum(a * b for a, b in zip(w, image, strict=True))
            assert row[k] == pytest.approx(dot / math.hypot(*w) ** tau, abs=1e-5)  # and no bias


def test_lengths_are_one_with_tau_one_and_training_is_untouched(make):
    model = two_vectors()
    before = model.head.weight.detach().clone()
    inference = make("tau-norm").inference(model)
    torch.testing.assert_close(inference.head.weight.norm(dim=1), torch.ones(3))
    assert torch.equal(model.head.weight, before)
    assert model.head.bias.tolist() == [5.0, -7.0, 9.0]
    assert inference.backbone is model.backbone


def test_a_zero_vector_stays_zero(make):
    model = two_vectors()
    model.head.weight.data[1] = 0.0
    found = make("tau-norm").inference(model)(torch.randn(3, 2))
    assert found.isfinite().all()
    assert not found[:, 1].any()


def test_a_tau_norm_run_is_a_plain_run(tmp_path, test_images):
    train(settings(tmp_path / "ce"))
    train(settings(tmp_path / "normed", method="tau-norm", options={"tau": 0.7}))
    plain, normed = (load_file(tmp_path / name / "model.safetensors") for name in ("ce", "normed"))
    assert all(torch.equal(plain[name], normed[name]) for name in plain)
    trained = load_trained(tmp_path / "ce")
    with torch.no_grad():
        features = trained.model.backbone(test_images(trained))
    weight = plain["head.weight"]
    wanted = features @ (weight / weight.norm(dim=1, keepdim=True) ** 0.7).T
    np.testing.assert_allclose(predictions(tmp_path / "normed")["logits"], wanted, rtol=1e-4, atol=1e-5)


def test_tau_norm_needs_a_linear_head(tmp_path):
    with pytest.raises(ValueError, match="tau-norm needs a linear head; got --head cosine"):
        train(settings(tmp_path / "run", method="tau-norm", model__head="cosine"))


# on a run that is there


def logits_of(trained, images):
    with torch.no_grad():
        return trained.model(images)


def test_a_plain_run_adjusted_afterwards_is_the_adjusted_run(tmp_path, test_images):
    train(settings(tmp_path / "ce", eval_train=False))
    plain = load_trained(tmp_path / "ce")
    images = test_images(plain)
    before = logits_of(plain, images)
    prior = plain.manifest.counts.counts / plain.manifest.counts.total
    for tau, wanted in ((None, 1.0), (0.4, 0.4)):
        found = logits_of(load_trained(tmp_path / "ce", "logit-adjustment", tau), images)
        torch.testing.assert_close(found, before - wanted * prior.log().float())
        weight = plain.model.head.weight.detach()
        normed = plain.model.backbone(images).detach() @ (weight / weight.norm(dim=1, keepdim=True) ** wanted).T
        torch.testing.assert_close(logits_of(load_trained(tmp_path / "ce", "tau-norm", tau), images), normed)


def test_another_tau_for_a_run_that_has_one(tmp_path, test_images):
    train(settings(tmp_path / "ce", eval_train=False))
    for method in ("logit-adjustment", "tau-norm"):
        train(settings(tmp_path / method, method=method, eval_train=False))
        changed = load_trained(tmp_path / method, tau=0.3)
        wanted = load_trained(tmp_path / "ce", method, 0.3)
        images = test_images(wanted)
        torch.testing.assert_close(logits_of(changed, images), logits_of(wanted, images))


def test_runs_that_cannot_be_adjusted(tmp_path):
    for name, changes in {
        "ce": {}, "cosine": {"model__head": "cosine"}, "bsm": {"method": "balanced-softmax"}, "lws": {"method": "lws"},
        "bbn": {"method": "bbn"}, "la": {"method": "logit-adjustment"}, "tn": {"method": "tau-norm"},
        "gml": {"method": "gml"}, "trained": {"method": "logit-adjustment", "options": {"mode": "training"}},
    }.items():  # fmt: skip
        train(settings(tmp_path / name, eval_train=False, optim__epochs=1, **changes))
    for name, post_hoc, tau, words in (
        *((name, "logit-adjustment", None, "adjusted already. Leave --post-hoc out") for name in ("la", "tn", "gml")),
        *((name, "tau-norm", None, "tau-norm needs a plain linear head") for name in ("cosine", "lws", "bbn")),
        ("ce", "logit-adjustment", math.nan, "--tau must lie between 0 and 10"),
        ("ce", "tau-norm", -1.0, "--tau must lie between 0 and 10"),
        ("la", None, math.inf, "--tau must lie between 0 and 10"),
        ("ce", None, 0.5, "is a run of ce, which has no tau. To adjust its logits pass --post-hoc"),
        ("bsm", None, 0.5, "is a run of balanced-softmax, whose tau acts in training only. To adjust"),
        ("trained", None, 0.5, "tau acts in training only"),
        ("ce", "tau-nrm", None, "post_hoc must be one of 'logit-adjustment', 'tau-norm'; got 'tau-nrm'"),
    ):
        with pytest.raises(ValueError, match=words):
            load_trained(tmp_path / name, post_hoc, tau)


# every method


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_model_computes_what_was_measured(case, tmp_path, test_images):
    train(settings(tmp_path / "run", eval_train=False, **CASES[case]))
    trained = load_trained(tmp_path / "run")
    assert not any(module.training for module in trained.model.modules())
    with torch.no_grad():
        logits = trained.model(test_images(trained))
    wanted = predictions(tmp_path / "run")
    np.testing.assert_allclose(logits, wanted["logits"], rtol=1e-4, atol=2e-5)
    data = load(trained.config.data)
    np.testing.assert_array_equal(wanted["labels"], data.test.labels)
    found = results(tmp_path / "run")
    assert found["overall"] == pytest.approx(100 * (wanted["logits"].argmax(1) == wanted["labels"]).mean())


@pytest.mark.parametrize("name", ["logit-adjustment", "tau-norm", "gml", "lws", "bbn"])
def test_an_exported_model_holds_what_is_done_after_training(name, tmp_path, test_images):
    train(settings(tmp_path / "run", method=name, eval_train=False, optim__epochs=1))
    export.run([str(tmp_path / "run")])
    trained = load_trained(tmp_path / "run")
    inputs = test_images(trained)
    mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (trained.preset.mean, trained.preset.std))
    program = torch.export.load(tmp_path / "run" / "model.pt2").module()
    pixels = inputs * std + mean
    found = program(pixels)
    np.testing.assert_allclose(found.detach(), predictions(tmp_path / "run")["logits"], rtol=1e-3, atol=1e-3)
    with torch.no_grad():  # any number of images
        torch.testing.assert_close(program(pixels[:3]), Normalised(trained.model, trained.preset)(pixels[:3]))


@pytest.mark.parametrize("name", METHODS)
def test_two_classes_of_which_one_has_one_image(name, tmp_path):
    changes = {"data__num_classes": 2, "data__imbalance": 24, "optim__epochs": 2, "optim__batch_size": 8}
    train(settings(tmp_path / "run", method=name, **changes))
    found = predictions(tmp_path / "run")
    assert found["class_counts"].tolist() == [24, 1]
    assert np.isfinite(found["logits"]).all()
    assert all(math.isfinite(line["loss"]) for line in metrics(tmp_path / "run"))
