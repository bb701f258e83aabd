"""`spectail fit`: from an array or images to a run folder, an answer, and what is refused."""

import json

import numpy as np
import pytest

from spectail.cli import fit as command
from spectail.cli.fit import unused
from spectail.cli.main import main
from spectail.experiments import driver
from spectail.fit import backbone, crossfit, networks
from spectail.fit.crossfit import Here
from spectail.models.build import ModelConfig
from spectail.testing.runs import Stop, StopAfter, assert_same
from spectail.training.config_io import read_yaml
from spectail.training.loop import train
from spectail.training.signals import Interrupted


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Heads are trained in this process, and only for a few steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "make_engine", lambda *_: Here())
    monkeypatch.setattr(crossfit.cross_fit, "__kwdefaults__", crossfit.cross_fit.__kwdefaults__ | {"ladder": (30, 60)})
    monkeypatch.setattr(backbone, "answers", lambda name: False)
    monkeypatch.setattr(backbone, "is_cached", lambda name: False)


def array(path, sizes=(60, 25, 6, 1), width=8, apart=1.5, **more):
    random = np.random.default_rng(0)
    centres = apart * random.standard_normal((len(sizes), width))
    labels, test = np.repeat(np.arange(len(sizes)), sizes), np.repeat(np.arange(len(sizes)), 20)
    names = np.array(["cat", "dog", "owl", "elk", "emu"][: len(sizes)])
    values = {"X": centres[labels] + random.standard_normal((len(labels), width)), "y": names[labels],
              "X_test": centres[test] + random.standard_normal((len(test), width)), "y_test": names[test]}  # fmt: skip
    np.savez(path, **{name: value.astype(np.float32) if value.dtype.kind == "f" else value
                      for name, value in (values | more).items()})  # fmt: skip
    return values


def said(capsys, *arguments):
    code = main(["fit", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


# ruff: noqa: E501 - sentences are compared whole


def test_a_budget_that_is_too_small_still_gives_a_classifier_and_says_what_was_not_tried(tmp_path, capsys):
    array(tmp_path / "x.npz")
    code, out, err = said(capsys, "x.npz", "--budget", "0.001s", "--device", "cpu")
    assert (code, err) == (0, "")
    assert (
        "note: with 92 rows only cross entropy was tried, since so few do not tell losses apart; --method names others"
        in out
    )
    assert "note: the budget ended when 1 of 4 trainings had been judged; more time may find a better one" in out
    assert (tmp_path / "runs" / "fit-x-balanced" / "model.safetensors").exists()


def test_an_array_becomes_a_run_with_an_answer(tmp_path, capsys):
    values = array(tmp_path / "x.npz")
    code, out, err = said(capsys, "x.npz", "--method", "balanced-softmax", "--folds", "3", "--device", "cpu")
    assert (code, err) == (0, "")
    folder = tmp_path / "runs" / "fit-x-balanced"
    record = json.loads((folder / "fit.json").read_text())
    results = json.loads((folder / "results.json").read_text())
    for sentence in record["answer"]:
        assert sentence in " ".join(out.split())
    assert "has one training image" in out  # the elk cannot be judged
    assert record["judged"] == 91
    assert (folder / "report.html").read_text().count("Which classifier was chosen, and why?") == 1
    assert (folder / "advice.csv").exists()
    for training in record["trainings"]:
        assert set(training["balanced_by_fold"]) == set(map(str, training["folds"]))
    chosen, plain = record["chosen"]["figures"], record["cross_entropy"]["figures"]
    assert record["differences"]["balanced"]["value"] == pytest.approx(chosen["balanced"] - plain["balanced"], abs=2e-3)
    best = max(one["figures"]["balanced"] for one in record["menu"])
    assert best == record["menu"][0]["figures"]["balanced"] >= chosen["balanced"]
    # what it wrote is what it predicts with: logits with the shift and the temperature in them
    assert results["adjustment"]["tau"] == (record["chosen"]["shift"] or None)
    predicted = np.load(folder / "predictions.npz")
    names = predicted["class_names"][predicted["logits"].argmax(1)]
    assert results["overall"] == pytest.approx(100 * np.mean(names == values["y_test"]))
    np.savez(tmp_path / "new.npz", X=values["X_test"][:5].astype(np.float32))
    assert main(["predict", str(folder), "new.npz", "--json", "--top", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["classes"][0][0] for line in lines] == names[:5].tolist()
    code, _, err = said(capsys, "x.npz", "--output", str(folder))
    assert (code, err) == (
        1,
        f"spectail fit: {folder} already holds a run; choose another --output, or move it away.\n",
    )
    assert unused(folder).name == "fit-x-balanced-2"  # what a second one without --output is called


def test_a_network_from_scratch_is_judged_on_images_held_out_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(networks.SCRATCH["optim"], "epochs", 2)
    code, _, err = said(
        capsys, "glyphs-lt", "--num-classes", "4", "--max-per-class", "24", "--imbalance", "6", "--device", "cpu",
        "--method", "balanced-softmax", "--output", "found", "--no-report",
    )  # fmt: skip
    assert (code, err) == (0, "")
    record = json.loads((tmp_path / "found" / "fit.json").read_text())
    assert "a small network (small-cnn) is trained from scratch" in record["notes"][0]
    assert "not trained to the end" in " ".join(record["notes"])
    assert record["folds"] == 1
    titles = {one["title"] for one in record["trainings"]}
    assert {"ce network as trained", "balanced-softmax network as trained"} <= titles
    for method in networks.METHODS:
        cut = json.loads((tmp_path / "found" / "networks" / f"cut-{method}" / "manifest.json").read_text())
        whole = json.loads((tmp_path / "found" / "manifest.json").read_text())
        assert cut["splits"]["train"]["images"] + cut["splits"]["val"]["images"] == whole["splits"]["train"]["images"]
        assert record["judged"] == cut["splits"]["val"]["images"]
    (tmp_path / "found").rename(tmp_path / "moved")
    run = read_yaml(tmp_path / "moved" / "config.yaml")
    assert run.optim.epochs == 1  # a third of two, rounded
    assert run.model.init.name.startswith("cut-")  # it went on from the network that was judged
    assert main(["evaluate", "moved"]) == 0  # which its own weights no longer need


def test_a_network_that_finetuning_spoils_is_not_taken(tmp_path, capsys, monkeypatch):
    data = ("glyphs-lt", "--num-classes", "4", "--max-per-class", "24", "--imbalance", "6", "--device", "cpu")
    assert main(["train", *data, "--epochs", "1", "--output", "start", "--no-report", "--quiet"]) == 0
    monkeypatch.setitem(networks.TUNED, "optim", {"epochs": 2, "lr": 1.0})
    code, _, err = said(
        capsys, *data, "--model", "small-cnn", "--init", "start", "--method", "ce", "--finetune", "--folds", "2",
        "--output", "found", "--no-report",
    )  # fmt: skip
    assert (code, err) == (0, "")
    [note] = [
        one for one in json.loads((tmp_path / "found" / "fit.json").read_text())["notes"] if "whole network" in one
    ]
    assert "which was therefore taken" in note
    assert "probe: true" in (tmp_path / "found" / "config.yaml").read_text()


def test_a_fit_that_is_stopped_in_its_last_training_goes_on_with_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(networks.SCRATCH["optim"], "epochs", 9)
    command = (
        "glyphs-lt", "--num-classes", "4", "--max-per-class", "24", "--imbalance", "6", "--device", "cpu", "--method",
        "ce", "--no-report",
    )  # fmt: skip
    assert said(capsys, *command, "--output", "whole")[0] == 0

    def stopped(config, **more):
        with pytest.raises(Stop):
            train(config, **more | {"reporter": StopAfter(2)})
        raise Interrupted("stopped on request")

    monkeypatch.setattr("spectail.fit.run.train", stopped)
    with pytest.raises(SystemExit) as ended:
        main(["fit", *command])
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (130, "")
    assert out.endswith(
        "spectail fit: stopped in its last training. The same command chooses again and goes on with it.\n"
    )
    monkeypatch.setattr("spectail.fit.run.train", train)
    assert said(capsys, *command)[0] == 0
    [folder] = (tmp_path / "runs").iterdir()
    assert_same(tmp_path / "whole", folder, "a fit is stopped")
    assert (folder / "fit.json").exists()
    assert (folder / "advice.csv").exists()
    assert unused(folder) != folder


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["x.npz", "--keep", "overall"], "a floor is a figure and a number of percent, such as overall=80; got 'overall'."),
        (["x.npz", "--budget", "soon"], "--budget must be a time such as 90s, 5m or 2h; got 'soon'."),
        (["x.npz", "--method", "bbn"], "--method bbn: fit chooses from ce, balanced-softmax, ldam-drw, car, car-balanced, car-worst."),
        (["x.npz", "--folds", "1"], "--folds must be 2 or more; got 1."),
        (["x.npz", "--seed", "-1"], "--seed must be 0 or more; got -1."),
        (["alone.npz"], "every class has one training image, so that nothing can be held out to choose by. Add images, or "
         "train one method with `spectail train`."),
        (["untested.npz"], "every class has one image, so that none can be held out for a test. Add images."),
    ],
)  # fmt: skip
def test_what_cannot_work_is_one_sentence(arguments, sentence, tmp_path, capsys):
    array(tmp_path / "x.npz")
    array(tmp_path / "alone.npz", sizes=(1, 1, 1, 1, 1))
    np.savez(tmp_path / "untested.npz", X=np.eye(5), y=np.arange(5))
    code, _, err = said(capsys, *arguments)
    assert (code, err) == (1, f"spectail fit: {sentence}\n")
    assert list(tmp_path.glob("runs/*")) == []


def test_a_floor_out_of_reach_is_said_and_the_nearest_taken(tmp_path, capsys):
    array(tmp_path / "x.npz", apart=0.3)
    code, out, _ = said(capsys, "x.npz", "--method", "ce", "--folds", "2", "--keep", "overall=100", "--no-report")
    assert code == 0
    said_once = " ".join(out.split())
    assert said_once.count("note: no candidate keeps the floor: the nearest reaches overall") == 1
    assert "Chosen since it comes nearest to the floor: cross entropy" in said_once
    assert "Why this one" not in said_once


def test_times_and_names():
    assert [command.seconds(text) for text in ("90s", "5m", "2h", "30", "1.5m")] == [90, 300, 7200, 30, 90]
    assert [command.word(name) for name in ("photos", "features:a/b c.npz", "glyphs-lt", "./x/")] == [
        "photos", "b-c", "glyphs-lt", "x"]  # fmt: skip


def test_weights_at_hand_are_found_by_their_name(tmp_path, monkeypatch):
    assert not backbone.choose_backbone(ModelConfig("auto"), 300).frozen
    named = backbone.choose_backbone(ModelConfig("small-cnn"), 32)
    assert (named.frozen, named.note) == (False, "a small network (small-cnn) is trained from scratch")
    file = tmp_path / "resnet18.safetensors"
    file.touch()
    found = backbone.choose_backbone(ModelConfig("auto", init=file), 32)
    assert (found.model.model, found.model.img_size, found.frozen) == ("resnet18", 128, True)
    with pytest.raises(ValueError, match=r"--init mine.pth: the file's name is no model of timm; say which one with"):
        backbone.choose_backbone(ModelConfig("auto", init=tmp_path / "mine.pth"), 32)
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path))
    (tmp_path / "weights").mkdir()
    file.rename(tmp_path / "weights" / file.name)
    found = backbone.choose_backbone(ModelConfig("auto"), 300)
    assert (found.model.model, found.model.img_size, found.model.init.name) == ("resnet18", 224, "resnet18.safetensors")
    monkeypatch.setattr(backbone, "is_cached", lambda name: name == backbone.PREFERRED[2])
    (tmp_path / "weights" / file.name).unlink()
    assert backbone.choose_backbone(ModelConfig("auto"), 300).model.model == backbone.PREFERRED[2]


def test_the_hub_is_asked_once_and_not_for_long():
    import time

    began = time.monotonic()
    asked = []
    slow = lambda url: (asked.append(url), time.sleep(5))  # noqa: E731
    assert not BACKBONE_ANSWERS(backbone.PREFERRED[0], slow, wait=0.2)
    assert time.monotonic() - began < 4
    assert len(asked) == 1
    assert BACKBONE_ANSWERS(backbone.PREFERRED[0], lambda url: "there")

    def raises(url):
        raise OSError("no route")

    assert not BACKBONE_ANSWERS(backbone.PREFERRED[0], raises)


BACKBONE_ANSWERS = backbone.answers
