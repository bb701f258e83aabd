"""`spectail compare`: methods times seeds in one table, resumable, honest about runs that fail."""

import io
import json
import re

import pytest
from experiments.small_cells import Here
from training.runs import FLAGS

from spectail.cli import many_runs
from spectail.cli.compare import flags_of
from spectail.cli.console import show_results
from spectail.cli.main import main
from spectail.experiments.index import Index


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


@pytest.fixture
def inside(monkeypatch):
    """Runs in this process; the tasks are kept."""
    engine = Here()
    monkeypatch.setattr(many_runs, "make_engine", lambda *options: engine)
    return engine.tasks


def compare(capsys, *arguments):
    code = main(["compare", *FLAGS, "--epochs", "1", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_two_methods_two_seeds(inside, capsys, tmp_path):
    arguments = ("--methods", "ce", "ce+car/classwise", "--seeds", 0, 1, "--output", tmp_path / "all")
    code, out, err = compare(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "±" in out
    assert re.search(
        r"^ce \+ car \(classwise\) .* ce.*: overall .*\(2 seeds, over test images only\)$", out, re.MULTILINE
    )
    table = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert [(name, [run["seed"] for run in runs]) for name, runs in table.items()] == [
        ("ce", [0, 1]), ("ce+car/classwise", [0, 1])]  # fmt: skip
    assert [run["car"]["preset"] for run in table["ce+car/classwise"]] == ["classwise"] * 2
    assert len({run["identity"] for runs in table.values() for run in runs}) == 1
    folders = {path.name for path in (tmp_path / "all").iterdir()}
    runs = {"ce-seed0", "ce-seed1", "ce+car-classwise-seed0", "ce+car-classwise-seed1"}
    assert folders == runs | {"compare.json", "report.html", "runs.sqlite", ".runs.sqlite.lock", ".runs.lock"}

    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("step-*")}
    assert len(inside) == 4
    code, out, _ = compare(capsys, *arguments, "--json")  # a second time nothing is trained
    assert [task.only_identify for task in inside[4:]] == [True]
    assert code == 0
    assert json.loads(out) == table
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("step-*")}


@pytest.mark.parametrize(("width", "columns"), [(80, 4), (60, 3), (140, 8)])
def test_the_table_keeps_its_deviations_on_a_narrow_terminal(width, columns):
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    one = {"overall": 82.71, "head": 90.02, "medium": 70.3, "tail": 50.66, "worst_test": 12.5, "zero_classes": 3,
           "bottom_10pct": 20.1, "seconds": 60.0, "selection": "last epoch"}  # fmt: skip
    other = one | {"overall": 84.1, "tail": 61.2, "seconds": 70.5}
    show_results(console, {"ce": [one, other], "balanced-softmax+car/classwise": [one, other]})
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for figure in ("83.4 ± 1.0", "55.9 ± 7.5", "12.5 ± 0.0"):
        assert text.count(figure) == 2
    assert text.count(" ± ") == 2 * columns + 1  # and the title


def test_one_error_is_said_once(inside, capsys, tmp_path):
    methods = ("ce", "focal", "cb", "los", "balanced-softmax")
    code, out, err = compare(capsys, "--methods", *methods, "--model", "small-cn", "--output", tmp_path / "all")
    assert code == 1
    assert out.count("unknown model 'small-cn'") == 1
    assert "failed: 3 runs, ce seed 0, focal seed 0, cb seed 0: unknown model" in " ".join(out.split())
    assert "the first 3 runs failed with the same error; the others are left out" in out
    assert "3 of 5 runs failed and 2 were left out" in err


def test_a_failing_run_is_said(capsys, tmp_path):
    """With processes of their own."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "car-seed0").write_text("in the way")
    code, out, err = compare(
        capsys, "--methods", "ce", "car", "--jobs", 2, "--threads", 1, "--output", tmp_path / "all"
    )
    assert code == 1
    assert "failed: car seed 0" in out
    assert "is a file" in " ".join(out.split())
    assert "1 of 2 runs failed" in err
    table = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert (len(table["ce"]), len(table["car"])) == (1, 0)


def test_two_at_the_same_folder_are_refused(capsys, tmp_path):
    with Index(tmp_path / "all" / "runs.sqlite", write=True):
        code, _, err = compare(capsys, "--methods", "ce", "--output", tmp_path / "all")
    assert code == 1
    assert "already has a driver" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seeds", "0", "0"], "--seeds must be given and different"),
        (["--seeds"], "--seeds must be given and different; got none"),
        (["--device", "cuda:99"], "--device cuda:99 is not available here"),
        (["--engine", "rya"], "did you mean 'ray'"),
        (["--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_bad_options_are_said_first(flags, words, capsys, tmp_path):
    code, _, err = compare(capsys, "--methods", "ce", *flags, "--output", tmp_path / "all")
    assert code == 1
    assert words in err
    assert not (tmp_path / "all").exists()


def test_all_runs_failing(inside, capsys, tmp_path):
    code, out, err = compare(capsys, "--methods", "ce", "--model", "small-cn", "--output", tmp_path / "all")
    assert code == 1
    assert "unknown model" in " ".join(out.split())
    assert "1 of 1 runs failed" in err


@pytest.mark.parametrize("wrong", ["cee", "ce+cra", "ce/classwise", "car/papr", "ce+car/x"])
def test_wrong_names_are_said_first(wrong, capsys, tmp_path):
    code, _, err = compare(capsys, "--methods", "ce", wrong, "--output", tmp_path / "all")
    assert code == 1
    assert err.startswith("spectail compare: ")
    assert not (tmp_path / "all").exists()


def test_methods_with_commas(capsys):
    code, _, err = compare(capsys, "--methods", "ce,car")
    assert (code, err) == (1, "spectail compare: --methods are separated by spaces: --methods ce car.\n")


def test_flags_of_methods():
    assert flags_of("ce") == ["--method", "ce"]
    assert flags_of("ce+car") == ["--method", "ce", "--car"]
    assert flags_of("car/classwise") == ["--method", "car", "--car.preset", "classwise"]
    assert flags_of("balanced-softmax+car/reference") == [
        "--method", "balanced-softmax", "--car", "--car.preset", "reference"]  # fmt: skip
