"""`spectail train` as a user meets it: what it prints and writes, and what it says about mistakes."""

import json
import re

import pytest
import torch
from training.runs import DATA, QUICK, assert_same

from spectail.cli.main import main

FILES = {"config.yaml", "manifest.json", "metrics.jsonl", "results.json", "predictions.npz", "checkpoints"}


@pytest.fixture(autouse=True)
def terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments, report=False):
    """Exit code, standard output, standard error."""
    try:
        code = main(["train", *QUICK, *map(str, arguments), *([] if report else ["--no-report"])])
    except SystemExit as error:
        code = error.code
    return code, *capsys.readouterr()


def test_a_run(capsys, tmp_path):
    code, out, err = run(capsys, "--output", "run", "--method", "balanced-softmax", "--val-fraction", 0.2, report=True)
    assert (code, err) == (0, "")
    assert {path.name for path in (tmp_path / "run").iterdir()} >= FILES | {"report.html"}
    assert "training images of 6 classes, identity" in out
    assert re.search(r"train 1/2  loss \d\.\d+.*val \d", out)
    assert "train 2/2" in out
    assert "balanced-softmax" in out
    assert "results in run" in out
    assert "worst class" in out


def test_default_folder_and_resume(capsys, tmp_path):
    assert run(capsys)[0] == 0
    folder = tmp_path / "runs" / "glyphs-lt-tiny-ce-seed0"
    results = json.loads((folder / "results.json").read_text())
    assert results["dataset"] == DATA["dataset"]
    code, out, err = run(capsys)
    assert code == 1
    assert "already holds a run. Pass --resume" in err
    code, out, _ = run(capsys, "--resume")
    assert code == 0
    assert "train 1/2" not in out
    assert json.loads((folder / "results.json").read_text()) == results


def test_the_folder_of_a_run_is_enough_to_resume_it(capsys, tmp_path):
    """Its settings are in it, those of CAR and of the data too; a flag that differs is refused."""
    car = ("--output", "run", "--car.alpha", 2, "--lr", 0.01)
    assert run(capsys, *car)[0] == 0
    (tmp_path / "run" / "results.json").rename(tmp_path / "results.json")
    for words in (["--output", "run"], ["run"]):
        assert main(["train", *words, "--resume", "--no-report"]) == 0
        assert "results in run" in capsys.readouterr().out
        again = json.loads((tmp_path / "run" / "results.json").read_text())
        assert again["overall"] == json.loads((tmp_path / "results.json").read_text())["overall"]
    assert main(["train", "--resume", "--output", "run", "--lr", "0.02"]) == 1
    assert "optim.lr: 0.01 -> 0.02" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--resume needs the folder of the run: spectail train --resume --output FOLDER."),
        (["--output", "none"], "none holds no run to resume: it has no config.yaml. Give the folder of a run"),
    ],
)
def test_nothing_to_resume(capsys, tmp_path, words, said):
    assert main(["train", "--resume", *words]) == 1
    assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_the_file_of_a_run_repeats_it(capsys, tmp_path):
    assert run(capsys, "--output", "a", "--car", "--lr", 0.01)[0] == 0
    assert main(["train", "--config", "a/config.yaml", "--output", "b", "--no-report"]) == 0
    assert_same(tmp_path / "a", tmp_path / "b")


def test_quiet(capsys):
    code, out, err = run(capsys, "--output", "run", "--quiet")
    assert (code, err) == (0, "")
    assert "train 1/2" not in out
    assert "reading" not in out
    assert "overall" in out


def test_json(capsys, tmp_path):
    code, out, err = run(capsys, "--output", "run", "--json", "--car.alpha", 2)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["car"]["alpha"] == 2
    code, out, _ = run(capsys, "--output", "run", "--json", "--car.alpha", 2, "--resume")
    assert json.loads(out) == found


def test_the_table_says_that_car_was_on(capsys):
    out = run(capsys, "--output", "run", "--quiet", "--car")[1]
    assert re.search(r"ce\s*\+\s*car", out, re.IGNORECASE), out


def test_long_paths_stay_whole(capsys, tmp_path):
    """Folders are copied from the terminal."""
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    out = run(capsys, "--output", folder, "--quiet", report=True)[1]
    assert str(folder) in out
    assert str(folder / "report.html") in out


def test_selection_on_test_data_is_said(capsys):
    out = run(capsys, "--output", "run", "--quiet", "--select-on", "test")[1]
    assert "TEST data (flatters the result)" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "small-cn"], ["unknown model 'small-cn'", "small-cnn"]),
        (["--dataset", "glyphs"], ["glyphs-lt"]),
        (["--method", "crr"], ["unknown method 'crr'", "car"]),
        (["--preset", "dem"], ["unknown preset 'dem'", "demo"]),
        (["--config", "none.yaml"], ["none.yaml does not exist"]),
        (["--output", "file"], ["file", "is a file"]),
        (["--output", "file", "--resume"], ["file", "is a file"]),
        (["--output", "file/run"], ["file"]),
        (["--batch-size", "15", "--accumulation", "2"], ["--batch-size 15", "2 micro-batches"]),
        (["--batch-size", "0"], ["--batch-size", "got 0"]),
        (["--epochs", "0"], ["epochs"]),
        (["--eval-every", "0"], ["eval"]),
        (["--accumulation", "0"], ["accumulation"]),
        (["--lr", "0"], ["lr"]),
        (["--init", "none.pth"], ["none.pth"]),
        (["--stage1", "none"], ["--stage1 means nothing for ce"]),
        (["--select-on", "val"], ["--val-fraction"]),
        (["--transform", "cifr"], ["cifar"]),
        (["--trackers", "nope"], ["nope"]),
        (["--car.beta", "5"], ["beta"]),
        (["--car.stages", "second"], ["second", "train"]),
        (["--device", "gpu"], ["auto, cpu, cuda, cuda:N or mps", "gpu"]),
        (["--patch-size", "4"], ["--patch-size means nothing for tiny"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_mistakes_are_said_in_a_sentence(capsys, tmp_path, arguments, words):
    (tmp_path / "file").write_text("mine")
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert err.startswith("spectail train: ")
    assert "Traceback" not in out + err
    assert all(word in err for word in words), err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_mistake_leaves_no_run_behind(capsys, tmp_path):
    """The next try, with the mistake put right, must not meet a folder that "already holds a run"."""
    assert run(capsys, "--output", "run", "--batch-size", 15, "--accumulation", 2)[0] == 1
    assert run(capsys, "--output", "run")[0] == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_that_is_not_there(capsys):
    code, _, err = run(capsys, "--device", "cuda")
    assert code == 1
    assert "--device cuda is not available here. Use --device cpu or auto." in err


def test_wrong_flags_are_said(capsys):
    code, out, err = run(capsys, "--epoch", "3")
    assert code == 2
    assert "--epochs" in out + err


def test_help(capsys):
    with pytest.raises(SystemExit) as error:
        main(["train", "--help"])
    assert error.value.code == 0
    out = capsys.readouterr().out
    for flag in ("--method", "--preset", "--config", "--car", "--car.alpha", "--epochs", "--resume", "--quiet"):
        assert flag in out
