"""How fast a plan is made, and how much faster two workers are than one on the same store.

    python benchmarks/workers.py

Workers are processes of one thread each on runs of the embedded data set. One worker and two take turns; the second
half of the rounds begins with two. Time includes the start of the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def spectail(*arguments: str) -> float:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "spectail", *arguments], env=dict(os.environ) | THREAD,
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return time.perf_counter() - begin


def work(workers: int, runs: int, epochs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        seeds = list(map(str, range(runs)))
        return spectail("experiment", "run", "combinations", "--dataset", "glyphs-lt", "--imbalance", "100", "--method",
                        "ce", "--seeds", *seeds, "--epochs", str(epochs), "--device", "cpu", "--workers", str(workers),
                        "--threads", "1", "--keep", "results", "--store", f"{folder}/store.sqlite", "--folder",
                        f"{folder}/runs")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "workers.json")
    asked = parser.parse_args()
    spectail("prepare", "glyphs-lt")  # drawn once, not inside the first round
    plan = min(spectail("experiment", "plan", "all", "--scale", "paper", "--store", "nowhere/s.sqlite")
               for _ in range(3))  # fmt: skip
    print(f"plan of all experiments: {plan:.2f} s (target 2)")
    times: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(asked.rounds):
        for workers in (1, 2) if turn < asked.rounds / 2 else (2, 1):
            times[workers].append(work(workers, asked.runs, asked.epochs))
            print(f"{workers} worker(s): {times[workers][-1]:.1f} s for {asked.runs} runs", flush=True)
    ratio = statistics.median(times[1]) / statistics.median(times[2])
    print(f"two workers are {ratio:.2f} times as fast (target 1.8)")
    found: dict[str, Any] = {
        "command": f"python benchmarks/workers.py --rounds {asked.rounds} --runs {asked.runs} --epochs {asked.epochs}",
        "cores": os.cpu_count(), "plan_seconds": round(plan, 2),
        "seconds": {str(workers): [round(value, 1) for value in values] for workers, values in times.items()},
        "ratio": round(ratio, 2),
    }  # fmt: skip
    asked.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
