"""`spectail compare`: methods times seeds in one table, resumable, honest about runs that fail."""

import contextlib
import io
import json
import subprocess
import sys

import pytest
from forked import PYTHON
from training.runs import FLAGS

from spectail.cli.compare import flags_of
from spectail.cli.main import main


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


@pytest.fixture
def inside(monkeypatch):
    """Runs in this process: starting Python eight times is slow. The commands are kept."""
    commands = []

    def run(command, **options):
        commands.append(command)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(command[3:])
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def compare(capsys, *arguments):
    code = main(["compare", *FLAGS, "--epochs", "1", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_two_methods_two_seeds(inside, capsys, tmp_path):
    arguments = ("--methods", "ce", "ce+car/classwise", "--seeds", 0, 1, "--output", tmp_path / "all")
    code, out, err = compare(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "±" in out
    table = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert [(name, [run["seed"] for run in runs]) for name, runs in table.items()] == [
        ("ce", [0, 1]), ("ce+car/classwise", [0, 1])]  # fmt: skip
    assert [run["car"]["preset"] for run in table["ce+car/classwise"]] == ["classwise"] * 2
    assert len({run["identity"] for runs in table.values() for run in runs}) == 1
    folders = {path.name for path in (tmp_path / "all").iterdir()}
    runs = {"ce-seed0", "ce-seed1", "ce+car-classwise-seed0", "ce+car-classwise-seed1"}
    assert folders == runs | {"compare.json", "report.html"}

    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("step-*")}
    assert len(inside) == 4
    code, out, _ = compare(capsys, *arguments, "--json")  # a second time nothing is trained
    assert code == 0
    assert json.loads(out) == table
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("step-*")}


def test_a_failing_run_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", PYTHON)
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "car-seed0").write_text("in the way")
    code, out, err = compare(
        capsys, "--methods", "ce", "car", "--jobs", 2, "--threads", 1, "--output", tmp_path / "all"
    )
    assert code == 1
    assert "car seed 0 failed" in out
    assert "is a file" in " ".join(out.split())
    assert "1 of 2 runs failed" in err
    table = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert (len(table["ce"]), len(table["car"])) == (1, 0)


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


def test_flags_of_methods():
    assert flags_of("ce") == ["--method", "ce"]
    assert flags_of("ce+car") == ["--method", "ce", "--car"]
    assert flags_of("car/classwise") == ["--method", "car", "--car.preset", "classwise"]
    assert flags_of("balanced-softmax+car/reference") == [
        "--method", "balanced-softmax", "--car", "--car.preset", "reference"]  # fmt: skip
