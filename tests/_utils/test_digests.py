"""Digests beside files: what has changed is said, what never had one is read."""

import json

import pytest

from spectail._utils.digests import Damaged, read_digests, verify, write_digests
from spectail._utils.files import file_digest


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("whole")
    write_digests(tmp_path, {"a.txt": file_digest(path)}, run="7")
    return path


def test_a_file_as_it_was_written(file):
    verify(file)
    assert read_digests(file.parent)["run"] == "7"
    verify(file.with_name("unlisted.txt"))


@pytest.mark.parametrize("text", ["wholE", "", "whole\n"])
def test_a_change_is_named_with_what_to_do(file, text):
    file.write_text(text)
    with pytest.raises(Damaged, match=r"a\.txt is not as it was written.*Put a copy.*delete digests\.json"):
        verify(file)


@pytest.mark.parametrize("text", ["", "null", "[1]", "{}", '{"files": {}}', '{"files": 3}', "[" * 10**5, "\x00"])
def test_damaged_digests(file, text):
    file.with_name("digests.json").write_text(text)
    with pytest.raises(Damaged, match=r"digests\.json is damaged"):
        verify(file)


def test_folders_of_earlier_versions(file):
    file.with_name("digests.json").write_text(json.dumps({"a.txt": file_digest(file)}))  # as checkpoints had them
    verify(file)
    file.write_text("other")
    with pytest.raises(Damaged):
        verify(file)
    file.with_name("digests.json").unlink()
    verify(file)
    assert read_digests(file.parent) is None
