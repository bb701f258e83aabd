"""`spectail experiment` as a person uses it."""

import csv
import io
import sqlite3
import subprocess

import pytest
from experiments.small_cells import Here
from PIL import Image

from spectail.cli import many_runs
from spectail.cli.main import main
from spectail.experiments.index import Index
from spectail.experiments.runs import code_version


@pytest.fixture(autouse=True, scope="module")
def here():
    """Runs in this process, where not another engine is asked for: processes have tests of their own."""
    usual = many_runs.make_engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_runs, "make_engine", lambda options, device, say: (
            Here() if options.engine == "local" else usual(options, device, say)))  # fmt: skip
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory, here):
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
    how = ["--root", "/nowhere", "glyphs-lt=/nowhere", "--jobs", "2", "--no-retry", "--threads", "1", "--engine", "ray"]
    what = ["combinations", *SLICE, "--store", str(place / "s.sqlite")]
    code, out, err = say(capsys, action, *what, *how, "--epochs", "1")
    assert code == 0
    assert out == say(capsys, action, *what, "--epochs", "1")[1]
    assert err == ""


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
    assert "the store holds 0 done, 0 running, 1 failed" in text
    (failed,) = [line for line in out.splitlines() if line.startswith("failed: ")]
    assert failed.startswith("failed: CE on glyphs-lt IF 100, small-cnn, scratch, seed 7: ")
    assert "no-such-model" in failed
    with sqlite3.connect(name) as connection:
        connection.execute("UPDATE cells SET digest = NULL, about = replace(about, ?, '0.0.1+old')", [code_version()])
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
    assert "0 runs trained, 2 were done, 0 failed, 2 left out" in " ".join(out.split())
    assert "2 runs were left out" in err


def test_all_experiments_can_be_sliced(capsys, tmp_path):
    code, out, _ = say(capsys, "plan", "all", "--dataset", "glyphs-lt", "--store", str(tmp_path / "s.sqlite"))
    assert code == 0
    assert "combinations" in out
    assert "lt-main" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "lt-mian"], "did you mean lt-main"),
        (["plam"], "did you mean 'plan'"),
        (["table", "wgr-lt", "--method", "Focall"], "near it are Focal"),
        (["plan", "lt-main", "--seeds", "0", "0"], "--seeds must be different"),
        (["run", "lt-main", "--dataset", "inat2018", "--epochs", "1"], "on --dataset glyphs-lt can run now"),
        (["plan", "lt-main", "--seeds", "0", "--seeds", "1"], "--seeds is expected once and came 2 times"),
        (["plan", "lt-main", "--img_size", "32", "--img-size=64"], "--img-size is expected once and came 2 times"),
        (["plan", "lt-main", "--epochs", "0"], "--epochs must be at least 1; got 0"),
        (["run", "lt-main", "--jobs", "0"], "--jobs must be at least 1; got 0"),
        (["run", "lt-main", "--engine", "slurm"], "unknown engine 'slurm'; choose from local, ray"),
        (["run", "lt-main", "--retries", "-1"], "--retries must be at least 0; got -1"),
        (
            ["run", "combinations", *SLICE, "--engine", "ray", "--address", "here"],
            "--address must be HOST:PORT or auto",
        ),
        (["run", "combinations", *SLICE, "--store", "journal:x"], "stores that several machines write are no longer"),
        (["run", "lt-main", "--threads", "-1"], "--threads must be at least 0; got -1"),
        (["run", "lt-main", "--processes", "0"], "--processes must be at least 1; got 0"),
        (
            ["run", "combinations", *SLICE, "--device", "gpu"],
            "--device must be auto, cpu, cuda, cuda:N or mps; got 'gpu'",
        ),
        (["run", "combinations", *SLICE, "--folder", "file/runs"], "file/runs, cannot be written (Not a directory)"),
        (["plan", "all", "--method", "cmoo"], "no experiment has such a cell; near it are cmo"),
        (
            ["plan", "lambda-ema-combined", "--measure", "--device", "gpu"],
            "--device must be auto, cpu, cuda, cuda:N or mps",
        ),
        (["script", "lt-main", "--nodes", "0"], "--nodes must be at least 1; got 0"),
        (["figure", "trade-off", "--output", "x.bmp"], "must end in .png, .svg, .pdf"),
        (["status", "--store", "none.sqlite"], "there is no result store at none.sqlite"),
        (["table", "lt-main", "--no-empty"], "lt-main has no such results yet: `spectail experiment run lt-main`"),
        (["run", "lt-main", "--root", "cifar=/data"], "there is no data set 'cifar'; did you mean 'cifar10-lt'"),
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
    assert not any((tmp_path / "runs").glob("experiments/[!.]*"))  # and nothing was begun


def test_a_store_of_a_newer_version_is_refused(capsys, place, tmp_path):
    newer = tmp_path / "newer.sqlite"
    newer.write_bytes((place / "s.sqlite").read_bytes())
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE spectail_store SET version = 99")
    connection.close()
    code, _, err = say(capsys, "status", "lt-main", "--store", str(newer))
    assert code == 1
    assert "newer version" in err


def test_a_script_for_slurm_leaves_its_own_options_out(capsys, tmp_path):
    code, out, _ = say(capsys, "script", "lt-main", "--scale", "paper", "--nodes=8", "--gpus", "2", "--cpus", "16",
                       "--hours", "48", "--engine", "local", "--store", "a b.sqlite")  # fmt: skip
    assert code == 0
    file = tmp_path / "job.sh"
    file.write_text(out)
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=20)
    assert out.splitlines()[-1] == (
        "exec python -m spectail experiment run lt-main --scale paper --store 'a b.sqlite' "
        '--engine ray --address "$head:$port"'
    )
    assert "--gpus-per-run 0.5" in say(capsys, "script", "lt-main", "--gpus-per-run", "0.5")[1]


def test_a_second_driver_gets_one_sentence(capsys, place):
    with Index(place / "s.sqlite", write=True):
        code, _, err = say(capsys, "run", "combinations", *SLICE, "--store", str(place / "s.sqlite"), "--folder",
                           str(place / "runs"))  # fmt: skip
        assert code == 1
        assert "already has a driver (process " in err
        assert say(capsys, "status", "--store", str(place / "s.sqlite"))[0] == 0


def test_help_shows_how_to_run_where_it_matters(capsys):
    for action, shown in (("run", True), ("status", False), ("table", False), ("script", True)):
        with pytest.raises(SystemExit):
            main(["experiment", action, "--help"])
        out = capsys.readouterr().out
        assert ("--engine" in out) == shown
        assert "--seeds" in out


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
