"""`spectail experiment` as a person uses it."""

import csv
import io
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from forked import PYTHON
from PIL import Image

from spectail.cli.main import main
from spectail.experiments.runs import code_version
from spectail.experiments.store import open_store


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store with two finished cells of the embedded data set."""
    folder = tmp_path_factory.mktemp("experiment")
    run = [*SLICE, "--epochs", "1", "--seeds", "0", "--device", "cpu", "--folder", str(folder / "runs")]
    assert main(["experiment", "run", "combinations", *run, "--store", str(folder / "s.sqlite")]) == 0
    return folder


SLICE = ["--dataset", "glyphs-lt", "--imbalance", "100", "--method", "ce", "car",
         "--model", "test_vit"]  # fmt: skip


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


@pytest.mark.parametrize("action", ["plan", "status", "table"])
def test_the_arguments_of_a_run_do_for_looking_at_it(place, capsys, action):
    how = ["--root", "/nowhere", "glyphs-lt=/nowhere", "--workers", "2", "--no-retry", "--threads", "1"]
    what = ["combinations", *SLICE, "--store", str(place / "s.sqlite")]
    code, out, err = say(capsys, action, *what, *how, "--epochs", "1")
    assert code == 0
    assert out == say(capsys, action, *what, "--epochs", "1")[1]
    assert "only `run` needs --root, --workers, --no-retry, --threads" in err


def test_a_plan_counts_cells_and_runs(capsys, tmp_path):
    code, out, _ = say(capsys, "plan", "lt-main", "--seeds", "0", "1", "2", "--store", str(tmp_path / "s.sqlite"))
    assert code == 0
    assert "48" in out
    assert "144" in out
    assert not (tmp_path / "s.sqlite").exists()
    code, out, _ = say(capsys, "plan", "lt-pretrained", "--dataset", "cifar100-lt", "--store", str(tmp_path / "s"))
    assert "1 cell is left out: cmo works on images" in " ".join(out.split())


def test_a_plan_with_measured_steps_says_how_long(capsys, tmp_path):
    arguments = ["plan", "lambda-ema-combined", "--dataset", "cifar100-lt", "--store", str(tmp_path / "s.sqlite")]
    assert "no measured step time" in " ".join(say(capsys, *arguments)[1].split())
    code, out, _ = say(capsys, *arguments, "--measure")
    assert code == 0
    assert "resnet20 at 32 x 32" in out
    assert "ms an image" in out
    assert " one after another" in out
    assert out.splitlines()[1:] == say(capsys, *arguments)[1].splitlines()  # kept beside the store


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
    assert {row["code"] for row in rows} == {code_version()}
    assert len({row["data"] for row in rows}) == 1
    assert all(
        row["mean"] and row["scale"] == "quick, own set, changed" and row["seeds"] == "1" for row in overall.values()
    )
    mean = float(overall["CE"]["mean"])
    _, out, _ = say(capsys, "table", "combinations", *SLICE, *store, "--format", "markdown")
    assert f"| CE | {mean:.1f} |" in out
    assert "| quick, own set, changed | 1 | a b c |" in out
    _, out, _ = say(capsys, "table", "combinations", *SLICE, *store, "--format", "latex")
    assert r"\toprule" in out
    assert f"CE & {mean:.1f} &" in out
    assert "& quick, own set, changed & 1 &" in out
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
    code, out, _ = say(capsys, "table", "lt-main", "--scale", "paper", "--epochs", "1", "--store",
                       str(place / "s.sqlite"), "--format", "csv")  # fmt: skip
    assert {row["scale"] for row in csv.DictReader(io.StringIO(out))} == {"paper, changed"}
    code, out, _ = say(capsys, "table", "lt-main", "--scale", "paper", "--epochs", "1", "--format", "markdown")
    assert "overall (paper, changed)" in out
    assert "(paper)" not in out


def test_status_says_what_else_the_store_holds_and_why_it_failed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = tmp_path / "s t.sqlite"
    arguments = [*SLICE[:-3], "--epochs", "1", "--seeds", "7", "--device", "cpu", "--store", str(name)]
    # no such model: the run fails at once
    code, out, err = say(capsys, "run", "combinations", *arguments, "--model", "no-such-model", "--threads", "1")
    assert code == 1
    words = " ".join(err.split())
    assert f"1 run failed: `spectail experiment status --store '{name}'` says why" in words
    _, out, _ = say(capsys, "status", "--store", str(name))
    text = " ".join(out.split())
    assert "the store holds 0 done, 0 running, 0 lost, 1 failed" in text
    (failed,) = [line for line in out.splitlines() if line.startswith("failed: ")]
    assert failed.startswith("failed: CE on glyphs-lt IF 100, small-cnn, scratch, seed 7: ")
    assert "no-such-model" in failed
    with sqlite3.connect(name) as connection:
        connection.execute("UPDATE cells SET about = replace(about, ?, '0.0.1+old')", [code_version()])
    connection.close()
    _, out, err = say(capsys, "status", "--store", str(name))
    assert "failed: " not in out
    assert "1 records of other versions of the code" in " ".join(err.split())
    assert "failed: CE" in say(capsys, "status", "--store", str(name), "--code", "any")[1]


def test_a_run_with_missing_data_ends_with_an_error_and_says_how_many(capsys, place):
    arguments = ["--dataset", "glyphs-lt", "cifar100-lt", *SLICE[2:], "--root", f"cifar100-lt={place / 'nothing'}"]
    code, out, err = say(capsys, "run", "combinations", *arguments, "--epochs", "1", "--device", "cpu", "--folder",
                         str(place / "runs"), "--store", str(place / "s.sqlite"))  # fmt: skip
    assert code == 1
    assert "0 runs trained, 2 were done, 0 are with other workers, 0 failed, 2 left out" in " ".join(out.split())
    assert "2 runs were left out" in err


def test_all_experiments_can_be_sliced(capsys, tmp_path):
    code, out, _ = say(capsys, "plan", "all", "--dataset", "glyphs-lt", "--store", str(tmp_path / "s.sqlite"))
    assert code == 0
    assert "combinations" in out
    assert "lt-main" not in out


def run_words(place, *more):
    return [PYTHON, "-m", "spectail", "experiment", "run", "combinations", *SLICE, *more, "--device", "cpu",
            "--folder", str(place / "runs"), "--store", str(place / "s.sqlite"), "--workers", "2"]  # fmt: skip


def environment():
    return dict(os.environ) | {"OMP_NUM_THREADS": "1"}


def test_workers_on_a_finished_plan_train_nothing(place):
    done = subprocess.run(run_words(place, "--epochs", "1"), capture_output=True, text=True, timeout=300, check=False,
                          env=environment())  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("0 runs trained, 2 were done") == 2


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_a_signal_to_the_parent_stops_its_workers_which_give_their_runs_back(tmp_path):
    parent = subprocess.Popen(run_words(tmp_path, "--epochs", "500"), env=environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    deadline = time.time() + 300
    while len(list((tmp_path / "runs").glob("*/config.yaml"))) < 2:  # both train
        assert time.time() < deadline, "the workers did not begin"
        assert parent.poll() is None, parent.communicate()[0]
        time.sleep(0.1)
    store = open_store(tmp_path / "s.sqlite")
    pids = [int(record.worker.rsplit("-", 2)[1]) for record in store.records().values()]
    assert len(set(pids)) == 2
    parent.send_signal(signal.SIGTERM)
    out, _ = parent.communicate(timeout=300)
    assert parent.returncode == 143, out
    assert all(map(gone, pids))
    records = store.records().values()
    store.close()
    assert [(record.status, record.attempts) for record in records] == [("waiting", 1)] * 2, out
    assert len(list((tmp_path / "runs").glob("*/checkpoints/step-*"))) == 2  # saved


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "lt-mian"], "did you mean lt-main"),
        (["plam"], "did you mean plan"),
        (["table", "wgr-lt", "--method", "Focall"], "near it are Focal"),
        (["plan", "lt-main", "--seeds", "0", "0"], "--seeds must be different"),
        (["run", "lt-main", "--dataset", "inat2018", "--epochs", "1"], "on --dataset glyphs-lt can run now"),
        (["plan", "lt-main", "--seeds", "0", "--seeds", "1"], "--seeds is expected once and came 2 times"),
        (["plan", "lt-main", "--img_size", "32", "--img-size=64"], "--img-size is expected once and came 2 times"),
        (["plan", "lt-main", "--epochs", "0"], "--epochs must be at least 1; got 0"),
        (["run", "lt-main", "--workers", "0"], "--workers must be at least 1; got 0"),
        (["run", "lt-main", "--threads", "-1"], "--threads must be at least 0; got -1"),
        (["run", "lt-main", "--processes", "0"], "--processes must be at least 1; got 0"),
        (["run", "combinations", *SLICE, "--device", "gpu"], "--device must be auto, cpu, cuda or mps; got 'gpu'"),
        (["run", "combinations", *SLICE, "--folder", "file/runs"], "file/runs, cannot be written (Not a directory)"),
        (["plan", "all", "--method", "cmoo"], "no experiment has such a cell; near it are cmo"),
        (["plan", "lambda-ema-combined", "--measure", "--device", "gpu"], "--device must be cpu, cuda or mps"),
        (["script", "lt-main", "--processes", "4", "--gpus", "2"], "need a GPU each, and a task has --gpus 2"),
        (["script", "lt-main", "--store", "s.sqlite"], "is a file for one machine"),
        (["figure", "trade-off", "--output", "x.bmp"], "must end in .png, .svg, .pdf"),
        (["status", "--store", "none.sqlite"], "there is no result store at none.sqlite"),
        (["table", "lt-main", "--no-empty"], "lt-main has no such results yet: `spectail experiment run lt-main`"),
        (["run", "lt-main", "--root", "cifar=/data"], "there is no data set 'cifar'; near it are cifar10"),
        (["figure", "trade-off", "--output", "x.png"], "there is nothing to draw"),
    ],
)
def test_mistakes_are_sentences(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    code, out, err = say(capsys, *arguments)
    assert code == 1
    assert words in " ".join((out + err).split())
    assert "Traceback" not in err
    assert not (tmp_path / "x.png").exists()
    assert not any((tmp_path / "runs").glob("experiments/*"))  # and nothing was begun


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


def test_a_script_divides_the_cores_and_leaves_its_own_options_out(capsys):
    _, out, _ = say(capsys, "script", "lt-main", "--count=2", "--processes", "2", "--workers", "2", "--cpus", "16",
                    "--gpus", "2", "--store", "journal:a b.log")  # fmt: skip
    assert "export OMP_NUM_THREADS=4" in out
    assert out.rstrip().splitlines()[-1] == (
        "exec python -m spectail experiment run lt-main --processes 2 --workers 2 --store 'journal:a b.log'"
    )


def test_threads_are_set_for_one_worker_too(place, monkeypatch):
    import torch

    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    arguments = [
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--folder",
        str(place / "runs"),
        "--store",
        str(place / "s.sqlite"),
    ]
    assert main(["experiment", "run", "combinations", *SLICE, *arguments, "--threads", "3"]) == 0
    assert asked == [3]


def test_a_wide_table_is_shown_in_parts(capsys, place, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = say(capsys, "table", "combinations", *SLICE, "--epochs", "1", "--store", str(place / "s.sqlite"))
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80 or "Notes" in out
    tops = [place for place, line in enumerate(lines) if line.startswith("┏")]
    assert len(tops) > 1
    assert sum("CE" in line.split("│")[1] for line in lines if line.startswith("│")) == len(tops)
    headings = " ".join(line for line in lines if line.startswith("┃"))
    assert all(word in headings for word in ("overall", "medium", "worst", "classes", "lowest", "seeds", "notes"))
