"""Runs on a real Ray cluster of two nodes: the results of one machine, and everything that can die dies."""

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from experiments.small_cells import drive, small_tasks
from nodes import Cluster, processes

from spectail.cli.main import main
from spectail.experiments.cluster import RayEngine
from spectail.experiments.engines import EngineOptions
from spectail.experiments.index import Index
from spectail.experiments.local import LocalEngine
from spectail.experiments.node import train_on_node

EIGHT = (("small_cells:Slow", "small_cells:Slow+car"), (0, 1, 2, 3))
EXTRA = (("checkpoint_every", 2),)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it puts behind with this signal ignored


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "experiments")
    found = Cluster(tmp_path)
    yield found
    ray.shutdown()
    found.end()


@pytest.fixture
def index(tmp_path):
    with Index(tmp_path / "index.sqlite", write=True) as found:
        yield found


def engine(cluster, said=None, **options):
    say = print if said is None else said.append
    return RayEngine(EngineOptions(engine="ray", address=cluster.address, **options), "cpu", say)


def trained(cluster):
    """Process ids by the number of the node that they trained on."""
    return [[int(path.name.partition("-")[2]) for path in (cluster.folder / f"node{number}").glob("trained-*")]
            for number in range(1, len(cluster.nodes) + 1)]  # fmt: skip


def wait_for(condition, what, seconds=60):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, f"in vain: {what}"
        time.sleep(0.05)


def models(driver, tasks):
    return [(Path(driver.outcomes[task.name].folder) / "model.safetensors").read_bytes() for task in tasks]


def test_two_nodes_and_one_that_dies_give_what_one_machine_gives(cluster, tmp_path, index):
    """Eight runs; those of the node that is killed half way are tried again and go on from their checkpoints."""
    local = small_tasks(tmp_path / "local", *EIGHT, epochs=8, extra=EXTRA, keep="all")
    with Index(tmp_path / "local.sqlite", write=True) as own:
        expected, _ = drive(own, local, LocalEngine(EngineOptions(jobs=2, threads=1), "cpu"))
    cluster.start()
    second = cluster.start()
    tasks = small_tasks(tmp_path / "ray", *EIGHT, epochs=8, extra=EXTRA, keep="all")

    def is_half_way():
        """Three runs are done, and the second node is in the middle of another one."""
        ended = len(list((tmp_path / "ray").glob("*/results.json")))
        steps = [path.read_text() for path in (cluster.folder / "node2").glob("trained-*")]
        return ended >= 3 and any(step and 4 <= int(step) <= 10 for step in steps)

    def kill_half_way():
        wait_for(is_half_way, "half of the plan")
        cluster.kill(second)

    threading.Thread(target=kill_half_way, daemon=True).start()
    driver, said = drive(index, tasks, engine(cluster))
    assert (driver.tally.done, driver.tally.failures) == (8, {}), said
    assert all(trained(cluster))  # on both
    assert models(driver, tasks) == models(expected, local)
    again = [line for line in said if "trying again" in line]
    assert 1 <= len(again) <= 2, said
    assert sum(record.attempts for record in index.records()) == 8 + len(again)
    assert list(tmp_path.glob("ray/.driver-*")) == []
    driver, _ = drive(index, tasks, engine(cluster))
    assert (driver.tally.done, driver.tally.kept) == (0, 8)


def test_failures_deaths_and_a_node_that_joins_late(cluster, tmp_path, index):
    cluster.start()
    (cluster.folder / "node2").mkdir()
    for number in (1, 2):  # whichever node takes the run
        (cluster.folder / f"node{number}" / "die-0").touch()
    (cluster.folder / "together").touch()
    tasks = [
        *small_tasks(tmp_path / "runs", ("ce",), extra=(("optim.lr", -1.0),)),
        *small_tasks(tmp_path / "runs", ("small_cells:Dies",), epochs=2),
        *small_tasks(tmp_path / "runs", ("small_cells:Slow",), (0, 1, 2, 3), epochs=12),
    ]
    threading.Thread(
        target=lambda: (wait_for(lambda: trained(cluster)[0], "a run"), cluster.start()), daemon=True
    ).start()
    driver, said = drive(index, tasks, engine(cluster))
    assert driver.tally.failures == {tasks[0].name: (tasks[0].title, "--lr must be more than 0; got -1.0.")}
    assert driver.tally.done == 5, said
    assert 1 <= sum("trying again" in line for line in said) <= 2  # the process that died, once on each node at most
    assert all(trained(cluster))


def test_a_killed_driver_leaves_nothing_behind_and_its_successor_trains_nothing_twice(cluster, tmp_path):
    cluster.start()
    cluster.start()
    words = ["experiment", "run", "combinations", "--dataset", "glyphs-lt", "--imbalance", "100", "--method", "ce",
             "car", "remix", "focal", "--model", "test_vit", "--epochs", "4", "--device", "cpu",
             "--folder", str(tmp_path / "runs"), "--store",
             str(tmp_path / "s.sqlite"), "--engine", "ray", "--address", cluster.address]  # fmt: skip
    driver = subprocess.Popen([sys.executable, "-m", "spectail", *words], stdout=subprocess.DEVNULL)
    wait_for(lambda: len(list((tmp_path / "runs").glob("*/results.json"))) >= 1, "a finished run", 120)
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/results.json")}
    assert workers(cluster)
    driver.kill()
    driver.wait()
    wait_for(lambda: not workers(cluster), "the end of what the driver had started", 10)
    with Index(tmp_path / "s.sqlite") as reader:
        before = {record.key for record in reader.records() if record.status == "done"}
    assert main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    with Index(tmp_path / "s.sqlite") as reader:
        records = reader.records()
    assert [record.status for record in records] == ["done"] * 4
    assert before <= {record.key for record in records}


def workers(cluster):
    """Processes on the nodes that carry out tasks: those that Ray has named after their function."""
    found = []
    for pid in (pid for node in cluster.nodes for pid in processes(node)):
        with contextlib.suppress(OSError):
            if b"on_node" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_signal_to_the_driver_saves_the_runs(cluster, tmp_path):
    cluster.start()
    words = ["compare", "--methods", "ce", "--epochs", "500", "--model", "test_vit", "--output", str(tmp_path / "all"),
             "--engine", "ray", "--address", cluster.address, "--device", "cpu"]  # fmt: skip
    driver = subprocess.Popen([sys.executable, "-m", "spectail", *words], stdout=subprocess.PIPE, text=True)
    wait_for((tmp_path / "all/ce-seed0/metrics.jsonl").exists, "the first epoch", 120)
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "run the same command to continue" in " ".join(out.split())
    lines = (tmp_path / "all/ce-seed0/metrics.jsonl").read_text().splitlines()
    saved = (tmp_path / "all/ce-seed0/checkpoints").glob("step-*")
    assert max(int(path.name.removeprefix("step-")) for path in saved) > 0
    assert 1 <= len(lines) < 500


@pytest.mark.parametrize("content", ["raise ModuleNotFoundError(name='spectail')", "__version__ = '0.0.1'"])
def test_a_node_that_cannot_take_part_is_named_and_not_used(cluster, tmp_path, index, content):
    """Without the package, or with another version of it (here: one that lacks a module)."""
    (tmp_path / "other" / "spectail").mkdir(parents=True)
    (tmp_path / "other" / "spectail" / "__init__.py").write_text(content)
    said = []
    cluster.start(path=[tmp_path / "other"])
    tasks = small_tasks(tmp_path / "runs", ("ce",), (0, 1))
    begin = time.time()
    with pytest.raises(ValueError, match=r"no node of the cluster can carry out runs; .+ lacks the package spectail"):
        drive(index, tasks, engine(cluster, said))
    assert time.time() - begin < 15
    cluster.start()
    driver, _ = drive(index, tasks, engine(cluster, said))
    assert driver.tally.done == 2
    refused = r"node .+ is not used: it lacks the package spectail.*; install spectail\[train\] there\."
    assert any(re.fullmatch(refused, line) for line in said)


def test_a_folder_that_the_node_does_not_share_comes_back(cluster, tmp_path, index, monkeypatch):
    """An open folder of this process is none of the node's. A run that is tried again begins anew and says so."""
    cluster.start()
    (cluster.folder / "node1" / "die-0").touch()
    (tmp_path / "driver").mkdir()
    opened = os.dup2(os.open(tmp_path / "driver", os.O_RDONLY), 250)
    said = []
    tasks = small_tasks(f"/proc/self/fd/{opened}/runs", ("small_cells:Dies",), epochs=2, keep="all")
    driver, _ = drive(index, tasks, engine(cluster, said))
    assert driver.tally.done == 1
    assert len(said) == 1
    assert "began anew there" in said[0]
    (folder,) = (tmp_path / "driver" / "runs").glob("*/")
    assert f"output: /proc/self/fd/{opened}/runs/" in (folder / "config.yaml").read_text()
    assert {path.name for path in folder.iterdir()} >= {"results.json", "model.safetensors", "predictions.npz"}
    assert not (folder / "checkpoints").exists()
    alone, files = train_on_node(pickle.dumps(tasks[0]), "/nowhere")
    assert alone.results["nll"] == driver.outcomes[tasks[0].name].results["nll"]
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    os.close(opened)


def test_two_processes_of_a_run_and_data_that_a_node_lacks(cluster, tmp_path, index):
    """Missing data take a node out for runs on these data only, and in the end leave out these."""
    cluster.start(cpus=2)
    extra = (("model.model", "small-vit"),)
    tasks = small_tasks(tmp_path / "runs", ("car",), extra=extra, processes=2)
    driver, said = drive(index, tasks, engine(cluster, processes=2))
    assert driver.tally.done == 1, said
    lacking = (("data.dataset", f"folder:{tmp_path / 'photos'}"),)
    missing = small_tasks(tmp_path / "runs", ("ce",), (0, 1), extra=lacking)
    driver, said = drive(index, [*missing, *small_tasks(tmp_path / "runs", ("ce",), (0, 1))], engine(cluster))
    assert (driver.tally.left, driver.tally.done) == (2, 2), said
    assert "left out, folder:" in said[0]


def test_no_room_another_version_and_a_method_that_a_node_lacks(cluster, tmp_path, index, monkeypatch):
    cluster.start()
    said = []
    threading.Thread(target=lambda: (time.sleep(4), cluster.start(cpus=3)), daemon=True).start()
    driver, _ = drive(index, small_tasks(tmp_path / "runs", ("ce",)), engine(cluster, said, cpus_per_run=3))
    assert driver.tally.done == 1
    assert said == ["no node has the 3 CPUs and 0 GPUs that a run needs; waiting for one. "
                    "--cpus-per-run and --gpus-per-run ask for less."]  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_method.py").write_text("from spectail.methods.base import Method\nclass Own(Method): ...")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    (task,) = small_tasks(tmp_path / "runs", ("own_method:Own",))
    driver, _ = drive(index, [task], engine(cluster))
    assert "own_method" in driver.tally.failures[task.name][1]
    (other,) = small_tasks(tmp_path / "runs", ("ce",), (7,))
    with pytest.raises(ValueError, match=r"its spectail is \S+ and the driver's 0\.0\.1; install the same one"):
        drive(index, [replace(other, code="0.0.1")], engine(cluster))


def test_what_does_not_answer_is_a_sentence_in_time(capsys, tmp_path, monkeypatch, cluster):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "--methods", "ce", "--engine", "ray", "--output", str(tmp_path / "all"), "--address"]
    silent = __import__("socket").create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for address in ("127.0.0.1:9", f"127.0.0.1:{port}", "host.invalid:6379"):
        begin = time.time()
        assert main([*words, address]) == 1
        assert time.time() - begin < 15
        assert "no Ray cluster answers" in capsys.readouterr().err
    silent.close()
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*words, "auto"]) == 1
    assert "[cluster]'" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()
