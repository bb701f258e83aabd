"""What MetaSAug adds to a training step, and to its memory.

Both methods make their steps in turns through the engine's loop, one thread, on batches that are already there: plain
cross entropy, and MetaSAug after its start. Reported: the median of the ratios of the pairs, in time of the processor,
which other work on the machine disturbs least. (a) The head alone on
stored features; (b) with a CIFAR ResNet-20, trained with the head or frozen; the meta batch is as large as the batch,
so its forward pass alone doubles a frozen step. Memory: peak of a process that makes steps of a head with a diagonal
covariance, less that of one that makes plain steps.

    python benchmarks/metasaug.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from spectail import ClassCounts
from spectail.data.batch import Batch
from spectail.data.longtail import exponential
from spectail.models.cifar_resnet import CifarResNet
from spectail.testing import settings
from spectail.training.loop import Trainer
from spectail.training.reporter import Reporter
from spectail.training.run_folder import RunFolder
from spectail.training.signals import Interruptible
from spectail.training.stage_run import StageRun

NAMES = ("ce", "metasaug")


class Bench:
    """A run of a method in its last phase, and one batch of each stream for ever."""

    def __init__(
        self, name: str, folder: Path, batch: int, classes: int, width: int, *,
        images: bool = False, frozen: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        own = options if name == "metasaug" else {}
        config = settings(name, folder / name, optim={"optimizer": "sgd", "lr": 0.1}, options=own)
        run = Trainer(config, RunFolder(config.output), Reporter(), Interruptible())
        counts = ClassCounts(exponential(500, classes, 100))
        run.method = run.pieces.method = type(run.method)(counts, config.options, epochs=2)
        backbone = CifarResNet(20) if images else torch.nn.Identity()
        width = backbone.num_features if isinstance(backbone, CifarResNet) else width
        run.pieces.model = run.method.build(backbone, run.method.make_head("linear", width))
        run.stage = StageRun(run.method.stages()[0], config, run.pieces, None, run.generator, None)
        if frozen:
            run.pieces.model.freeze_backbone()
        run.stage.learner.train()
        run.stage.step.epoch = 1  # after the start
        shape = (3, 32, 32) if images else (width,)
        main = torch.multinomial(counts.counts.double(), batch, replacement=True)
        batches = {"main": main, "meta": torch.randint(classes, (batch,))}
        self.group = [{key: Batch(torch.randn(batch, *shape), y, torch.arange(batch)) for key, y in batches.items()}]
        self.run, self.batch = run, batch

    def step(self) -> float:
        start = time.process_time()
        self.run.optimise(self.group, self.batch)  # type: ignore[arg-type]
        return time.process_time() - start


def measure(what: str, pairs: int, batch: int, classes: int, width: int = 64, **options: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = [Bench(name, Path(folder), batch, classes, width, **options) for name in NAMES]
        times = [[run.step() for run in runs] for _ in range(pairs + 2)][2:]
    ratios = [meta / plain for plain, meta in times]
    milliseconds = [1e3 * statistics.median(column) for column in zip(*times, strict=True)]
    entry = {"what": what, "batch": batch, "classes": classes, "features": width, "pairs": pairs}
    return entry | {"plain_ms": milliseconds[0], "metasaug_ms": milliseconds[1], "ratio": statistics.median(ratios)}


def peak(name: str, batch: int, classes: int, width: int) -> float:
    """Peak MB of a process that makes a few steps of a head."""
    command = [sys.executable, __file__, "--peak", name, str(batch), str(classes), str(width)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return float(done.stdout.split()[-1])


def report_peak(name: str, batch: int, classes: int, width: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = {"covariance": "diagonal"} if name == "metasaug" else {}
        run = Bench(name, Path(folder), batch, classes, width, **options)
        for _ in range(3):
            run.step()
    # not ru_maxrss, which a new process takes over from the one that started it
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")))


def memory(batch: int, classes: int, width: int) -> dict[str, Any]:
    plain, meta = (peak(name, batch, classes, width) for name in NAMES)
    return {
        "batch": batch, "classes": classes, "features": width, "plain_peak_mb": plain, "metasaug_peak_mb": meta,
        "extra_mb": meta - plain, "batch_x_classes_x_features_mb": batch * classes * width * 4 / 2**20,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "metasaug.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        report_peak(options.peak[0], *map(int, options.peak[1:]))
        return
    pairs, network = options.pairs, {"images": True}
    steps = [
        measure("stored features, diagonal", 5 * pairs, 128, 100, 64, covariance="diagonal"),
        measure("stored features, full", 5 * pairs, 128, 100, 64, covariance="full"),
        measure("stored features, diagonal", pairs, 256, 1000, 384, covariance="diagonal"),
        measure("ResNet-20 trained, full", pairs, 128, 100, **network),
        measure("ResNet-20 trained, full, step ahead on all", -(-pairs // 5), 128, 100, virtual="all", **network),
        measure("ResNet-20 frozen, diagonal", pairs, 128, 100, frozen=True, covariance="diagonal", **network),
    ]
    print("| | batch | classes | features | plain, ms | MetaSAug, ms | ratio |\n|---|---|---|---|---|---|---|")
    for entry in steps:
        print(f"| {entry['what']} | {entry['batch']} | {entry['classes']} | {entry['features']} | "
              f"{entry['plain_ms']:.2f} | {entry['metasaug_ms']:.2f} | {entry['ratio']:.2f} |")  # fmt: skip
    sizes = [memory(256, classes, 384) for classes in (1000, 8142)]
    print("\n| classes | features | batch | extra peak, MB | batch x classes x features, MB |\n|---|---|---|---|---|")
    for entry in sizes:
        print(f"| {entry['classes']:,} | {entry['features']} | {entry['batch']} | {entry['extra_mb']:.0f} | "
              f"{entry['batch_x_classes_x_features_mb']:.0f} |")  # fmt: skip
    options.output.write_text(json.dumps({"steps": steps, "memory": sizes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
