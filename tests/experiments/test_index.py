"""The index of runs: one writer, any readers, what older versions wrote, and sentences for what is no index."""

import os
import random
import re
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from forked import PYTHON

from spectail.experiments.index import FORMAT, Index, Record, StoreError

ABOUT = {"name": "n", "code": "c", "data": "d"}
HOLD = "import sys, time; from spectail.experiments.index import Index; index = Index(sys.argv[1], write=True); "
FORMAT_1 = """
CREATE TABLE spectail_store (version INTEGER NOT NULL);
INSERT INTO spectail_store VALUES (1);
CREATE TABLE cells (key TEXT PRIMARY KEY, about TEXT NOT NULL, status TEXT NOT NULL, worker TEXT,
  attempts INTEGER NOT NULL, deaths INTEGER NOT NULL, lease REAL, started REAL, finished REAL, results TEXT,
  folder TEXT, error TEXT);
INSERT INTO cells VALUES ('a', '{"name": "x"}', 'done', 'w', 2, 1, 5.0, 1.5, 2.5, '{"overall": 41.5}', 'runs/a', NULL);
INSERT INTO cells VALUES ('b', '{"name": "y"}', 'failed', 'w', 1, 0, 5.0, 1.0, 2.0, NULL, NULL, 'why');
INSERT INTO cells VALUES ('c', '{"name": "z"}', 'running', 'w', 1, 0, 5.0, 1.0, NULL, NULL, NULL, NULL);
INSERT INTO cells VALUES ('d', '{"name": "z"}', 'waiting', NULL, 1, 0, 5.0, 1.0, NULL, NULL, NULL, NULL);
"""


def test_what_is_put_is_there_also_for_a_later_reader(tmp_path):
    """Random changes, compared with a dictionary."""
    random.seed(0)
    expected = {}
    for _ in range(4):
        with Index(tmp_path / "deep" / "i.sqlite", write=True) as index:
            for _ in range(40):
                key = random.choice("abcdefg")
                if random.random() < 0.2:
                    index.forget([key])
                    expected.pop(key, None)
                    continue
                other = random.choice("abcdefg")
                record = Record(key, ABOUT | {"n": random.random()}, random.choice(["done", "failed"]), 3, 1.0, 2.5,
                                {"overall": random.random()}, "runs/ä", random.choice([None, "why"]))  # fmt: skip
                index.put(record, replacing=other)
                expected.pop(other, None)
                expected[key] = record
            assert {record.key: record for record in index.records()} == expected
        with Index(tmp_path / "deep" / "i.sqlite") as index:
            assert {record.key: record for record in index.records()} == expected


def test_one_driver_at_a_time_and_a_dead_one_is_none(tmp_path):
    path = tmp_path / "i.sqlite"
    words = "index.put(__import__('spectail.experiments.index').experiments.index.Record('a', {}, 'running')); "
    command = [PYTHON, "-c", HOLD + words + "print('has it', flush=True); time.sleep(60)", str(path)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "has it\n"
    with pytest.raises(StoreError, match=r"already has a driver \(process \d+ on .+, since \d{4}-\d\d-\d\d ") as error:
        Index(path, write=True)
    with Index(path) as reader:
        assert [record.status for record in reader.records()] == ["running"]
        assert reader.driver() in str(error.value)
    os.kill(int(re.search(r"process (\d+)", str(error.value))[1]), signal.SIGKILL)
    other.communicate(timeout=20)
    with Index(path) as reader:
        assert reader.driver() is None
    with Index(path, write=True) as index:
        assert index.records() == []  # nobody trains it any more
        with pytest.raises(StoreError, match=f"process {os.getpid()}"):
            Index(path, write=True)


def test_a_store_of_the_first_format_is_converted_once(tmp_path):
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(FORMAT_1)
    connection.close()
    expected = [Record("a", {"name": "x"}, "done", 2, 1.5, 2.5, {"overall": 41.5}, "runs/a"),
                Record("b", {"name": "y"}, "failed", 1, 1.0, 2.0, None, None, "why")]  # fmt: skip
    with Index(path) as reader:  # which cannot convert it
        known = [record for record in reader.records() if record.status != "running"]
        assert known == expected
    for _ in range(2):
        with Index(path, write=True) as index:
            assert index.records() == expected
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version FROM spectail_store").fetchall() == [(FORMAT,)]
    connection.close()


@pytest.mark.parametrize("address", ["journal:/shared/results.log", "postgresql://a:secret@host/b", "sqlite:///x"])
def test_stores_that_several_machines_wrote_are_refused_with_the_way_out(address):
    for write in (True, False):
        with pytest.raises(StoreError, match="spectail experiment table all --code any --format csv") as error:
            Index(address, write=write)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("content", [b"not a store\n" * 200, b"\0" * 4096, b"SQLite format 3\0" + b"x" * 2000])
def test_a_file_that_is_no_store_is_left_alone(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    for write in (True, False):
        with pytest.raises(StoreError, match=re.escape(f"the result store {path} ")):
            Index(path, write=write)
    assert path.read_bytes() == content


def test_other_databases_folders_and_newer_formats(tmp_path):
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE things (a)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="not a result store"):
        Index(other, write=True)
    with pytest.raises(StoreError, match="is a folder; give a file in it"):
        Index(tmp_path, write=True)
    newer = tmp_path / "newer.sqlite"
    Index(newer, write=True).close()
    connection = sqlite3.connect(newer)
    connection.execute("UPDATE spectail_store SET version = 99")
    connection.commit()
    connection.close()
    for write in (True, False):
        with pytest.raises(StoreError, match="newer version of spectail"):
            Index(newer, write=write)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        Index(tmp_path / "file" / "i.sqlite", write=True)


def test_reading_makes_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no result store at"):
        Index(tmp_path / "none.sqlite")
    (tmp_path / "empty").touch()
    with pytest.raises(FileNotFoundError, match="the file is empty"):
        Index(tmp_path / "empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_damaged_file_is_said_and_runs_are_not_lost(tmp_path):
    path = tmp_path / "i.sqlite"
    with Index(path, write=True) as index:
        for number in range(200):
            index.put(Record(f"{number}", ABOUT | {"long": "x" * 500}, "done"))
    content = bytearray(path.read_bytes())
    content[4096:-4096] = os.urandom(len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="finished runs are found in their folders"), Index(path) as index:
        index.records()


def test_what_is_no_json_changes_nothing_and_odd_names_are_kept(tmp_path):
    with Index(tmp_path / "i.sqlite", write=True) as index:
        with pytest.raises(StoreError, match="must be JSON"):
            index.put(Record("a", {"path": Path()}, "done"))
        index.put(Record("a", ABOUT, "done", folder="runs/\udce9"))
        assert [record.folder for record in index.records()] == ["runs/\\udce9"]
