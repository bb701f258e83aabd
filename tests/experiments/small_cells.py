"""Cells that train in a second, and a worker on them as a process of its own."""

import os
import sys
from pathlib import Path

from spectail.experiments.cells import Cell
from spectail.experiments.runs import Run
from spectail.experiments.scales import Overrides, sized
from spectail.experiments.store import open_store
from spectail.experiments.worker import Way, Worker

SMALL = (("data.num_classes", 4), ("data.max_per_class", 12), ("data.imbalance", 4.0), ("optim.batch_size", 8))


def small_runs(methods=("ce", "car"), seeds=(0,), epochs=1, extra=()):
    cells = [Cell("scratch", "glyphs-lt", 4.0, "small-cnn", method, method, (*SMALL, *extra)) for method in methods]
    return [
        Run(cell, "quick", sized(cell, "quick", Overrides(epochs=epochs)), seed) for seed in seeds for cell in cells
    ]


def way(folder, **changes):
    return Way(Path(folder), {}, device="cpu", **changes)


if __name__ == "__main__":  # STORE FOLDER EPOCHS LEASE
    store_path, folder, epochs, lease = sys.argv[1:]
    extra = (("checkpoint_every", 1),)
    worker = Worker(open_store(store_path), way(folder, lease=float(lease)), lambda text: print(text, flush=True))
    print("process", os.getpid(), flush=True)
    tally = worker.work(small_runs(("ce", "car"), (0, 1), int(epochs), extra))
    print(f"trained {tally.done}", flush=True)
