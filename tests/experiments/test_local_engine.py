"""Runs as processes: same results, shares of cores and GPUs, deaths, signals, and no orphans."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest
import torch
from forked import PYTHON
from small_cells import drive, small_runs, small_tasks

from spectail.experiments import local
from spectail.experiments.engines import EngineOptions
from spectail.experiments.index import Index
from spectail.experiments.local import LocalEngine
from spectail.experiments.task import carry_out
from spectail.training.loop import train

SLICE = ["--dataset", "glyphs-lt", "--imbalance", "100", "--method", "ce", "car", "--model", "test_vit"]


@pytest.fixture
def index(tmp_path):
    with Index(tmp_path / "index.sqlite", write=True) as found:
        yield found


@pytest.fixture
def importable(monkeypatch):
    """Processes find the methods of this folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def engine(**options):
    return LocalEngine(EngineOptions(**options), "cpu")


def test_two_at_once_give_the_results_of_one_alone(tmp_path, index):
    tasks = small_tasks(tmp_path, ("ce", "car"), (0, 1), keep="all")
    driver, _ = drive(index, tasks, engine(jobs=2, threads=torch.get_num_threads()))
    assert (driver.tally.done, driver.tally.failures) == (4, {})
    for run, task in zip(small_runs(("ce", "car"), (0, 1)), tasks, strict=True):
        alone = tmp_path / "alone" / task.name
        train(run.config(alone, device="cpu", workers=0))
        folder = Path(driver.outcomes[task.name].folder)
        for name in ("predictions.npz", "model.safetensors"):
            assert (folder / name).read_bytes() == (alone / name).read_bytes()


def test_loaders_of_a_run_start_as_those_of_one_alone(tmp_path, index, importable):
    """The way that runs themselves are started would import everything again for each of them."""
    driver, _ = drive(index, small_tasks(tmp_path, ("small_cells:SaysHowLoadersStart",)), engine())
    [(_, reason)] = driver.tally.failures.values()
    assert reason == multiprocessing.get_start_method()


def test_a_process_that_is_killed_is_followed_by_one_that_goes_on(tmp_path, index, importable, monkeypatch):
    """One that dies as often as it may be tried is a failure."""
    monkeypatch.chdir(tmp_path)
    Path("die-0").touch()
    extra = (("checkpoint_every", 1),)
    tasks = small_tasks(tmp_path, ("small_cells:Dies", "ce"), epochs=2, extra=extra, keep="all")
    driver, said = drive(index, tasks, engine(jobs=2, threads=1))
    assert driver.tally.done == 2
    assert any("trying again: its process ended by signal 9, often for lack of memory" in line for line in said)
    results = [driver.outcomes[task.name].results for task in tasks]
    assert results[0]["nll"] == results[1]["nll"]  # the method is cross entropy
    Path("die-0").touch()
    Path("die-1").touch()
    always = small_tasks(tmp_path / "always", ("small_cells:Dies",), (1,), epochs=2, extra=extra)
    driver, said = drive(index, always, engine(threads=1), retries=1)
    assert "often for lack of memory (after 2 attempts)" in driver.tally.failures[always[0].name][1]


def test_a_run_of_two_processes_gives_the_same_result(tmp_path, monkeypatch):
    """With layer norm, for batch norm would see half batches. Sums in another order round differently."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    extra = (("model.model", "small-vit"),)
    (task,) = small_tasks(tmp_path / "two", ("car",), extra=extra, processes=2)
    outcome = carry_out(task)
    assert outcome.status == "done", outcome.error
    alone = train(small_runs(("car",), extra=extra)[0].config(tmp_path / "alone", device="cpu", workers=0))
    assert outcome.results["nll"] == pytest.approx(alone["nll"], rel=1e-3)
    (bad,) = small_tasks(tmp_path / "two", ("ce",), extra=(("optim.lr", -1.0),), processes=2)
    assert carry_out(bad).error == "--lr must be more than 0; got -1.0."


def test_a_run_one_of_whose_processes_is_killed_died(tmp_path, monkeypatch):
    """What the other process says then, that its partner is gone, is no reason."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    Path("die-0").touch()
    (task,) = small_tasks(tmp_path / "two", ("small_cells:Dies",), epochs=3, processes=2)
    outcome = carry_out(task)
    assert (outcome.status, outcome.error) == ("died", "one of its processes ended by signal 9")


def test_cores_and_gpus_are_shared_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert (engine().jobs, engine().threads) == (1, 0)
    assert (engine(jobs=2).threads, engine(jobs=2, processes=2).threads, engine(jobs=16).threads) == (4, 2, 1)
    assert (engine(jobs="auto").jobs, engine(jobs="auto", threads=3).jobs, engine(jobs="auto", processes=2).jobs) == (
        8, 2, 4)  # fmt: skip
    monkeypatch.setattr(local, "has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = LocalEngine(EngineOptions(jobs="auto"), "auto")
    assert (found.jobs, found.gpus) == (4, ["0", "1", "2", "3"])
    found = LocalEngine(EngineOptions(jobs="auto", processes=2), "cuda")
    assert (found.jobs, found.gpus) == (2, ["0,1", "2,3"])
    assert LocalEngine(EngineOptions(jobs=6), "cuda").gpus == ["0", "1", "2", "3", "0", "1"]
    assert LocalEngine(EngineOptions(jobs=2), "cpu").gpus == ["", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    assert LocalEngine(EngineOptions(jobs=2), "auto").gpus == ["5", "GPU-7"]
    with pytest.raises(ValueError, match="--processes 3 needs one GPU per process, and there are 2"):
        LocalEngine(EngineOptions(processes=3), "auto")


def test_nothing_to_do_starts_nothing():
    assert list(engine(jobs=2).carry_out(deque(), lambda task: None)) == []


def start(folder, epochs, *more):
    words = [PYTHON, "-m", "spectail", "experiment", "run", "combinations", *SLICE, "--epochs", str(epochs), "--device",
             "cpu", "--folder", str(folder / "runs"), "--store", str(folder / "s.sqlite"), "--jobs", "2",
             "--threads", "1", *more]  # fmt: skip
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def trained(folder, parent):
    """Processes of both runs, once these have begun to train."""
    deadline = time.time() + 120
    while len(list((folder / "runs").glob("*/config.yaml"))) < 2:
        assert time.time() < deadline, "the runs did not begin"
        assert parent.poll() is None, parent.communicate()[0]
        time.sleep(0.1)
    return descendants(folder)


def descendants(folder):
    """Processes that hold a file or write below a folder: those of its runs, whoever their parent is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{folder}\0" in (process / "environ").read_text(errors="replace"):
                found.append(int(process.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_driver_leaves_no_process_behind_and_nothing_is_trained_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("MARK_OF_THIS_TEST", str(tmp_path))
    parent = start(tmp_path, 500)
    assert len(trained(tmp_path, parent)) >= 3
    with Index(tmp_path / "s.sqlite") as index:
        pid = int(index.driver().split()[1])
    os.kill(pid, signal.SIGKILL)
    parent.communicate(timeout=20)
    deadline = time.time() + 10
    while left := descendants(tmp_path):
        assert time.time() < deadline, f"orphans: {left}"
        time.sleep(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_signal_stops_the_runs_which_save_themselves_and_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MARK_OF_THIS_TEST", str(tmp_path))
    parent = start(tmp_path, 500)
    trained(tmp_path, parent)
    parent.send_signal(signal.SIGTERM)
    out, _ = parent.communicate(timeout=60)
    assert parent.returncode == 143, out
    assert "stopped; run the same command to continue" in " ".join(out.split())
    assert descendants(tmp_path) == []
    with Index(tmp_path / "s.sqlite") as index:
        assert index.records() == []
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / "runs").glob("*/checkpoints/step-*")]
    assert len(steps) == 2  # saved
    lines = [json.loads(line) for path in (tmp_path / "runs").glob("*/metrics.jsonl")
             for line in path.read_text().splitlines()]  # fmt: skip
    assert max(steps) >= max((line["step"] for line in lines if "step" in line), default=0)
