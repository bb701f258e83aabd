"""Errors keep their kind on the way from one process to another."""

import pytest

from spectail._utils import errors
from spectail.cli.main import main


@pytest.mark.parametrize("kind", [errors.MissingData, errors.MissingWeights, ValueError])
def test_an_error_is_handed_over_with_its_kind_and_its_words(tmp_path, monkeypatch, kind):
    path = tmp_path / "error.json"
    monkeypatch.setenv(errors.FILE, str(path))
    errors.hand_over(kind("what is wrong: ü"))
    errors.hand_over(RuntimeError("what another rank says later"))
    error = errors.handed_over(path)
    assert (type(error), str(error)) == (kind, "what is wrong: ü")


def test_nothing_is_written_unasked_and_nothing_is_read_from_a_process_that_said_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv(errors.FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    errors.hand_over(ValueError("nobody asked"))
    assert list(tmp_path.iterdir()) == []
    assert errors.handed_over(tmp_path / "error.json") is None
    (tmp_path / "error.json").write_text('{"kind": "Missi')  # ended while it wrote
    assert errors.handed_over(tmp_path / "error.json") is None


def test_a_command_hands_over_the_error_that_it_ends_with(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(errors.FILE, str(tmp_path / "error.json"))
    assert main(["prepare", f"folder:{tmp_path / 'nowhere'}"]) == 1
    error = errors.handed_over(tmp_path / "error.json")
    assert isinstance(error, errors.MissingData)
    assert capsys.readouterr().err == f"spectail prepare: {error}\n"
