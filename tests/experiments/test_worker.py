"""Workers: what is missing is trained once, failures are kept with their reason, the dead are replaced."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import PYTHON
from small_cells import small_runs, way

from spectail._utils.errors import MissingWeights
from spectail.experiments.record import StoreError
from spectail.experiments.runs import code_version
from spectail.experiments.slurm import run_workers
from spectail.experiments.store import open_store
from spectail.experiments.worker import Lease, Worker
from spectail.training.loop import train

SCRIPT = Path(__file__).with_name("small_cells.py")


@pytest.fixture
def store(tmp_path):
    found = open_store(tmp_path / "store.sqlite")
    yield found
    found.close()


def work(store, folder, runs, **changes):
    said = []
    worker = Worker(store, way(folder, **changes), said.append)
    return worker.work(runs), said, worker


def test_what_is_missing_is_trained_and_nothing_twice(tmp_path, store):
    runs = small_runs()
    tally, said, _ = work(store, tmp_path / "runs", runs[:1])
    assert (tally.done, tally.kept) == (1, 0)
    tally, said, _ = work(store, tmp_path / "runs", runs)
    assert (tally.done, tally.kept) == (1, 1)
    assert len(said) == 1
    records = list(store.records().values())
    assert {record.status for record in records} == {"done"}
    by_method = {record.results["method"]: record for record in records}
    plain = train(runs[0].config(tmp_path / "alone", device="cpu", workers=0))
    assert by_method["ce"].results["per_class"] == plain["per_class"]
    assert by_method["ce"].about["data"] == plain["identity"]
    kept = {path.name for path in Path(by_method["ce"].folder).iterdir()}
    assert kept >= {"results.json", "predictions.npz", "config.yaml"}
    assert not kept & {"checkpoints", "model.safetensors"}


def test_a_run_that_fails_is_kept_with_its_reason_and_the_rest_goes_on(tmp_path, store):
    bad, good = small_runs(("ce",), extra=(("optim.lr", -1.0),)), small_runs(("ce",))
    tally, said, _ = work(store, tmp_path, [*bad, *good])
    assert (tally.done, tally.failed) == (1, 1)
    failed = next(record for record in store.records().values() if record.status == "failed")
    assert failed.error == "--lr must be more than 0; got -1.0."
    assert "failed: ce on glyphs-lt" in said[0]
    again, said, _ = work(store, tmp_path, bad)
    assert said == [f"failed earlier: ce on glyphs-lt IF 4, small-cnn, scratch, seed 0: {failed.error}"]
    assert (again.done, again.failed, store.records()[failed.key].attempts) == (0, 1, 1)
    work(store, tmp_path, bad, retry=True)
    assert store.records()[failed.key].attempts == 2


def test_runs_without_data_are_left_out_with_the_sentence(tmp_path, store):
    from dataclasses import replace

    from spectail.experiments.cells import printed_cell
    from spectail.experiments.scales import sized

    cell = printed_cell(("scratch", "inat2018", None, "vit_small", "CE"))
    run = replace(small_runs(("ce",))[0], cell=cell, sized=sized(cell, "quick"))
    tally, said, worker = work(store, tmp_path, [run, *small_runs(("ce",))])
    assert (tally.done, tally.left) == (1, 1)
    assert "inat2018 is not there" in said[0]
    assert len(worker.missing) == len(worker.identities) == 1
    assert worker.absent


def test_data_that_are_there_but_wrong_are_left_out_with_the_real_reason(tmp_path, store):
    bad = small_runs(("ce",), (0, 1), extra=(("data.num_classes", 1),))
    tally, said, worker = work(store, tmp_path, bad)
    assert (tally.done, tally.failed, tally.left) == (0, 0, 2)
    assert len(said) == 1
    assert said[0].startswith("left out, glyphs-lt cannot be used: ")
    assert "not there" not in said[0]
    assert not worker.absent


class Faulty:
    """A store whose renewals answer as told, one after another, the last for ever; all else is the real one's."""

    def __init__(self, store, answers):
        self.store, self.answers, self.asked = store, list(answers), 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def renew(self, key, worker, *, lease=120.0):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_lease_survives_a_store_that_does_not_answer_for_a_while():
    store = Faulty(None, [StoreError("busy"), OSError("away"), RuntimeError("odd"), True])
    with Lease(store, "key", "me", 2.0) as lease:
        deadline = time.time() + 20
        while store.asked < 5 and not lease.lost.is_set():
            assert time.time() < deadline, "the renewals ended"
            time.sleep(0.02)
        assert not lease.lost.is_set()


@pytest.mark.parametrize("answer", [False, StoreError("away")])
def test_a_lease_is_lost_when_taken_or_never_renewed(answer):
    store, begin = Faulty(None, [answer]), time.monotonic()
    with Lease(store, "key", "me", 0.4) as lease:
        assert lease.lost.wait(20)
    waited = time.monotonic() - begin
    assert store.asked == 1 if answer is False else waited >= 0.4


def test_a_run_that_another_worker_took_over_is_stopped_and_the_next_one_begins(tmp_path, store):
    long, short = small_runs(("ce",), epochs=100_000), small_runs(("ce",))

    class Thief(Faulty):
        """Another worker takes the first run while this one trains it."""

        def renew(self, key, worker, *, lease=120.0):
            if long[0].name == store.records([key])[key].about["name"]:
                store.release(key, worker)
                assert store.claim(key, {"name": long[0].name}, "the other")
            return store.renew(key, worker, lease=lease)

    tally, said, _ = work(Thief(store, []), tmp_path, [*long, *short], lease=2.0, wait=False)
    assert (tally.done, tally.busy, tally.failed) == (1, 1, 0)
    assert "another worker took it over" in said[0]
    records = {record.about["name"]: record for record in store.records().values()}
    assert records[long[0].name].worker == "the other"  # and was not given back
    assert records[short[0].name].status == "done"


def test_a_run_whose_store_is_away_for_a_lease_is_stopped_and_freed(tmp_path, store):
    (long,) = small_runs(("ce",), epochs=100_000)
    tally, said, _ = work(Faulty(store, [StoreError("away")]), tmp_path, [long], lease=1.0, wait=False)
    assert (tally.done, tally.busy, tally.failed) == (0, 1, 0)
    assert "the store did not answer for 1 s" in said[0]
    (record,) = store.records().values()
    assert record.status == "waiting"


def test_workers_at_once_train_each_run_once(tmp_path, store):
    command = [PYTHON, str(SCRIPT), str(tmp_path / "store.sqlite"), str(tmp_path / "runs"), "1", "60"]
    before = signal.getsignal(signal.SIGTERM)
    assert run_workers(command, 2, threads=1) == ([0, 0], None)
    assert signal.getsignal(signal.SIGTERM) is before
    records = store.records().values()
    assert [(record.status, record.attempts) for record in records] == [("done", 1)] * 4


def test_a_run_of_two_processes_gives_the_same_result(tmp_path, store, monkeypatch):
    """With layer norm, for batch norm would see half batches. Sums in another order round differently."""
    run = small_runs(("car",), extra=(("model.model", "small-vit"),))[0]
    monkeypatch.setattr(sys, "executable", PYTHON)
    work(store, tmp_path / "two", [run], processes=2)
    (record,) = store.records().values()
    assert record.status == "done", record.error
    alone = train(run.config(tmp_path / "alone", device="cpu", workers=0))
    assert record.results["nll"] == pytest.approx(alone["nll"], rel=1e-3)


@pytest.mark.parametrize("wait", [True, False])
def test_the_run_of_a_dead_worker_is_waited_for(tmp_path, store, wait):
    runs = small_runs(("ce", "car"))
    data = Worker(store, way(tmp_path), print).identity(runs[0])
    key = runs[0].key(data, code_version())
    assert store.claim(key, runs[0].about(data, code_version()), "dead", lease=6.0)
    tally, said, _ = work(store, tmp_path, runs, wait=wait)
    assert (tally.done, tally.busy) == ((2, 0) if wait else (1, 1))
    assert ("waiting for 1 run of other workers" in said) == wait
    assert store.records([key])[key].attempts == (2 if wait else 1)


def test_weights_that_cannot_be_fetched_are_no_failure_of_a_cell(tmp_path, store, monkeypatch):
    tried = []

    def offline(config, **_):
        tried.append(config.seed)
        raise MissingWeights(
            "the weights of small-cnn could not be fetched (no route). Give them as a file with --init."
        )

    monkeypatch.setattr("spectail.experiments.worker.train", offline)
    tally, said, _ = work(store, tmp_path, small_runs(("ce",), (0, 1, 2)))
    assert (tally.left, tally.failed, tried) == (3, 0, [0])
    assert said == [
        "left out, all runs of small-cnn: the weights of small-cnn could not be fetched (no route). "
        "Give them as a file with --init."
    ]
    assert [record.status for record in store.records().values()] == ["waiting"]


def start(tmp_path, epochs, lease):
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [PYTHON, str(SCRIPT), str(tmp_path / "store.sqlite"), str(tmp_path / "runs"), str(epochs), str(lease)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_two_workers_share_the_runs_and_a_killed_ones_run_is_taken_over(tmp_path, store):
    epochs = 8
    killed, other = start(tmp_path, epochs, 3), start(tmp_path, epochs, 3)
    pid = int(killed.stdout.readline().split()[1])
    deadline = time.time() + 120
    while not (mine := [folder for record in store.records().values() if f"-{pid}-" in (record.worker or "")
                        and record.status == "running"
                        for folder in (tmp_path / "runs").glob(f"*{record.key}/checkpoints/*")]):  # fmt: skip
        assert time.time() < deadline, "no checkpoint came"
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    killed.communicate()
    lost = next(record for record in store.records().values() if record.key in str(mine[0]))
    text = other.communicate(timeout=150)[0]  # the living one waits for the lease of the dead one and goes on
    assert other.returncode == 0, text
    records = store.records()
    assert len(records) == 4
    assert {record.status for record in records.values()} == {"done"}
    assert sum(record.attempts for record in records.values()) == 5  # each once, the killed one's twice
    assert records[lost.key].attempts == 2
    extra = (("checkpoint_every", 1),)
    same = next(run for run in small_runs(("ce", "car"), (0, 1), epochs, extra)
                if run.name == lost.about["name"])  # fmt: skip
    alone = train(same.config(tmp_path / "alone", device="cpu", workers=0))
    assert json.dumps(records[lost.key].results["per_class"]) == json.dumps(alone["per_class"])
    assert records[lost.key].results["nll"] == alone["nll"]
