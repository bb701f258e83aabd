"""Heads on features: of a file, or of a frozen backbone, transformed, and saved so that new data meet the same."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training.runs import Losses, Stop, StopAt, assert_same, predictions, settings

from spectail.cli.train import parse
from spectail.data.loader import Loader
from spectail.training.build import make_pieces
from spectail.training.config_io import read_yaml
from spectail.training.loop import train
from spectail.training.reporter import Reporter
from spectail.training.trained import load_trained

COUNTS = [60, 30, 12, 5]


@pytest.fixture
def blobs(tmp_path):
    """Four clouds whose dimensions have very different sizes, with a test set."""
    rng = np.random.default_rng(0)
    centres, sizes = rng.normal(size=(4, 6)) * 2, 10.0 ** np.arange(-2, 4)

    def draw(counts):
        labels = np.repeat(np.arange(4), counts)
        return ((centres[labels] + rng.normal(size=(len(labels), 6))) * sizes).astype(np.float32), labels

    (x, y), (x_test, y_test) = draw(COUNTS), draw([10] * 4)
    np.savez(tmp_path / "x.npz", X=x, y=y, X_test=x_test, y_test=y_test, class_names=np.array(list("dcba")))
    return f"features:{tmp_path / 'x.npz'}"


def on_features(output, dataset, **changes):
    usual = {"data": {"dataset": dataset}, "model": {}, "optim__epochs": 3, "optim__lr": 0.05}
    return settings(output, **usual | changes)


def parts(folder):
    """Test features of the file, as NumPy has them, and the logits of the run."""
    with np.load(folder.parent / "x.npz") as arrays:
        train_part, test = arrays["X"].astype(np.float64), arrays["X_test"].astype(np.float64)
    return train_part, test, predictions(folder)["logits"]


@pytest.mark.parametrize("kind", [None, "raw", "standard", "power"])
def test_logits_are_those_of_the_formula(blobs, tmp_path, kind):
    results = train(on_features(tmp_path / "run", blobs, features=kind))
    before, test, logits = parts(tmp_path / "run")
    if kind == "power":
        before, test = (np.sign(x) * np.sqrt(np.abs(x)) for x in (before, test))
        test = (test - before.mean(0)) / np.sqrt(((before - before.mean(0)) ** 2).mean())
    elif kind != "raw":  # standard, by default too
        test = (test - before.mean(0)) / before.std(0)
    weights = load_file(tmp_path / "run" / "model.safetensors")
    buffers = {"backbone.transform.mean", "backbone.transform.scale"}
    assert weights.keys() == {"head.weight", "head.bias"} | (set() if kind == "raw" else buffers)
    wanted = test @ weights["head.weight"].double().numpy().T + weights["head.bias"].double().numpy()
    np.testing.assert_allclose(logits, wanted, rtol=1e-3, atol=1e-3)
    assert (results["model"], results["probe"]) == ("none", True)
    config = read_yaml(tmp_path / "run" / "config.yaml")
    assert config.features == (kind or "standard")
    with torch.no_grad(), np.load(tmp_path / "x.npz") as arrays:
        again = load_trained(tmp_path / "run").model(torch.from_numpy(arrays["X_test"]))
    np.testing.assert_allclose(again, logits, rtol=1e-5, atol=1e-5)


def test_a_head_learns_where_dimensions_differ_in_size(blobs, tmp_path):
    found = {kind: train(on_features(tmp_path / kind, blobs, features=kind, optim__epochs=20))["overall"]
             for kind in ("raw", "standard")}  # fmt: skip
    assert found["standard"] > 80
    assert found["standard"] > found["raw"]


def test_a_run_on_features_resumes_to_the_bit(blobs, tmp_path):
    train(on_features(tmp_path / "whole", blobs))
    config = on_features(tmp_path / "cut", blobs, checkpoint_every=1)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=9))
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_what_is_said_and_watched(blobs, tmp_path):
    reporter = Losses()
    train(on_features(tmp_path / "run", blobs, watch_test=0.5, data={"dataset": blobs, "val_per_class": 1}),
          reporter=reporter)  # fmt: skip
    assert reporter.lines[0].startswith("features:x.npz: 103 training rows of 4 classes, identity ")
    assert all("watched_test_overall" in entry for entry in reporter.entries)


@pytest.mark.parametrize("method", ["ldam-drw", "metasaug", "tau-norm", "car-balanced"])
def test_methods_that_need_no_images_run(blobs, tmp_path, method):
    found = train(on_features(tmp_path / "run", blobs, method=method, optim__epochs=2))
    logits = parts(tmp_path / "run")[2]
    with torch.no_grad(), np.load(tmp_path / "x.npz") as arrays:
        again = load_trained(tmp_path / "run").model(torch.from_numpy(arrays["X_test"]))
    np.testing.assert_allclose(again, logits, rtol=1e-4, atol=1e-4)
    assert found["method"] == method


def test_a_second_stage_takes_up_a_run_on_the_same_features_only(blobs, tmp_path):
    train(on_features(tmp_path / "one", blobs))
    train(on_features(tmp_path / "two", blobs, method="crt", stage1=str(tmp_path / "one")))
    with pytest.raises(ValueError, match=r"features of another backbone.*--features"):
        train(on_features(tmp_path / "x", blobs, method="crt", stage1=str(tmp_path / "one"), features="power"))


REFUSED = {
    "cmo works on images and cannot be used in probe mode. Choose another method": {"method": "cmo"},
    "--model resnet20 means nothing for features:": {"model__model": "resnet20"},
    "--img-size 32 means nothing": {"model__img_size": 32},
    "--pretrained means nothing": {"model__pretrained": True},
    "--transform cifar means nothing": {"transform": "cifar"},
    "--flip-test mirrors images": {"flip_test": True},
    "--compile is for a backbone": {"hardware": {"compile": True}},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_means_nothing_for_features_is_refused(blobs, tmp_path, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        train(on_features(tmp_path / "run", blobs, **REFUSED[sentence]))
    assert not (tmp_path / "run").exists()


def test_what_means_nothing_for_images_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--features belongs to --probe"):
        train(settings(tmp_path / "run", features="power"))
    with pytest.raises(ValueError, match="--model none is for features:FILE; glyphs-lt has images"):
        train(settings(tmp_path / "run", model__model="none"))


def test_settings_of_a_run_on_features_can_be_read_again(blobs, tmp_path):
    config, _ = parse(["--dataset", blobs, "--epochs", "2", "--device", "cpu"])
    assert (config.model.model, config.probe, config.features) == ("none", True, "auto")
    assert config.output.as_posix() == "runs/x-ce-seed0"
    again, _ = parse(["--dataset", blobs, "--epochs", "2", "--device", "cpu", "--model", "none", "--probe",
                      "--features", "auto", "--lr", "0.001", "--weight-decay", "0"])  # fmt: skip
    assert again == config


# -- of a frozen backbone --


def test_raw_features_of_a_probe_are_what_they_always_were(tmp_path):
    train(settings(tmp_path / "before", probe=True))
    train(settings(tmp_path / "raw", probe=True, features="raw"))
    assert_same(tmp_path / "before", tmp_path / "raw")
    assert not [name for name in load_file(tmp_path / "raw" / "model.safetensors") if "transform" in name]


@pytest.mark.parametrize("kind", ["standard", "power"])
def test_a_probe_transforms_features_once_and_saves_how(tmp_path, kind):
    config = settings(tmp_path / "run", probe=True, features=kind, data__val_per_class=1)
    train(config)
    plain = make_pieces(settings(tmp_path / "x", probe=True, data__val_per_class=1), Reporter()).splits
    seen = make_pieces(config, Reporter()).splits
    assert seen.keys() == {"train", "test", "val"}
    weights = load_file(tmp_path / "run" / "model.safetensors")
    mean, scale = weights["backbone.transform.mean"], weights["backbone.transform.scale"]
    for name in seen:
        before = plain[name].features
        before = before.sign() * before.abs().sqrt() if kind == "power" else before
        torch.testing.assert_close(seen[name].features, (before - mean) / scale)
    assert seen["train"].features.mean(0).abs().max() < 1e-4
    trained = load_trained(tmp_path / "run")
    data = make_pieces(settings(tmp_path / "y"), Reporter()).data.test
    with torch.no_grad():
        logits = torch.cat([trained.model(batch.images) for batch in Loader(data, trained.preset, batch_size=64)])
    np.testing.assert_allclose(logits, predictions(tmp_path / "run")["logits"], rtol=1e-4, atol=1e-4)


def test_another_run_can_start_from_a_transformed_probe(tmp_path):
    train(settings(tmp_path / "run", probe=True, features="power"))
    reporter = Losses()
    make_pieces(settings(tmp_path / "x", model__init=str(tmp_path / "run")), reporter)
    assert any("4 tensors loaded" in line for line in reporter.lines), reporter.lines
