"""What the Meta Sampler of BALMS adds to a training step of a head, beside the plain step, on stored features.

Both make their steps in turns through the engine's loop, one thread: cross entropy on a shuffled batch, and the second
stage of BALMS with a class-level draw, the virtual step and the step of the sampling rates. Reported: the median of the
ratios of the pairs, in time of the processor, which other work on the machine disturbs least.

    python benchmarks/meta_sampler.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spectail.data.feature_set import FeatureSet
from spectail.data.longtail import exponential
from spectail.testing import settings
from spectail.training.loop import Trainer
from spectail.training.reporter import Reporter
from spectail.training.run_folder import RunFolder
from spectail.training.signals import Interruptible
from spectail.training.stage_run import StageRun


def trainer(method: str, folder: Path, batch: int, width: int, classes: int) -> Trainer:
    """A run whose features are random and long-tailed, at the first step of its last stage."""
    optim = {"optimizer": "sgd", "lr": 0.1, "batch_size": batch, "epochs": 2}
    config = settings(method, folder / method, optim=optim, probe=True)
    found = Trainer(config, RunFolder(config.output), Reporter(), Interruptible())
    counts = exponential(500, classes, 100)
    labels = np.repeat(np.arange(classes), counts)
    features = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(0))
    found.pieces.splits["train"] = FeatureSet(features, labels, [str(name) for name in range(classes)])
    kind = type(found.method)
    found.pieces.method = found.method = kind(found.pieces.splits["train"].counts, config.options, epochs=2)
    found.pieces.model = found.method.build(torch.nn.Identity(), found.method.make_head("linear", width))
    stage = found.method.stages()[-1]
    found.stage = StageRun(stage, config, found.pieces, None, found.generator, None)
    found.stage.learner.train()
    return found


def measure(batch: int, width: int, classes: int, pairs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: trainer(name, Path(folder), batch, width, classes) for name in ("ce", "balms")}
        times: dict[str, list[float]] = {name: [] for name in runs}
        streams: dict[str, Any] = {}
        for number in range(pairs + 5):
            for name, run in runs.items():
                start = time.process_time()
                found = next(streams[name], None) if name in streams else None
                if found is None:  # an epoch has ended
                    streams[name] = run.stage.groups()
                    found = next(streams[name])
                run.optimise(*found)
                if number >= 5:
                    times[name].append(time.process_time() - start)
    ratios = [b / a for a, b in zip(times["ce"], times["balms"], strict=True)]
    return {
        "batch": batch, "features": width, "classes": classes, "pairs": pairs,
        "median_ms": {name: 1e3 * statistics.median(values) for name, values in times.items()},
        "ratio": statistics.median(ratios),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "meta_sampler.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [measure(512, width, 100, options.pairs) for width in (64, 512, 1280)]
    print("| features | plain step, ms | meta step, ms | ratio |\n|---|---|---|---|")
    for entry in results:
        plain, meta = entry["median_ms"].values()
        print(f"| {entry['features']} | {plain:.2f} | {meta:.2f} | {entry['ratio']:.2f} |")
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
