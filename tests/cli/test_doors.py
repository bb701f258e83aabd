"""Doors of the command line: where it writes, whose code it runs, what it says when it fails itself."""

import errno
import os
import re
import sys

import pytest
import torch

from spectail._utils.plain_text import cell, visible
from spectail.cli import main as command_line
from spectail.cli.main import main
from spectail.cli.outputs import check_description, check_folder, check_output
from spectail.methods.registry import find_method
from spectail.models.weights import read_weights
from spectail.training import checkpoint


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    for name in ("config.yaml", "manifest.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["config.yaml", "CONFIG.yaml", "results.json", "digests.json", "fit.json",
                                  "checkpoints/step-00000001/state.pt", "checkpoints/x.html"])  # fmt: skip
def test_files_of_a_run_are_not_replaced(name, run):
    with pytest.raises(ValueError, match="would replace a file of a run"):
        check_output(run / name)
    check_output(run / "report.html")


def test_only_ordinary_files_are_written(tmp_path):
    os.symlink("/dev/null", tmp_path / "link.html")
    os.mkfifo(tmp_path / "pipe.html")
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "link.html", "is a link"), ("/dev/null", "no ordinary"),
                        (tmp_path / "pipe.html", "no ordinary")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            check_output(type(tmp_path)(path))
    (tmp_path / "in.csv").write_text("x")
    with pytest.raises(ValueError, match="would replace a file that is read"):
        check_output(tmp_path / "in.csv", read=[tmp_path / "in.csv"])
    with pytest.raises(ValueError, match=r"must end in \.html; got 'in\.csv'"):
        check_output(tmp_path / "in.csv", (".html",))


def test_a_description_replaces_descriptions_only(tmp_path, run):
    check_description(tmp_path / "m.json", {"classes"})
    (tmp_path / "m.json").write_text('{"classes": []}')
    check_description(tmp_path / "m.json", {"classes"})
    (tmp_path / "m.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="holds something else"):
        check_description(tmp_path / "m.json", {"classes"})
    with pytest.raises(ValueError, match="is the folder of a run"):
        check_folder(run)


def test_code_runs_only_if_the_user_names_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "strange_module.py").write_text("raise ZeroDivisionError('run')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "c.yaml").write_text("method: strange_module:Strange\n")
    assert main(["train", "--config", str(tmp_path / "c.yaml")]) == 1
    said = capsys.readouterr().err
    assert "which is code from elsewhere" in said
    assert "--trust strange_module:Strange" in said
    assert "strange_module" not in sys.modules
    assert main(["train", "--config", str(tmp_path / "c.yaml"), "--trust", "strange_module:Strange"]) == 1
    assert "cannot be imported (ZeroDivisionError: run)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="code from elsewhere"):
        find_method("another_module:Strange", from_file=True)


def test_a_fault_of_ours_is_two_lines_and_a_trace_in_a_file(tmp_path, monkeypatch, capsys):
    class Broken:
        @staticmethod
        def run(words):
            raise KeyError("surprise\x1b[2J")

    monkeypatch.setattr(command_line, "import_module", lambda *name: Broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "x.csv").write_text("")
    assert main(["analyze", str(tmp_path / "x.csv")]) == 70
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"spectail analyze: failed with {tmp_path / 'x.csv'}: KeyError: 'surprise\\x1b[2J'"
    trace = re.fullmatch(r"This is a bug: `spectail doctor` and the trace in (\S+) help us\.", second)[1]
    with open(trace) as file:
        assert "Traceback" in file.read()


def fail(monkeypatch, error):
    """Let `spectail train` raise what ``error`` raises or returns."""

    def run(words):
        raise error()

    monkeypatch.setattr(command_line, "import_module", lambda *name: type("Large", (), {"run": staticmethod(run)}))
    return main(["train"])


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (lambda: MemoryError("16 GiB"), " (16 GiB)"),
        (lambda: torch.empty(1 << 50), ""),  # raises torch's own
        (lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), ""),
        (lambda: OSError(errno.ENOMEM, "Cannot allocate memory"), ""),
    ],
)
def test_too_little_memory_is_no_fault_of_ours(monkeypatch, capsys, error, amount):
    assert fail(monkeypatch, error) == 1
    said = capsys.readouterr().err
    assert f"not enough memory for this{amount}. " in said
    assert "smaller --batch-size" in said


def test_a_library_that_cannot_be_loaded_is_named(monkeypatch, capsys):
    missing = lambda: ImportError("failed to map", name="agg", path="/x/agg.so")  # noqa: E731
    assert fail(monkeypatch, missing) == 1
    assert "a library could not be loaded (failed to map)" in capsys.readouterr().err
    assert fail(monkeypatch, lambda: ImportError("cannot import name", path="/x/spectail/car.py")) == 70


@pytest.mark.parametrize("raised", [RuntimeError, MemoryError])
def test_too_little_memory_is_not_blamed_on_a_file(monkeypatch, tmp_path, raised):
    """Whoever reads that a checkpoint is of another run deletes it."""

    def load(*words, **options):
        torch.empty(1 << 50) if raised is RuntimeError else bytearray(1 << 62)

    monkeypatch.setattr(torch, "load", load)
    (tmp_path / "state.pt").write_bytes(b"x")
    with pytest.raises(raised):
        checkpoint.load(tmp_path, 0)
    with pytest.raises(raised):
        read_weights(tmp_path / "state.pt")


def test_names_are_shown_and_not_obeyed():
    assert visible("a\x1b]0;x\x07\u202eb\x9b") == "a\\x1b]0;x\\x07\\u202eb\\x9b"
    assert visible("ümläut 猫 👩‍🚀\n") == "ümläut 猫 👩‍🚀\n"
    for live in ("=1", "+1-1|cmd", "-2+3", "@SUM(1)", "\t=1", " =1", "\uff1d1"):
        assert str(cell(live)).startswith("'")
    for harmless in ("cat", "-2", "+2.5e3", 3, -2.5, None, "a=b"):
        assert cell(harmless) == harmless
