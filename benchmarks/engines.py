"""What an engine adds to a run, and what a second job or a second Ray node gains.

    python benchmarks/engines.py

Every run trains on the embedded data set with one thread. Overhead: the same runs by calling `train` in this process,
by `--engine local --jobs 1` and by Ray with one node, from the start of the command to its end, over their number.
Gain: a plan of long runs with one job and two, and with one Ray node and two, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))
from nodes import Cluster

from spectail.experiments.catalog import find_experiment
from spectail.experiments.planning import Slice, make_plan
from spectail.experiments.scales import Overrides
from spectail.training.loop import train

SLICE = {"dataset": ("glyphs-lt",), "imbalance": (100.0,), "method": ("ce",)}


def spectail(*arguments: str) -> float:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "spectail", *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return time.perf_counter() - begin


def directly(runs: int, epochs: int) -> float:
    """The runs of the plan, one after another in this process."""
    experiment = find_experiment("combinations")
    plan = make_plan(experiment, Slice(**SLICE).of(experiment), "quick", range(runs), Overrides(epochs=epochs))
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        for run in plan.runs:
            train(run.config(Path(folder) / str(run.seed), device="cpu", workers=0))
        return time.perf_counter() - begin


def by_engine(runs: int, epochs: int, *options: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return spectail("experiment", "run", "combinations", "--dataset", "glyphs-lt", "--imbalance", "100", "--method",
                        "ce", "--seeds", *map(str, range(runs)), "--epochs", str(epochs), "--device", "cpu",
                        "--threads", "1", "--keep", "results", "--store", f"{folder}/store.sqlite", "--folder",
                        f"{folder}/runs", *options)  # fmt: skip


def on_nodes(nodes: int) -> Callable[[int, int], float]:
    def work(runs: int, epochs: int) -> float:
        with tempfile.TemporaryDirectory() as folder, closing(_Started(Path(folder), nodes)) as cluster:
            return by_engine(runs, epochs, "--engine", "ray", "--address", cluster.address)

    return work


class _Started(Cluster):
    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder)
        for _ in range(nodes):
            self.start()

    def close(self) -> None:
        self.end()


def in_turns(ways: Sequence[Callable[[int, int], float]], runs: int, epochs: int, rounds: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(rounds):
        for place in range(len(ways)) if turn % 2 == 0 else reversed(range(len(ways))):
            times[place].append(ways[place](runs, epochs))
            print(f"  {times[place][-1]:.1f} s", flush=True)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20, help="of the long runs, a minute or more each")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "engines.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    spectail("prepare", "glyphs-lt")  # drawn once, not inside the first round
    one = lambda runs, epochs: by_engine(runs, epochs, "--jobs", "1")  # noqa: E731
    two = lambda runs, epochs: by_engine(runs, epochs, "--jobs", "2")  # noqa: E731
    print(f"{asked.runs} runs of 1 epoch: directly, local, ray with one node", flush=True)
    short = [min(times) for times in in_turns([directly, one, on_nodes(1)], asked.runs, 1, asked.rounds)]
    overhead = {name: round((seconds - short[0]) / asked.runs, 2)
                for name, seconds in zip(("local", "ray"), short[1:], strict=True)}  # fmt: skip
    print(f"overhead per run: {overhead} s (targets 3 and 5)")
    print(f"{asked.runs} runs of {asked.epochs} epochs: one job, two jobs, one node, two nodes", flush=True)
    long = in_turns([one, two, on_nodes(1), on_nodes(2)], asked.runs, asked.epochs, max(1, asked.rounds // 2))
    best = [min(times) for times in long]
    gain = {"local": round(best[0] / best[1], 2), "ray": round(best[2] / best[3], 2)}
    print(f"two against one: {gain} (targets 1.8 and 1.7); a run takes {best[0] / asked.runs:.0f} s")
    found: dict[str, Any] = {
        "command": f"python benchmarks/engines.py --rounds {asked.rounds} --runs {asked.runs} --epochs {asked.epochs}",
        "cores": os.cpu_count(), "overhead_seconds": overhead, "gain": gain, "directly": round(short[0], 1),
        "short": [round(value, 1) for value in short], "long": [[round(value, 1) for value in times] for times in long],
    }  # fmt: skip
    asked.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
