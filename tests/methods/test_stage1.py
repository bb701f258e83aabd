"""--stage1: the model of an existing run in place of a first stage, and which runs are refused."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from training.runs import Losses, Stop, StopAt, assert_same, metrics, predictions, results, settings, shake

from spectail.cli.train import parse
from spectail.training.loop import train
from spectail.training.trained import load_trained

STRONG = {"optim__optimizer": "sgd", "optim__lr": 0.01, "optim__weight_decay": 5e-3}
SHORT = {"stage2_epochs": 2, "stage2_batch_size": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, shared_cache):
    """Finished one-stage runs by name, made when they are first asked for."""
    root, made = tmp_path_factory.mktemp("stage1"), {}

    def run(name, **changes):
        if name not in made:
            made[name] = root / name
            train(settings(made[name], eval_train=False, **changes))
        return made[name]

    return run


def weights(folder):
    return load_file(folder / "model.safetensors")


def second(folder, method, stage1, options=SHORT, **changes):
    heard = Losses()
    config = settings(folder, method=method, stage1=str(stage1), options=options, eval_train=False, **changes)
    train(config, reporter=heard)
    return heard


# what is taken over


@pytest.mark.parametrize("method", ["los", "wb", "lws"])
@pytest.mark.parametrize("model", ["tiny", "tiny-norm"])
def test_two_runs_are_one_where_the_head_goes_on(method, model, runs, tmp_path):
    """A plain run with the settings of the first stage, and then the second, is the run of both, bit for bit."""
    train(settings(tmp_path / "both", method=method, options=SHORT, eval_train=False, model__model=model, **STRONG))
    first = runs(f"strong-{model}", model__model=model, **STRONG)
    second(tmp_path / "second", method, first, model__model=model, **STRONG)
    assert (tmp_path / "both" / "model.safetensors").read_bytes() == (
        tmp_path / "second" / "model.safetensors"
    ).read_bytes()
    assert metrics(tmp_path / "both")[2:] == [
        line | {"step": line["step"] + 10} for line in metrics(tmp_path / "second")
    ]
    assert results(tmp_path / "second")["phases"] == {"stage2": 10}


@pytest.mark.parametrize("method", ["crt", "balms", "gml"])
def test_the_backbone_is_that_of_the_run(method, runs, tmp_path):
    first = runs("ce")
    heard = second(tmp_path / "run", method, first)
    there, here = weights(first), weights(tmp_path / "run")
    for name in there:
        assert torch.equal(there[name], here[name]) == name.startswith("backbone."), name
    if method == "gml":
        assert torch.equal(here["head.old_weight"], there["head.weight"])
        assert torch.equal(here["head.old_bias"], there["head.bias"])
    assert any("tensors loaded" in line for line in heard.lines)
    assert results(tmp_path / "run")["phases"].keys() == {"stage2"}
    assert {line["stage"] for line in metrics(tmp_path / "run")} == {"stage2"}


def test_a_head_that_goes_on_starts_from_that_of_the_run(runs, tmp_path):
    first = runs("ce")
    second(tmp_path / "run", "los", first, options=SHORT | {"stage2_lr": 1e-8})
    for name, value in weights(first).items():
        torch.testing.assert_close(weights(tmp_path / "run")[name], value, rtol=0, atol=1e-5)


def test_the_cap_is_that_of_the_run(runs, tmp_path, saved):
    first = runs("ce")
    second(tmp_path / "run", "wb", first, options=SHORT | {"threshold": 0.3})
    norms = weights(first)["head.weight"].norm(dim=1)
    limit = norms.min() + 0.3 * (norms.max() - norms.min())
    torch.testing.assert_close(saved(tmp_path / "run")[-1]["method.cap"], limit)


@pytest.mark.parametrize("method", ["balanced-softmax", "focal", "crt", "gml", "lws"])
def test_runs_of_other_methods_serve_as_well(method, runs, tmp_path):
    first = runs(method, method=method)
    second(tmp_path / "run", "crt", first)
    there, here = weights(first), weights(tmp_path / "run")
    assert all(torch.equal(there[name], here[name]) for name in here if name.startswith("backbone."))


def test_factors_begin_at_one_whatever_the_run_had(runs, tmp_path):
    """A run of LWS has factors of its own; a new second stage learns them anew."""
    first = runs("lws", method="lws")
    assert not torch.equal(weights(first)["head.scales"], torch.ones(6))
    second(tmp_path / "run", "lws", first, options=SHORT | {"stage2_lr": 1e-9})
    torch.testing.assert_close(weights(tmp_path / "run")["head.scales"], torch.ones(6), rtol=0, atol=1e-5)


def test_a_cosine_head_goes_on_as_one(runs, tmp_path):
    first = runs("cosine", model__head="cosine")
    second(tmp_path / "run", "los", first, model__head="cosine", options=SHORT | {"stage2_lr": 1e-8})
    torch.testing.assert_close(weights(tmp_path / "run")["head.weight"], weights(first)["head.weight"])


def test_probe_on_probe(runs, tmp_path):
    first = runs("probe", probe=True)
    second(tmp_path / "run", "los", first, probe=True, options=SHORT | {"stage2_lr": 1e-8})
    there, here = weights(first), weights(tmp_path / "run")
    for name in there:
        torch.testing.assert_close(here[name], there[name], rtol=0, atol=1e-5)


def test_resumed_with_a_first_stage_from_elsewhere(runs, tmp_path):
    changes = {"method": "balms", "stage1": str(runs("ce")), "options": SHORT, "checkpoint_every": 1}
    train(settings(tmp_path / "whole", **changes))
    config = settings(tmp_path / "cut", **changes)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=3))
    shake()
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_the_finished_run_needs_the_first_no_more(runs, tmp_path):
    first = tmp_path / "first"
    shutil.copytree(runs("ce"), first)
    second(tmp_path / "run", "crt", first)
    shutil.rmtree(first)
    assert load_trained(tmp_path / "run").config.stage1 == first
    assert predictions(tmp_path / "run")["logits"].shape[1] == 6


def test_the_flag():
    assert str(parse(["--method", "crt", "--stage1", "runs/a"])[0].stage1) == "runs/a"
    assert parse(["--method", "crt"])[0].stage1 is None


# what is refused


def refused(folder, words, method, stage1, error=ValueError, **changes):
    with pytest.raises(error, match=words):
        second(folder / "run", method, stage1, **changes)
    assert not (folder / "run").exists()


def test_other_data(runs, tmp_path):
    words = "was trained on glyphs-lt with identity .* this run uses glyphs-lt with .* Use the same data"
    refused(tmp_path, words, "crt", runs("ce"), data__imbalance=4)
    refused(tmp_path, words, "crt", runs("ce"), data__val_fraction=0.25)


def test_another_model(runs, tmp_path):
    refused(tmp_path, "is a tiny, this run asks for a tiny-norm. Pass --model tiny", "crt", runs("ce"),
            model__model="tiny-norm")  # fmt: skip


def test_the_same_model_in_another_shape(runs, tmp_path):
    vit = {"model__model": "small-vit"}
    first = runs("vit", model__patch_size=16, optim__epochs=1, **vit)
    refused(tmp_path, "patches.weight|does not fit", "crt", first, model__patch_size=8, **vit)


def test_frozen_features_for_a_trained_backbone(runs, tmp_path):
    refused(
        tmp_path, "trained its backbone, so frozen features from elsewhere do not fit", "crt", runs("ce"), probe=True
    )


def test_frozen_features_of_another_backbone(runs, tmp_path):
    """Both in probe mode, but the backbones are random ones of different seeds: the old head does not fit."""
    refused(tmp_path, "backbone", "los", runs("probe", probe=True), probe=True, seed=3)


@pytest.mark.parametrize("method", ["ce", "ldam-drw", "bbn", "car"])
def test_a_method_with_one_stage(method, runs, tmp_path):
    refused(tmp_path, f"--stage1 means nothing for {method}: it has one stage", method, runs("ce"), options={})


def test_no_folder(tmp_path):
    refused(tmp_path, "--stage1 .*nowhere does not exist", "crt", tmp_path / "nowhere", FileNotFoundError)


def test_a_folder_without_a_run(tmp_path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path, "holds no finished run: config.yaml is missing", "crt", tmp_path / "empty", FileNotFoundError)


def test_a_run_that_has_not_ended(tmp_path):
    with pytest.raises(Stop):
        train(settings(tmp_path / "cut"), reporter=StopAt(epochs=1))
    refused(tmp_path, "holds no finished run", "crt", tmp_path / "cut", FileNotFoundError)


def test_a_run_with_two_branches(runs, tmp_path):
    words = "is a run of bbn, whose network has two branches; crt goes on with a network of one. Give a run of another"
    refused(tmp_path, words, "crt", runs("bbn", method="bbn"))


@pytest.mark.parametrize("missing", ["manifest.json", "config.yaml"])
def test_a_run_without_one_of_its_files(runs, tmp_path, missing):
    shutil.copytree(runs("ce"), tmp_path / "first")
    (tmp_path / "first" / missing).unlink()
    refused(tmp_path, f"--stage1 .* holds no finished run: {missing} is missing. Give the folder", "crt",
            tmp_path / "first", FileNotFoundError)  # fmt: skip


@pytest.mark.parametrize("method", ["los", "wb", "gml", "lws"])
def test_a_cosine_head_for_a_method_that_goes_on_with_a_linear_one(method, runs, tmp_path):
    """Class vectors of a cosine head have no bias and other lengths; the linear head would be half random."""
    refused(tmp_path, "head", method, runs("ldam", method="ldam-drw"))


def test_a_linear_head_for_one_that_goes_on_with_a_cosine_head(runs, tmp_path):
    refused(tmp_path, "head", "los", runs("ce"), model__head="cosine")


def test_any_head_will_do_where_it_is_made_afresh(runs, tmp_path):
    first = runs("ldam", method="ldam-drw")
    second(tmp_path / "run", "crt", first)
    assert torch.equal(
        weights(first)["backbone.layers.2.weight"], weights(tmp_path / "run")["backbone.layers.2.weight"]
    )
