"""What mixing images costs a training step: mixup, CutMix, ReMix, CMO and ConCutMix beside plain cross entropy.

Each method makes its steps through the engine's loop, one thread, on batches that were made before: CIFAR ResNet-32,
batch 128, 32 x 32. Every batch is mixed, in an epoch in which the method does all it ever does (inside CMO's window,
with ConCutMix's rectified labels), so a run at the default probabilities costs less. mixup and CutMix are ReMix with
tau 0, which leaves the labels as the images are mixed.

A pair is a plain step and a step of the method right after or right before it, in time of the processor, which other
work on the machine disturbs least. The methods take turns, so all see the same minutes. Reported: the median of the
ratios of the pairs and their quartiles; and what making the batches takes (a second stream of images doubles it, three
views more than that), which is no part of the step. Steps of so large a network vary by more than mixing costs; with
a network of two layers the same methods show how many milliseconds are their own.

    python benchmarks/mixing.py                                         about 15 minutes
    python benchmarks/mixing.py --model testing-net --pairs 200         their own work, half a minute
    python benchmarks/mixing.py --pairs 5 --only CMO CutMix

Each model has its entry in the results; a run replaces that of its model.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spectail.data.batch import Batch
from spectail.testing import register_network
from spectail.training.config_io import from_dict
from spectail.training.loop import Trainer
from spectail.training.reporter import Reporter
from spectail.training.run_folder import RunFolder
from spectail.training.signals import Interruptible
from spectail.training.stage_run import StageRun

EPOCHS, EPOCH = 10, 5
"""An epoch inside CMO's window and after ConCutMix has begun to rectify."""
ROWS: dict[str, tuple[str, dict[str, Any], float | None]] = {  # method, options, most that it may cost a ResNet-32
    "mixup": ("remix", {"tau": 0.0}, 1.05),
    "CutMix": ("remix", {"mix": "cutmix", "tau": 0.0}, 1.05),
    "ReMix (mixup)": ("remix", {}, 1.05),
    "ReMix (CutMix)": ("remix", {"mix": "cutmix"}, 1.05),
    "CMO": ("cmo", {"probability": 1.0}, 1.05),
    "ConCutMix, lite": ("concutmix", {"mode": "lite", "probability": 1.0}, 1.15),
    "ConCutMix, full": ("concutmix", {"probability": 1.0}, None),
}


class Bench:
    """A run of a method in the middle of training, with a few batches that it goes round."""

    def __init__(self, folder: Path, method: str, options: dict[str, Any], model: str, size: int, seed: int) -> None:
        content = {
            "output": str(folder), "device": "cpu", "workers": 0, "seed": seed, "method": method, "options": options,
            "model": {"model": model},
            "optim": {"optimizer": "sgd", "lr": 0.01, "weight_decay": 5e-4, "epochs": EPOCHS, "batch_size": size},
        }  # fmt: skip
        register_network()
        config = from_dict(content)
        torch.manual_seed(seed)
        self.run = Trainer(config, RunFolder(config.output), Reporter(), Interruptible())
        stage = self.run.stages[0]
        self.run.stage = run = StageRun(stage, config, self.run.pieces, None, self.run.generator, None)
        run.step.epoch = EPOCH
        for loader in run.loaders.values():
            loader.rewind(EPOCH)
        self.run.method.begin_epoch(run.step)
        run.phase = self.run.method.phase(run.step)
        run.learner.train()
        self.groups: list[tuple[list[dict[str, Batch]], int]] = []
        marks, stream = [time.process_time()], run.groups()
        for _ in range(4):
            self.groups.append(next(stream))
            marks.append(time.process_time())
        self.making = statistics.median(b - a for a, b in pairwise(marks))
        self.made = 0

    def step(self) -> float:
        group, images = self.groups[self.made % len(self.groups)]
        self.made += 1
        start = time.process_time()
        self.run.optimise(group, images)
        return time.process_time() - start


def measure(names: list[str], pairs: int, model: str, size: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        plain = Bench(Path(folder) / "plain", "ce", {}, model, size, seed)
        benches = {
            name: Bench(Path(folder) / str(place), *ROWS[name][:2], model, size, seed)
            for place, name in enumerate(names)
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for number in range(pairs + 2):
            for name, bench in benches.items():
                if number % 2:  # who comes first changes, so that neither always finds the cache of the other
                    second, first = bench.step(), plain.step()
                else:
                    first, second = plain.step(), bench.step()
                if number >= 2:
                    times[name].append((first, second))
    entries: dict[str, Any] = {"plain": {"batches_ms": 1e3 * plain.making}}
    for name, found in times.items():
        ratios = [b / a for a, b in found]
        low, middle, high = statistics.quantiles(ratios, n=4)
        method, options, most = ROWS[name]
        entries[name] = {
            "method": method, "options": options, "plain_ms": 1e3 * statistics.median(a for a, _ in found),
            "step_ms": 1e3 * statistics.median(b for _, b in found), "ratio": middle, "quartiles": [low, high],
            "target": most if model == "resnet32" else None, "batches_ms": 1e3 * benches[name].making,
        }  # fmt: skip
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=[*ROWS], metavar="ROW")
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "mixing.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    entries = measure(options.only, options.pairs, options.model, options.batch_size, options.seed)
    print("| | plain step, ms | step, ms | more, ms | ratio | quartiles | target | batches, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only:
        entry = entries[name]
        low, high = entry["quartiles"]
        target = "-" if entry["target"] is None else f"{entry['target']:.2f}"
        more = entry["step_ms"] - entry["plain_ms"]
        print(f"| {name} | {entry['plain_ms']:.1f} | {entry['step_ms']:.1f} | {more:.2f} | {entry['ratio']:.3f} | "
              f"{low:.3f} to {high:.3f} | {target} | {entry['batches_ms']:.1f} |")  # fmt: skip
    print(f"\nMaking a plain batch: {entries['plain']['batches_ms']:.1f} ms.")
    settings = ["python", "benchmarks/mixing.py", "--model", options.model, "--pairs", str(options.pairs)]
    settings += ["--batch-size", str(options.batch_size), "--only", *options.only]
    report = {
        "command": shlex.join(settings), "seed": options.seed, "threads": options.threads,
        "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
        "machine": platform.machine(), "batch": options.batch_size, "pairs": options.pairs, "results": entries,
    }  # fmt: skip
    options.output.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(options.output.read_text()) if options.output.exists() else {}
    options.output.write_text(json.dumps(before | {options.model: report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
