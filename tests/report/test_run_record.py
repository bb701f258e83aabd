"""A run folder is read whole or refused in words, and its command gives back its settings exactly."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spectail.cli.train import parse
from spectail.data import load
from spectail.diagnosis import make_predictions
from spectail.report.run_record import RunRecord, read_run, run_names
from spectail.training.config_io import from_dict, to_dict, write_yaml

OPTIONS = {"num_classes": 4, "max_per_class": 8, "imbalance": 4.0}
FLAGS = [
    "--output o", "--preset demo --output o", "--preset probe --output 'a b/ü'", "--method car --output o",
    "--method car --car --output o", "--method car --car.preset classwise --car.alpha 3 --output o",
    "--method balanced-softmax --tau 1.5 --car --output o", "--method balanced-softmax --car.beta 0.3 --output o",
    "--car.gate-grad False --output o", "--car.gate-grad True --car.weighting none --car.stages one two --output o",
    "--counts 3 4 5 --milestones 0.1 0.2 --no-eval-train --output o", "--root '~/my data' --lr 1e-5 --output o",
    "--dataset folder:/x/y --init a/b.pth --stage1 u --trackers tensorboard wandb --output o", "--output o$HOME",
    "--val-fraction 0.1 --select-on val --log-gradient --log-cm-gap --precision bf16 --output o",
]  # fmt: skip


@pytest.fixture(scope="module")
def manifest():
    return load("glyphs-lt", **OPTIONS).manifest


def record(config, manifest, **results):
    return RunRecord(Path("folder"), config, {"method": config.method, **results}, manifest, [])


def saved(flags):
    """The settings as config.yaml gives them back."""
    return from_dict(to_dict(parse(flags)[0]))


@pytest.mark.parametrize("flags", FLAGS)
def test_the_command_gives_back_the_settings(flags, manifest):
    config = saved(shlex.split(flags))
    words = shlex.split(record(config, manifest).command)
    assert words[:2] == ["spectail", "train"]
    assert saved(words[2:]) == config


def test_settings_of_a_switched_off_car_switch_nothing_on(manifest):
    config = from_dict({"car": {"alpha": 3.0}, "output": "o"})
    command = record(config, manifest).command
    assert "--car" not in command
    assert not parse(shlex.split(command)[2:])[0].car.enabled


def test_names(manifest):
    def of(folder, method="ce", seed=0, car=None):
        run = record(from_dict({"method": method, "seed": seed}), manifest, car=car)
        return RunRecord(Path(folder), run.config, run.results, manifest, [])

    assert run_names([of("a"), of("b", "car", car={"preset": "classwise"})]) == ["ce", "car (classwise)"]
    assert run_names([of("a"), of("b", seed=1)]) == ["ce, seed 0", "ce, seed 1"]
    assert run_names([of("a"), of("b")]) == ["ce (a)", "ce (b)"]
    assert run_names([of("x/a"), of("y/a")]) == ["ce (x/a)", "ce (y/a)"]
    assert run_names([of("a", car={"preset": "paper"})]) == ["ce + car"]


OLD = pytest.mark.filterwarnings("ignore:.*has no digests")


@pytest.fixture
def folder(tmp_path, manifest):
    """Of an earlier version."""
    run = tmp_path / "run"
    run.mkdir()
    write_yaml(run / "config.yaml", from_dict({"data": OPTIONS, "output": str(run)}))
    manifest.save(run / "manifest.json")
    (run / "results.json").write_text(json.dumps({"method": "ce", "overall": 50.0}))
    (run / "metrics.jsonl").write_text('{"epoch": 0, "loss": 2.5}\n{"epoch": 1, "loss": 1.5}\n')
    return run


@OLD
def test_a_folder_is_read(folder, manifest):
    run = read_run(folder)
    assert [row["loss"] for row in run.curves] == [2.5, 1.5]
    assert run.manifest.identity == manifest.identity
    assert run.results["overall"] == 50.0
    assert len(run.data.test) == manifest.splits["test"].images


@OLD
def test_other_data_is_refused(folder):
    load("glyphs-lt", **OPTIONS | {"num_classes": 5}).manifest.save(folder / "manifest.json")
    with pytest.raises(ValueError, match="the data differs from what the run in"):
        _ = read_run(folder).data


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "results.json"])
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"holds no finished run: {name} is missing. Give the folder"):
        read_run(folder)


@OLD
@pytest.mark.parametrize(
    ("name", "text"),
    [("results.json", "{"), ("results.json", "[]"), ("results.json", "{}"), ("metrics.jsonl", "oops"),
     ("metrics.jsonl", "3"), ("manifest.json", "{}"), ("config.yaml", "nonsense: 1"), ("config.yaml", "{}"),
     ("config.yaml", "")],
)  # fmt: skip
def test_a_damaged_file_is_refused_in_words(name, text, folder):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(folder))):
        read_run(folder)


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist. Give the folder of a run"):
        read_run(tmp_path / "none")


def test_a_run_in_memory_is_not_read_again(manifest, monkeypatch):
    data = load("glyphs-lt", **OPTIONS)
    labels = data.test.labels
    predicted = make_predictions(labels, np.eye(4, dtype=np.float32)[labels], class_names=manifest.classes)
    run = replace(record(from_dict({}), manifest), predicted=predicted, loaded=data)
    monkeypatch.setattr("spectail.report.run_record.load", None)
    monkeypatch.setattr("spectail.report.run_record.read_predictions", None)
    assert run.data is data
    assert run.predictions("mine").name == "mine"
    assert run.predictions("mine").logits is predicted.logits
