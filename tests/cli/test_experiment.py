"""`spectail experiment` as a person uses it."""

import csv
import io
import sqlite3
import subprocess

import pytest
from PIL import Image

from spectail.cli.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store with two finished cells of the embedded data set."""
    folder = tmp_path_factory.mktemp("experiment")
    run = [*SLICE, "--epochs", "1", "--seeds", "0", "--device", "cpu", "--folder", str(folder / "runs")]
    assert main(["experiment", "run", "combinations", *run, "--store", str(folder / "s.sqlite")]) == 0
    return folder


SLICE = ["--dataset", "glyphs-lt", "--imbalance", "100", "--method", "ce", "car"]


def width(file):
    with Image.open(file) as image:
        return image.size[0]


def say(capsys, *arguments):
    code = main(["experiment", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_list_names_every_table(capsys):
    code, out, _ = say(capsys, "list")
    assert code == 0
    assert all(
        name in out for name in ("lt-main", "wgr-lt", "lambda-ema-combined", "sweeps", "figures", "--scale paper")
    )


def test_a_plan_counts_cells_and_runs(capsys, tmp_path):
    code, out, _ = say(capsys, "plan", "lt-main", "--seeds", "0", "1", "2", "--store", str(tmp_path / "s.sqlite"))
    assert code == 0
    assert "48" in out
    assert "144" in out
    assert not (tmp_path / "s.sqlite").exists()
    code, out, _ = say(capsys, "plan", "lt-pretrained", "--dataset", "cifar100-lt", "--store", str(tmp_path / "s"))
    assert "cells are left out: cmo works on images" in " ".join(out.split())


def test_a_plan_with_measured_steps_says_how_long(capsys, tmp_path):
    arguments = ["plan", "lambda-ema-combined", "--dataset", "cifar100-lt", "--store", str(tmp_path / "s.sqlite")]
    assert "no measured step time" in " ".join(say(capsys, *arguments)[1].split())
    code, out, _ = say(capsys, *arguments, "--measure")
    assert code == 0
    assert "resnet20 at 32 x 32" in out
    assert "ms an image" in out
    assert "minutes" in out or "hours" in out
    assert "minutes" in say(capsys, *arguments)[1]  # kept beside the store


def test_status_table_and_figure_of_finished_runs(capsys, place):
    store = ["--store", str(place / "s.sqlite"), "--epochs", "1"]
    capsys.readouterr()
    code, out, _ = say(capsys, "status", "combinations", *SLICE, *store)
    assert code == 0
    assert "combinations" in out
    code, out, _ = say(capsys, "table", "combinations", *SLICE, *store, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    overall = {row["method"]: row for row in rows if row["metric"] == "overall"}
    assert set(overall) == {"CE", "CAR"}
    assert all(row["mean"] and row["scale"] == "quick" and row["seeds"] == "1" for row in overall.values())
    mean = float(overall["CE"]["mean"])
    _, out, _ = say(capsys, "table", "combinations", *SLICE, *store, "--format", "markdown")
    assert f"| CE | {mean:.1f} |" in out
    _, out, _ = say(capsys, "table", "combinations", *SLICE, *store, "--format", "latex")
    assert r"\toprule" in out
    assert f"CE & {mean:.1f} &" in out
    file = place / "bars.png"
    assert main(["experiment", "figure", "combinations", *SLICE, *store, "--output", str(file)]) == 0
    assert width(file) > 500
    file = place / "confusion.png"
    arguments = ["figure", "combinations", *SLICE, *store, "--output", str(file), "--kind", "confusion"]
    assert main(["experiment", *arguments]) == 0
    assert width(file) > 500


def test_a_second_run_trains_nothing(capsys, place):
    capsys.readouterr()
    code, out, _ = say(capsys, "run", "combinations", *SLICE, "--epochs", "1", "--device", "cpu", "--folder",
                       str(place / "runs"), "--store", str(place / "s.sqlite"))  # fmt: skip
    assert code == 0
    assert "0 runs trained, 2 were done" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "lt-mian"], "did you mean lt-main"),
        (["plam"], "did you mean plan"),
        (["table", "wgr-lt", "--method", "Focall"], "near it are Focal"),
        (["plan", "lt-main", "--seeds", "0", "0"], "--seeds must be different"),
        (["run", "lt-main", "--dataset", "inat2018", "--epochs", "1"], "on --dataset glyphs-lt can run now"),
        (["figure", "trade-off", "--output", "x.bmp"], "must end in .png, .svg, .pdf"),
        (["figure", "trade-off", "--output", "x.png"], "there is nothing to draw"),
    ],
)
def test_mistakes_are_sentences(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = say(capsys, *arguments)
    assert code == 1
    assert words in " ".join((out + err).split())
    assert "Traceback" not in err
    assert not (tmp_path / "x.png").exists()


def test_a_store_of_a_newer_version_is_refused(capsys, place, tmp_path):
    newer = tmp_path / "newer.sqlite"
    newer.write_bytes((place / "s.sqlite").read_bytes())
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE spectail_store SET version = 99")
    connection.close()
    code, _, err = say(capsys, "status", "lt-main", "--store", str(newer))
    assert code == 1
    assert "newer version" in err


def test_a_script_for_slurm_is_valid_bash(capsys, tmp_path):
    code, out, _ = say(capsys, "script", "lt-main", "--scale", "paper", "--count", "8", "--gpus", "2", "--hours", "48")
    assert code == 0
    assert "--array" in out
    assert "journal:" in out
    file = tmp_path / "job.sh"
    file.write_text(out)
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=20)
