"""Result stores, all kinds alike: who gets a cell, what is kept, what happens when workers die or race."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import pytest
from forked import PYTHON
from store_oracle import KINDS, Clock, Oracle, address, quick_folder, summary

from spectail.experiments import record, shared_store, sqlite_store
from spectail.experiments.store import SqliteStore, StoreError, open_store

WORKER = Path(__file__).with_name("store_worker.py")


@pytest.fixture(params=KINDS)
def where(request):
    with quick_folder() as folder:
        yield address(request.param, folder)


@pytest.fixture
def opened(where):
    one = open_store(where)
    yield one
    one.close()


def start(*words):
    return subprocess.Popen([PYTHON, str(WORKER), *map(str, words)], stdout=subprocess.PIPE, text=True)


def test_random_histories_are_those_of_the_oracle(where, monkeypatch):
    """Four workers, three cells, leases that run out: every answer and every record as in plain dictionaries."""
    clock = Clock()
    monkeypatch.setattr(sqlite_store, "time", clock)
    if not where.endswith(".db") or "://" in where:
        monkeypatch.setattr(shared_store, "time", clock)
    draw = random.Random(3)
    steps = 120 if "sqlite:" in where else 500
    oracle, stores = Oracle(clock), [open_store(where) for _ in range(2)]
    answers = []
    for step in range(steps):
        one, key, worker = draw.choice(stores), draw.choice("abc"), draw.choice(["w1", "w2", "w3", "w4"])
        name = draw.choices(["claim", "renew", "finish", "fail", "release", "forget"], [10, 2, 1, 2, 2, 1])[0]
        arguments, options = (key, worker), {}
        if name == "claim":
            arguments, options = (
                (key, {"step": step}, worker),
                {"lease": draw.choice([5, 20]), "retry": draw.random() < 0.3},
            )
        elif name == "renew":
            options = {"lease": draw.choice([5, 20])}
        elif name == "finish":
            arguments = (key, worker, {"step": step}, f"folder {step}")
        elif name == "fail":
            arguments = (key, worker, f"error {step}")
        elif name == "forget":
            arguments = ([key, "never heard of"],)
        answer = getattr(one, name)(*arguments, **options)
        assert answer == getattr(oracle, name)(*arguments, **options), (step, name, arguments, options)
        assert summary(draw.choice(stores).records()) == oracle.summary(), (step, name, arguments, options)
        clock.now += draw.choice([0, 1, 3, 8])
        answers.append((name, bool(answer)))
    assert len(set(answers)) >= 11  # every operation was refused and accepted
    for one in stores:
        one.close()


def test_a_record(opened):
    before = time.time()
    assert opened.claim("k", {"config": {"seed": 1}, "code": "1.0"}, "w")
    (record,) = opened.records().values()
    assert (record.key, record.status, record.worker, record.attempts) == ("k", "running", "w", 1)
    assert before - 1 <= record.started <= time.time()
    assert record.finished is record.results is record.folder is record.error is None
    # about the size of what a run with a thousand classes returns, with signs that are no ASCII
    results = {
        "overall": 41.5,
        "per_class": [{"class": f'é\\"{i}', "accuracy": i / 7} for i in range(1500)],
        "tail": None,
    }
    assert opened.finish("k", "w", results, "runs/k")
    (record,) = opened.records(["k", "unknown"]).values()
    assert record.results == results
    assert record.about == {"config": {"seed": 1}, "code": "1.0"}
    assert (record.status, record.folder, record.worker) == ("done", "runs/k", "w")
    assert before - 1 <= record.started <= record.finished + 0.01 <= time.time() + 1
    assert opened.records([]) == {}


def test_taken_over_by_another_process_object(where, opened):
    """The first worker learns that its cell is gone, and cannot overwrite what the second makes of it."""
    assert opened.claim("k", {}, "slow", lease=0.01)
    time.sleep(0.02)
    assert opened.records()["k"].status == "lost"
    other = open_store(where)
    assert other.claim("k", {}, "quick")
    assert not opened.renew("k", "slow")
    assert not opened.finish("k", "slow", {"overall": 1}, "wrong")
    assert not opened.fail("k", "slow", "wrong")
    assert not opened.release("k", "slow")
    assert other.renew("k", "quick")
    assert other.finish("k", "quick", {"overall": 2}, "right")
    assert not opened.finish("k", "slow", {"overall": 1}, "wrong")
    record = opened.records()["k"]
    assert (record.results, record.folder, record.attempts) == ({"overall": 2}, "right", 2)
    other.close()


def test_a_late_worker_keeps_its_cell_until_somebody_wants_it(opened):
    assert opened.claim("k", {}, "w", lease=0.01)
    time.sleep(0.02)
    assert opened.renew("k", "w", lease=60)
    assert not opened.claim("k", {}, "other")
    assert opened.records()["k"].status == "running"


def test_what_is_no_json_is_said_and_changes_nothing(opened):
    with pytest.raises(StoreError, match="description of cell k must be JSON"):
        opened.claim("k", {"path": Path("x")}, "w")
    assert opened.records() == {}
    assert opened.claim("k", {}, "w")
    with pytest.raises(StoreError, match="results of cell k must be JSON"):
        opened.finish("k", "w", {"set": {1}}, "f")
    with pytest.raises(StoreError, match="lease must be a positive number"):
        opened.renew("k", "w", lease=0)
    assert opened.records()["k"].status == "running"


def test_threads_share_one_store(opened):
    """As a worker does: one thread renews while another works."""
    keys, got, errors = [f"k{i}" for i in range(12)], [], []

    def work(name):
        try:
            for key in keys:
                if opened.claim(key, {}, name):
                    got.append(key)
                    assert opened.renew(key, name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(got) == sorted(keys)


RACES = [("file", 2, 200), ("file", 4, 200), ("journal", 4, 200), ("database", 3, 30)]


@pytest.mark.parametrize(("kind", "workers", "count"), RACES)
def test_processes_never_share_a_key(kind, workers, count):
    """Every key is claimed exactly once; every other one was left behind by a worker that died."""
    with quick_folder() as folder:
        where, go = address(kind, folder), folder / "go"
        first = open_store(where)
        for number in range(0, count, 2):
            assert first.claim(f"key{number}", {}, "dead", lease=0.001)
        started = [start("claim", where, f"w{i}", count, go) for i in range(workers)]
        for process in started:
            assert process.stdout.readline() == "ready\n"
        go.touch()
        claimed = [json.loads(process.communicate()[0]) for process in started]
        assert [process.returncode for process in started] == [0] * workers
        everything = [key for keys in claimed for key in keys]
        assert len(everything) == len(set(everything)) == count
        records = first.records()
        assert {key: record.results["by"] for key, record in records.items()} == {
            key: f"w{i}" for i, keys in enumerate(claimed) for key in keys
        }
        assert all(records[f"key{number}"].attempts == 2 - number % 2 for number in range(count))
        first.close()


def test_a_killed_worker_is_followed_after_its_lease(where, opened):
    lease = 4.0
    process = start("hold", where, "victim", "k", lease)
    assert process.stdout.readline() == "held\n"
    time.sleep(lease + 0.5)
    assert not opened.claim("k", {}, "heir")  # it renews, so it lives longer than a lease
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    killed = time.time()
    assert opened.records()["k"].status == "running"
    assert not opened.claim("k", {}, "heir")
    while not opened.claim("k", {}, "heir"):
        assert time.time() < killed + lease + 20
        time.sleep(0.05)
    assert time.time() - killed > lease / 4  # not before
    record = opened.records()["k"]
    assert (record.worker, record.attempts, record.status) == ("heir", 2, "running")


def test_reading_while_another_process_writes(where, opened):
    count = 8 if "sqlite:" in where else 15
    process = start("write", where, "w", count)
    assert process.stdout.readline() == "ready\n"
    seen = []
    while process.poll() is None or not seen or seen[-1] < count:
        records = opened.records()
        for key, found in records.items():
            number = int(key[3:])
            assert found.about == {"number": number}
            if found.status == "done":
                assert found.results == {"number": number, "per_class": [number + 0.5] * 5000}
                assert found.folder == f"folder{number}"
            else:
                assert (found.status, found.results) == ("running", None)
        seen.append(sum(found.status == "done" for found in records.values()))
        assert process.poll() in {None, 0}
        time.sleep(0.01)
    process.communicate()
    assert seen == sorted(seen)
    assert seen[-1] == count


def test_nothing_is_created_unless_asked(where):
    with pytest.raises(FileNotFoundError, match=r"no result store at .*; check the address, or run an experiment"):
        open_store(where, create=False)
    path = Path(where.removeprefix("sqlite:///").removeprefix("journal:"))
    assert list(path.parent.iterdir()) == []
    deep = where.replace(path.name, f"new/deep/{path.name}")
    open_store(deep).close()  # folders are made
    again = open_store(deep, create=False)
    assert again.records() == {}
    again.close()


def test_a_newer_store_is_left_alone(tmp_path):
    path = tmp_path / "results.db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE spectail_store SET version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"results.db was written by a newer version .*format 99.*; upgrade spectail"):
        open_store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a store\n" * 200, b"\0" * 4096, b"x"])
def test_a_file_that_is_no_store(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"notes.txt is not a result store .*; choose another file"):
        open_store(path)
    assert path.read_bytes() == content


def test_other_databases_and_folders(tmp_path):
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(StoreError, match="is an SQLite file but not a result store"):
        open_store(other)
    assert other.read_bytes() == before
    with pytest.raises(StoreError, match="is a folder; give a file in it"):
        open_store(tmp_path)
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(FileNotFoundError, match="no result store"):
        open_store(empty, create=False)


def test_a_damaged_file(tmp_path):
    path = tmp_path / "results.db"
    one = SqliteStore(path)
    for number in range(60):
        assert one.claim(f"k{number}", {"text": "x" * 2000}, "w")
    one.close()
    content = bytearray(path.read_bytes())
    content[8192:-4096] = os.urandom(len(content) - 12288)
    path.write_bytes(content)
    one = SqliteStore(path)
    with pytest.raises(StoreError, match=r"results.db is damaged .*; move it away and run again"):
        one.records()
    one.close()


def test_a_locked_file_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "PATIENCE", 0.05)
    one = SqliteStore(tmp_path / "results.db")
    holder = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="was locked by another process"):
        one.claim("k", {}, "w")
    assert one.records() == {}  # reading needs no lock
    holder.execute("ROLLBACK")
    assert one.claim("k", {}, "w")
    holder.close()
    one.close()


def test_a_store_of_somebody_else_can_be_read(tmp_path, monkeypatch):
    one = SqliteStore(tmp_path / "results.db")
    assert one.claim("k", {}, "w")
    one.close()
    monkeypatch.setattr(sqlite_store.os, "access", lambda *_: False)
    reader = SqliteStore(tmp_path / "results.db", create=False)
    assert reader.records()["k"].worker == "w"
    with pytest.raises(StoreError, match="cannot be opened for writing"):
        reader.claim("new", {}, "w")
    reader.close()
    assert [path.name for path in tmp_path.iterdir()] == ["results.db"]


def test_network_folders_get_no_log_beside_the_file(tmp_path, monkeypatch):
    def mode(path):
        SqliteStore(path).close()
        connection = sqlite3.connect(path)
        found = connection.execute("PRAGMA journal_mode").fetchone()[0]
        connection.close()
        return found

    assert mode(tmp_path / "local.db") == "wal"
    mounts = f"/dev/a / ext4 rw 0 0\nhost:/x {tmp_path} nfs4 rw 0 0\n"
    monkeypatch.setattr(record.Path, "read_text", lambda path: mounts if str(path) == "/proc/mounts" else None)
    assert record.on_network(tmp_path / "deep")
    assert not record.on_network(tmp_path.parent)
    assert mode(tmp_path / "far.db") == "delete"


def test_names_that_are_not_utf8(tmp_path):
    one = SqliteStore(tmp_path / "a ?#%ü.db")
    assert one.claim("k", {}, "w")
    assert one.fail("k", "w", "cannot read \udce9.png")
    assert one.records()["k"].error == "cannot read \\udce9.png"
    one.close()
    assert (tmp_path / "a ?#%ü.db").is_file()
