"""Runs that are killed at random moments and resumed must end as the run that nobody touched, bit for bit.

The moments cover the whole of a run evenly: a tenth falls before the first step is done, a tenth after the last one
(evaluation, writing of results), the others at a random step and a random time inside it. Half of the runs save at every
step, the others at the ends of epochs. Compared: metrics.jsonl and results.json without times, model.safetensors,
predictions.npz. Some runs are killed again when they are resumed.
"""

import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from training.runs import assert_same, settings

from spectail.methods.registry import find_method
from spectail.training.loop import train
from spectail.training.reporter import Reporter
from spectail.training.signals import Interrupted

from . import cluster
from .cases import Child, Row, leftovers

EPOCHS = 8
CASES: dict[str, dict[str, Any]] = {
    "ce": {"model__model": "small-cnn"},
    "car": {"method": "car"},
    "car class-wise, average of the weights": {"model__model": "tiny-norm", "method": "car", "car__preset": "classwise", "optim__ema": 0.9},
    "accumulation, dropout": {"method": "car", "optim__accumulation": 2, "model__model": "tiny-dropout"},
    "validation": {"model__model": "tiny-norm", "select_on": "val", "data__val_fraction": 0.2},
    "crt": {"method": "crt"},
    "balms": {"method": "balms"},
    "bbn": {"method": "bbn", "model__model": "small-cnn"},
    "metasaug + car": {"method": "metasaug", "car__enabled": True},
}  # fmt: skip
SIGNALS = {
    "kill -9": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "Ctrl-C twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM, then kill -9": (signal.SIGTERM, signal.SIGKILL),
}


class Counter(Reporter):
    """Writes the number of optimiser steps into memory that the parent shares: it survives the kill."""

    def __init__(self, shared: mmap.mmap) -> None:
        self.shared = shared

    def step(self, done: int, figures: Callable[[], dict[str, float]]) -> None:
        self.shared[:8] = (int.from_bytes(self.shared[:8], "little") + 1).to_bytes(8, "little")


class Times(NamedTuple):
    """Seconds of a run before its first step is done, of one step, and after the last one."""

    before: float
    step: float
    after: float


class Runs:
    """Runs of one case."""

    def __init__(self, folder: Path, case: str) -> None:
        self.case = case
        self.shared = mmap.mmap(-1, 8)
        self.whole = folder / f"{case}-whole"
        self.steps, self.times = 0, Times(0, 0, 0)
        for _ in range(2):  # the first one fills caches, the second one tells how long a run takes
            start = time.monotonic()
            child = self.start(self.whole, every=0)
            first = self.until(child, 1)
            last = self.until(child, self.steps or 10**9)
            if child.wait(300) != 0:
                raise RuntimeError(f"a run of {case} failed; its traceback is above.")
            self.steps, end = self.done() or self.steps, time.monotonic()
            self.times = Times(first - start, (last - first) / self.steps, end - last)
            if _ == 0:
                os.rename(self.whole, folder / f"{case}-first")
        assert_same(folder / f"{case}-first", self.whole)

    def start(self, output: Path, every: int) -> Child:
        self.shared[:8] = bytes(8)
        config = settings(output, checkpoint_every=every, optim__epochs=EPOCHS, **CASES[self.case])
        return Child(lambda: self._train(config))

    def _train(self, config: Any) -> int:
        try:
            train(config, resume=True, reporter=Counter(self.shared))
        except (Interrupted, KeyboardInterrupt):
            return 130
        return 0

    def done(self) -> int:
        return int.from_bytes(self.shared[:8], "little")

    def until(self, child: Child, step: int) -> float:
        while self.done() < step and not child.ended():
            time.sleep(5e-4)
        return time.monotonic()

    def hit(self, child: Child, share: float, numbers: tuple[int, ...], pause: float) -> bool:
        """Send signals after a share of a run; whether it was still running."""
        if share < 0.1:
            time.sleep(share / 0.1 * self.times.before)
        elif share < 0.9:
            step, rest = divmod((share - 0.1) / 0.8 * self.steps, 1)
            self.until(child, int(step))
            time.sleep(rest * self.times.step)
        else:
            self.until(child, self.steps)
            time.sleep((share - 0.9) / 0.1 * self.times.after)
        running = not child.ended()
        for number in numbers:
            child.signal(number)
            time.sleep(pause)
        if child.wait(60) is None:
            return True
        return running


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    draws = random.Random(seed)
    for case in CASES.values():
        find_method(case.get("method", "ce")).load()  # imported here once, not in every fork
    cases = [Runs(work, case) for case in CASES]
    done = tried = 0
    while done < amount and tried < 4 * amount:
        tried += 1
        runs, every = cases[done % len(cases)], draws.randrange(2)
        kind = draws.choice(list(SIGNALS))
        output = work / f"killed-{tried}"
        hits, wanted = 0, draws.choice([1, 1, 2])
        while hits < wanted:
            if not runs.hit(runs.start(output, every), draws.random(), SIGNALS[kind], draws.random() * 0.05):
                break
            hits += 1
        if not hits:  # it had ended before
            continue
        done += 1
        fault = None
        if runs.start(output, every).wait(300) != 0:
            fault = "cannot be resumed"
        else:
            try:
                assert_same(runs.whole, output)
            except AssertionError as error:
                fault = f"differs: {str(error)[:300]}"
        left = leftovers(output)
        row.add(f"{runs.case}, {kind}, {hits} times", fault or (f"leaves {left}" if left else None))
    ranks(row, work, draws, max(2, amount // 20))
    cluster.attack(row, work, draws, max(4, amount // 16))


def ranks(row: Row, work: Path, draws: random.Random, amount: int) -> None:
    """Two processes under torchrun: one of them, or the launcher, is killed."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "spectail", "train", "--dataset", "glyphs-lt", "--num-classes", "6",
             "--max-per-class", "24", "--imbalance", "6", "--batch-size", "16", "--epochs", "30", "--device", "cpu", "--workers", "0", "--method", "car",
             "--checkpoint-every", "1", "--quiet", "--no-report", "--resume", "--output"]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

    def start(output: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *words, str(output)], env=environment, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip

    if start(work / "ranks-whole").wait(300):
        row.add("two ranks", "cannot be trained")
        return
    for number in range(amount):
        output = work / f"ranks-{number}"
        process = start(output)
        end = time.monotonic() + 120
        while not (output / "checkpoints").is_dir() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(draws.random())
        which = ("a rank, kill -9", "the launcher, SIGTERM", "the launcher, Ctrl-C")[number % 3]
        if process.poll() is None and number % 3 == 0:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(draws.choice(children)), signal.SIGKILL)
        elif process.poll() is None:
            process.send_signal(signal.SIGTERM if number % 3 == 1 else signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        fault = None
        if start(output).wait(300):
            fault = "cannot be resumed"
        else:
            try:
                assert_same(work / "ranks-whole", output)
            except AssertionError as error:
                fault = f"differs: {str(error)[:300]}"
        row.add(f"two ranks, {which}", fault)
