"""What is particular to stores on Optuna: races made to happen, sizes, addresses, damaged files."""

import builtins
import json
import time

import pytest
from store_oracle import address, quick_folder

from spectail.experiments import record, shared_store
from spectail.experiments.shared_store import SharedStore
from spectail.experiments.store import StoreError, open_store


@pytest.fixture(params=["journal", "database"])
def pair(request):
    """Two workers' views of one store."""
    with quick_folder() as folder:
        where = address(request.param, folder)
        stores = SharedStore(where), SharedStore(where)
        yield stores
        for one in stores:
            one.close()


class Crash(Exception):
    pass


def in_between(one, monkeypatch, act):
    """Something happens after a store has looked at a cell and before it acts on what it saw."""
    look = one._trials
    looks = []

    def late(key):
        found = look(key)
        looks.append(key)
        if len(looks) == 1:
            act()
        return found

    monkeypatch.setattr(one, "_trials", late)


@pytest.mark.parametrize("end", ["claimed", "finished", "failed"])
def test_two_workers_that_saw_the_cell_free(pair, monkeypatch, end):
    first, second = pair

    def act():
        assert first.claim("k", {}, "first")
        if end == "finished":
            assert first.finish("k", "first", {"x": 1}, "f")
        if end == "failed":
            assert first.fail("k", "first", "broken")

    in_between(second, monkeypatch, act)
    assert not second.claim("k", {}, "second")
    record = first.records()["k"]
    assert (record.worker, record.attempts) == ("first", 1)
    assert record.status == {"claimed": "running", "finished": "done", "failed": "failed"}[end]
    assert not second.renew("k", "second")
    if end == "claimed":
        assert first.finish("k", "first", {"x": 1}, "f")


def test_the_lost_cell_comes_back_while_it_is_taken_over(pair, monkeypatch):
    """Of a worker that finishes late and one that takes over, whoever ends the attempt first decides."""
    first, second = pair
    assert first.claim("k", {}, "first", lease=0.01)
    time.sleep(0.02)
    in_between(second, monkeypatch, lambda: first.finish("k", "first", {"x": 1}, "f"))
    assert not second.claim("k", {}, "second")
    assert first.records()["k"].results == {"x": 1}


def test_two_heirs(pair, monkeypatch):
    first, second = pair
    assert first.claim("k", {}, "dead", lease=0.01)
    time.sleep(0.02)
    in_between(second, monkeypatch, lambda: first.claim("k", {}, "first"))
    assert not second.claim("k", {}, "second")
    assert (first.records()["k"].worker, first.records()["k"].attempts) == ("first", 2)


def test_a_loser_that_died_blocks_nobody(pair, monkeypatch):
    """It created its attempt after another worker's and was gone before it could take it back."""
    first, second = pair
    in_between(second, monkeypatch, lambda: first.claim("k", {}, "first"))

    def crash(*_):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(second, "_end", crash)
        with pytest.raises(Crash):
            second.claim("k", {}, "second", lease=0.01)
    time.sleep(0.02)
    assert first.records()["k"].worker == "first"
    assert first.renew("k", "first")
    assert first.fail("k", "first", "broken")
    assert first.records()["k"].status == "failed"
    assert not first.claim("k", {}, "third")  # the stray is no leave to run a failed cell again
    assert first.claim("k", {}, "third", retry=True)
    assert not second.renew("k", "second")
    assert first.finish("k", "third", {"x": 3}, "f")


def test_forgetting_spares_who_came_in_between(pair, monkeypatch):
    first, second = pair
    assert first.claim("k", {}, "first")
    assert first.release("k", "first")
    in_between(second, monkeypatch, lambda: first.claim("k", {}, "first"))
    second.forget(["k"])
    assert first.records()["k"].status == "running"
    assert not second.claim("k", {}, "second")
    assert first.finish("k", "first", {"x": 1}, "f")
    assert second.records()["k"].results == {"x": 1}


def test_long_results_fit_the_columns_of_any_database(pair):
    one, other = pair
    results = {"per_class": ['"\\é' * 5] * 6000}  # quoting doubles it
    assert one.claim("k", {"long": "ü" * 40000}, "w")
    assert one.finish("k", "w", results, "f")
    assert other.records()["k"].results == results
    (trial,) = one._storage.get_all_trials(one._study)
    sizes = [len(json.dumps(value)) for value in trial.user_attrs.values()]
    assert max(sizes) < 65535  # MySQL's TEXT
    assert sum(sizes) > 200_000


def test_the_accuracy_is_the_value_optuna_shows(pair):
    one, _ = pair
    for key, overall in {"a": 41.5, "b": float("nan"), "c": None}.items():
        assert one.claim(key, {}, "w")
        assert one.finish(key, "w", {"overall": overall}, "f")
    assert [trial.value for trial in one._storage.get_all_trials(one._study)] == [41.5, None, None]


def test_a_newer_store(pair):
    one, other = pair
    one._storage.set_study_user_attr(one._study, shared_store.VERSION, record.SCHEMA + 1)
    with pytest.raises(StoreError, match=r"written by a newer version of spectail \(format 2"):
        other._find_study(create=True)


def test_a_journal_that_is_none(tmp_path):
    path = tmp_path / "notes.txt"
    for content in ("hello\n", "{}\n" * 3, "\0\1"):
        path.write_text(content)
        with pytest.raises(StoreError, match="notes.txt is not an Optuna journal; choose another file"):
            open_store(f"journal:{path}")
        assert path.read_text() == content


def test_a_broken_line_is_named_and_can_be_deleted(tmp_path):
    where = f"journal:{tmp_path / 'j.log'}"
    one = open_store(where)
    assert one.claim("a", {}, "w")
    with (tmp_path / "j.log").open("a") as file:
        file.write('{"op_code": 4, "wor{"op_code": 4}\n')  # a full disk, and the next line glued to it
    with pytest.raises(
        StoreError, match=r"j.log is damaged \(line \d+ of it is broken\); delete line \d+ and run again"
    ):
        one.claim("b", {}, "w")
    with pytest.raises(StoreError, match="is damaged"):
        open_store(where)
    lines = (tmp_path / "j.log").read_text().splitlines(keepends=True)
    broken = [line for line in lines if "wor{" in line]
    (tmp_path / "j.log").write_text("".join(line for line in lines if line not in broken))
    again = open_store(where)
    assert again.records()["a"].status == "running"
    assert again.claim("c", {}, "w")


def test_databases_that_are_something_else(tmp_path):
    path = tmp_path / "notes.db"
    path.write_text("hello\n" * 500)
    with pytest.raises(StoreError, match="notes.db is not an SQLite file"):
        open_store(f"sqlite:///{path}")
    open_store(tmp_path / "plain.db").close()
    with pytest.raises(StoreError, match="give its path alone, without sqlite:///"):
        open_store(f"sqlite:///{tmp_path / 'plain.db'}")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("journal:", "names no file"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("nonsense://host/name", "cannot be used .*nonsense"),
        ("postgresql://user:SECRET@host:port/name", "address of a shared store starting postgresql://"),
        ("postgresql+nodriver://user:SECRET@host/name", "cannot be used"),
    ],
)
def test_addresses(where, message):
    with pytest.raises(StoreError, match=message) as caught:
        open_store(where)
    assert "SECRET" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_without_optuna(monkeypatch, tmp_path):
    real = builtins.__import__

    def absent(name, *rest):
        if name.split(".")[0] == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'", name="optuna")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(StoreError, match=r"needs the package 'optuna': pip install 'spectail\[experiments\]'"):
        open_store(f"journal:{tmp_path / 'j.log'}")
    assert not (tmp_path / "j.log").exists()
    open_store(tmp_path / "plain.db").close()  # needs nothing
