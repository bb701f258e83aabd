"""Cells that train in a second, as tasks; an engine that carries them out in this process; a method that fails."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

from spectail.experiments.cells import Cell
from spectail.experiments.driver import Driver
from spectail.experiments.runs import Run
from spectail.experiments.scales import Overrides, sized
from spectail.experiments.task import carry_out, task_of
from spectail.methods.base import Method

SMALL = (("data.num_classes", 4), ("data.max_per_class", 12), ("data.imbalance", 4.0), ("optim.batch_size", 8))


def small_runs(methods=("ce", "car"), seeds=(0,), epochs=1, extra=()):
    cells = [Cell("scratch", "glyphs-lt", 4.0, "small-cnn", method, method, (*SMALL, *extra)) for method in methods]
    return [
        Run(cell, "quick", sized(cell, "quick", Overrides(epochs=epochs)), seed) for seed in seeds for cell in cells
    ]


def small_tasks(folder, *arguments, processes=1, keep="predictions", **options):
    runs = small_runs(*arguments, **options)
    return [task_of(run, Path(folder), {"device": "cpu", "workers": 0}, keep, processes) for run in runs]


class Here:
    """An engine for tests in which the process is not the point."""

    def __init__(self, outcomes=()):
        self.outcomes, self.tasks = list(outcomes), []

    def carry_out(self, waiting, begun):
        while waiting:
            task = waiting.popleft()
            begun(task)
            self.tasks.append(task)
            outcome = self.outcomes.pop(0) if self.outcomes and not task.only_identify else None
            yield task, outcome or carry_out(task)


def drive(index, tasks, engine=None, **options):
    """The driver after its work, and what it said."""
    said = []
    driver = Driver(index, engine or Here(), said.append, **options)
    driver.work(tasks)
    return driver, said


HERE = Path(os.environ.get("NODE_FOLDER", "."))  # each node of a cluster has its own


class Dies(Method):
    """Ends like a process that takes too much memory, at its fourth step: once for each file die-* there."""

    def loss(self, model, batches, step):
        orders = sorted(HERE.glob("die-*")) if step.index == 3 else []
        if orders:
            orders[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batches, step)


class Slow(Method):
    """A twentieth of a second more for each step; on a node a file says which process is at which. Beside a file
    ``together`` it goes on only when every node has begun a run, however long a node takes to start."""

    def loss(self, model, batches, step):
        if "NODE_FOLDER" in os.environ:
            (HERE / f"trained-{os.getpid()}").write_text(str(step.index))
            end = time.monotonic() + 120
            while (HERE.parent / "together").exists() and time.monotonic() < end:
                if all(any(node.glob("trained-*")) for node in HERE.parent.glob("node*")):
                    break
                time.sleep(0.1)
        time.sleep(0.05)
        return super().loss(model, batches, step)


class SaysHowLoadersStart(Method):
    """Fails with the way in which its process would start others."""

    def loss(self, model, batches, step):
        raise ValueError(multiprocessing.get_start_method())
