"""Many runs on a Ray cluster of two nodes, of which the driver, a worker or a node is killed: all end as ever."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from training.runs import FLAGS, metrics, predictions, results

from .cases import Row

COMPARE = ("compare", *FLAGS, "--epochs", "15", "--model", "small-cnn", "--methods", "ce", "car", "--checkpoint-every", "1",
           "--no-report", "--quiet")  # fmt: skip
EXPERIMENT = ("experiment", "run", "combinations", "--dataset", "glyphs-lt", "--imbalance", "100", "--method", "ce", "car",
              "--model", "test_vit", "--epochs", "3", "--device", "cpu")  # fmt: skip
KINDS = ("the driver, kill -9", "a worker, kill -9", "a node, kill -9", "the driver, SIGTERM", "the driver, Ctrl-C")
TOGETHER = 2
"""Runs of either command."""


def attack(row: Row, work: Path, draws: random.Random, amount: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))
    from nodes import Cluster

    (work / "cluster").mkdir()
    found = Cluster(work / "cluster")
    words = {name: tuple(used) for name, used in (("compare", COMPARE), ("experiment run", EXPERIMENT))}
    try:
        found.start()
        found.start()
        for name, used in words.items():
            if started(used, work / f"{name}-whole").wait(300):  # on this machine, by processes
                row.add(f"Ray, {name}", "cannot be carried out")
                return
        for number in range(amount):
            name = "experiment run" if number % 3 == 2 else "compare"
            which = KINDS[number % len(KINDS)]
            on_ray = (*words[name], "--engine", "ray", "--address", found.address)
            row.add(
                f"Ray, {name}, {which}",
                one(found, on_ray, work / f"ray-{number}", work / f"{name}-whole", which, draws),
            )
    finally:
        found.end()


def started(words: tuple[str, ...], output: Path) -> subprocess.Popen[bytes]:
    place = ("--folder", str(output), "--store", f"{output}.sqlite") if words[0] == "experiment" else ("--output", str(output))  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with output.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "spectail", *words, *place], env=environment, stdout=log, stderr=log, start_new_session=True)  # fmt: skip


def one(cluster, words: tuple[str, ...], output: Path, whole: Path, which: str, draws: random.Random) -> str | None:
    driver = started(words, output)
    end = time.monotonic() + 120
    while not list(output.glob("*/checkpoints/step-*")) and driver.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(draws.random())
    if driver.poll() is not None:
        return "has ended before anything could be killed"
    if which.startswith("a node"):
        cluster.kill(cluster.nodes[-1])
        cluster.start()
    elif which.startswith("a worker"):
        working = workers(cluster)
        if working:
            os.kill(draws.choice(working), signal.SIGKILL)
    else:
        driver.send_signal({"SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}.get(which.split(", ")[1], signal.SIGKILL))  # fmt: skip
    for _ in range(2):  # what was killed is tried again by the driver, what was stopped by the same command
        try:
            if driver.wait(180) == 0:
                return differing(whole, output)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            return "hangs"
        driver = started(words, output)
    if driver.wait(180):
        return f"cannot be resumed: {output.with_suffix('.log').read_text()[-300:]}"
    return differing(whole, output)


def workers(cluster) -> list[int]:
    """Processes on the nodes that carry out runs: Ray has named them after their function."""
    from nodes import processes

    pids = [pid for node in cluster.nodes if node.poll() is None for pid in processes(node)]
    return [pid for pid in pids if b"on_node" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def differing(whole: Path, output: Path) -> str | None:
    """Bit for bit, times apart; an experiment keeps no model."""
    names = sorted(path.parent.name for path in whole.glob("*/results.json"))
    if len(names) != TOGETHER or names != sorted(path.parent.name for path in output.glob("*/results.json")):
        return "other runs are there"
    for name in names:
        a, b = whole / name, output / name
        same = results(a) == results(b) and metrics(a) == metrics(b) and predictions(a).keys() == predictions(b).keys()
        same = same and all(np.array_equal(value, predictions(b)[key]) for key, value in predictions(a).items())
        if (a / "model.safetensors").exists():
            same = same and (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
        if not same:
            return f"{name} differs"
    return None
