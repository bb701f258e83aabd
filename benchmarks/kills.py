"""Kill -9 a run at random moments, resume it, and compare what it leaves with the run that nobody killed.

The moments cover the whole of a run evenly: a tenth of the kills falls before the first step is done, a tenth after the
last one (evaluation, writing of results), the others at a random step and a random time inside it. A kill counts if the
process was still running; else another moment is drawn. Half of the runs save at every step, the others at the ends of
epochs. Compared bit for bit: metrics.jsonl and results.json without times, model.safetensors, predictions.npz.

    python benchmarks/kills.py                20 kills (about 2 minutes of computing)
    python benchmarks/kills.py --kills 100 --seed 7
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spectail.methods.registry import find_method
from spectail.training.loop import train
from spectail.training.reporter import Reporter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from training.runs import assert_same, register, settings

EPOCHS = 20
CASES: dict[str, dict[str, Any]] = {
    "ce": {"model__model": "small-cnn"},
    "car": {"model__model": "small-cnn", "method": "car"},
    "car class-wise": {"method": "car", "car__preset": "classwise"},
    "average of the weights": {"model__model": "tiny-norm", "method": "car", "optim__ema": 0.9},
    "accumulation": {"method": "car", "optim__accumulation": 2},
    "dropout": {"model__model": "tiny-dropout", "transform": "cifar-strong"},
    "validation": {"model__model": "tiny-norm", "select_on": "val", "data__val_fraction": 0.2},
}


class Counter(Reporter):
    """Writes the number of optimiser steps into memory that the parent shares: it survives the kill."""

    def __init__(self, shared: mmap.mmap) -> None:
        self.shared = shared

    def begin_epoch(self, stage: str, epoch: int, epochs: int, steps: int, done: int) -> None:
        self.before = epoch * steps

    def step(self, done: int, figures: Callable[[], dict[str, float]]) -> None:
        self.shared[:8] = (self.before + done).to_bytes(8, "little")


class Child:
    """A process that does some work. A fork, because importing torch anew each time is slow."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)

    def ended(self, options: int = os.WNOHANG) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, options)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self) -> None:
        self.ended(0)
        if self.code != 0:
            raise RuntimeError(f"a run failed with code {self.code}; its traceback is above.")

    def kill(self) -> bool:
        """Whether it was still running."""
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            self.ended(0)
        return self.code == -signal.SIGKILL


class Times(NamedTuple):
    """Seconds of a run before its first step is done, of one step, and after the last one."""

    before: float
    step: float
    after: float


class Runs:
    """Runs of one case."""

    def __init__(self, folder: Path, case: str) -> None:
        self.folder, self.case = folder, case
        self.shared = mmap.mmap(-1, 8)
        self.whole = folder / f"{case}-whole"
        self.start(self.whole, every=0).wait()  # fills caches too, so that the following ones tell how long a run takes
        self.steps = self.done()
        self.times = {every: self._time(folder / f"{case}-every{every}", every) for every in (0, 1)}

    def start(self, output: Path, every: int) -> Child:
        self.shared[:8] = bytes(8)
        config = settings(output, checkpoint_every=every, optim__epochs=EPOCHS, **CASES[self.case])
        return Child(lambda: train(config, resume=True, reporter=Counter(self.shared)))

    def done(self) -> int:
        return int.from_bytes(self.shared[:8], "little")

    def until(self, child: Child, step: int) -> float:
        while self.done() < step and not child.ended():
            time.sleep(5e-4)
        return time.monotonic()

    def _time(self, output: Path, every: int) -> Times:
        start = time.monotonic()
        child = self.start(output, every)
        first, last = self.until(child, 1), self.until(child, self.steps)
        child.wait()
        assert_same(self.whole, output)
        return Times(first - start, (last - first) / self.steps, time.monotonic() - last)

    def kill(self, child: Child, every: int, share: float) -> bool:
        """Kill a run after a share of it; whether it was still running."""
        times = self.times[every]
        if share < 0.1:
            time.sleep(share / 0.1 * times.before)
        elif share < 0.9:
            step, rest = divmod((share - 0.1) / 0.8 * self.steps, 1)
            self.until(child, int(step))
            time.sleep(rest * times.step)
        else:
            self.until(child, self.steps)
            time.sleep((share - 0.9) / 0.1 * times.after)
        return child.kill()


def killed(runs: Runs, output: Path, every: int, share: float) -> dict[str, Any] | None:
    """One kill and what became of the run; None if the run had ended before."""
    if not runs.kill(runs.start(output, every), every, share):
        return None
    done = runs.done()
    saved = max((int(path.name[5:]) for path in (output / "checkpoints").glob("step-*")), default=0)
    half = sorted(path.name for path in output.rglob(".*"))
    runs.start(output, every).wait()
    try:
        assert_same(runs.whole, output)
        same = True
    except AssertionError as error:
        same = False
        print(f"{output.name} differs: {str(error)[:2000]}", file=sys.stderr)
    return {
        "case": runs.case,
        "checkpoint_every": every,
        "share": round(share, 3),
        "step": done,
        "steps": runs.steps,
        "steps_lost": done - saved,
        "identical": same,
        "half_written_at_the_kill": half,
        "half_written_at_the_end": sorted(path.name for path in output.rglob(".*") if path.name != ".run.lock"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "kills.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    register()
    for case in CASES.values():
        find_method(case.get("method", "ce")).load()  # imported here once, not in every fork
    draws = random.Random(options.seed)
    parts = draws.sample(range(options.kills), options.kills)
    found: list[dict[str, Any]] = []
    missed = 0
    with tempfile.TemporaryDirectory(prefix="spectail-kills-") as name:
        os.environ["SPECTAIL_CACHE"] = str(Path(name) / "cache")
        cases = [Runs(Path(name), case) for case in CASES]
        while len(found) < options.kills:
            place = len(found)
            runs, every = cases[place % len(cases)], 1 - place % 2
            share = (parts[place] + draws.random()) / options.kills
            entry = killed(runs, Path(name) / f"killed-{place}-{missed}", every, share)
            if entry is None:
                missed += 1
                continue
            found.append(entry)
            print(
                f"{place + 1:3} {entry['case']:24} saving {'every step' if every else 'every epoch':12} "
                f"killed at {entry['share']:.0%}, step {entry['step']} of {entry['steps']}, "
                f"{entry['steps_lost']} steps lost, {'identical' if entry['identical'] else 'DIFFERENT'}"
            )
    results = {
        "kills": len(found),
        "identical": sum(entry["identical"] for entry in found),
        "after_the_end": missed,
        "moments": sorted(entry["share"] for entry in found),
        "steps_lost": {what: lost(found, every) for what, every in (("every_step", 1), ("every_epoch", 0))},
        "runs": found,
    }
    print(f"{results['identical']} of {results['kills']} identical; steps lost: {json.dumps(results['steps_lost'])}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    if results["identical"] != results["kills"]:
        raise SystemExit(1)


def lost(found: list[dict[str, Any]], every: int) -> dict[str, Any]:
    values = [entry["steps_lost"] for entry in found if entry["checkpoint_every"] == every]
    return {"each": values, "mean": round(statistics.fmean(values), 2), "most": max(values)} if values else {}


if __name__ == "__main__":
    main()
