"""What the engine adds to a training step, beside a hand-written torch loop with the same model, data and optimiser.

Both make their steps in turns on the same batches, one thread. Reported: the median of the differences of the pairs, in
microseconds and as a share of the hand-written step; and what CAR adds to the engine's own step.

    python benchmarks/loop.py                 tiny MLP, and CIFAR ResNet-32 at batch 128 (about 4 minutes)
    python benchmarks/loop.py --models mlp
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectail.data.batch import Batch
from spectail.models.build import MODELS
from spectail.training.config_io import from_dict
from spectail.training.loop import Trainer
from spectail.training.reporter import Reporter
from spectail.training.run_folder import RunFolder
from spectail.training.signals import Interruptible
from spectail.training.stage_run import StageRun


class TinyMLP(nn.Module):
    num_features = 32

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 32), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layers(images)
        return found


MODELS["mlp"] = ("for this benchmark", lambda options: TinyMLP())
ENGINES: dict[str, dict[str, Any]] = {
    "engine": {},
    "engine + CAR": {"enabled": True},
    "engine + CAR class-wise": {"enabled": True, "preset": "classwise"},
}


def engine(model: str, car: dict[str, Any], folder: Path) -> Trainer:
    """A run that has begun its only stage and waits for steps."""
    content = {
        "output": str(folder / "-".join([model, *map(str, car.values())])),
        "device": "cpu",
        "model": {"model": model},
        "optim": {"optimizer": "sgd", "lr": 0.01, "weight_decay": 5e-4},
        "car": car,
    }
    interrupt = Interruptible().__enter__()
    config = from_dict(content)
    trainer = Trainer(config, RunFolder(config.output), Reporter(), interrupt)
    stage = trainer.stages[0]
    trainer.stage = StageRun(stage, config, trainer.pieces, trainer.car_term, trainer.generator, None)
    return trainer


def by_hand(model: nn.Module) -> Callable[[Batch], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def step(batch: Batch) -> None:
        loss = F.cross_entropy(model(batch.images), batch.labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    return step


def measure(model: str, pairs: int, folder: Path) -> dict[str, Any]:
    trainers = {name: engine(model, car, folder) for name, car in ENGINES.items()}
    first = trainers["engine"]
    steps: dict[str, Callable[[Batch], None]] = {"by hand": by_hand(copy.deepcopy(first.pieces.model).train())}

    def of(trainer: Trainer) -> Callable[[Batch], None]:
        figures = trainer.stage.figures

        def step(batch: Batch) -> None:
            trainer.optimise([{"main": batch}], len(batch.labels))
            trainer.reporter.step(trainer.stage.step.index, figures)

        trainer.stage.learner.train()
        return step

    steps |= {name: of(trainer) for name, trainer in trainers.items()}
    batches = [batch for batch in first.stage.main if len(batch.labels) == 128]
    entry: dict[str, Any] = {"pairs": pairs}
    for name in ENGINES:
        other = "by hand" if name == "engine" else "engine"
        times = _pairs(steps[other], steps[name], batches, pairs)
        gaps = [b - a for a, b in times]
        usual = statistics.median(a for a, _ in times)
        entry[f"{name} over {other}"] = {
            "microseconds": 1e6 * statistics.median(gaps),
            "share": statistics.median(gaps) / usual,
            "median_ms": [1e3 * usual, 1e3 * statistics.median(b for _, b in times)],
        }
    return entry


def _pairs(
    first: Callable[[Batch], None], second: Callable[[Batch], None], batches: list[Batch], pairs: int
) -> list[tuple[float, float]]:
    """Seconds of the two steps on the same batches, in turns."""
    times = []
    for place in range(pairs + 5):
        batch, marks = batches[place % len(batches)], [time.perf_counter()]
        for step in (first, second):
            step(batch)
            marks.append(time.perf_counter())
        times.append((marks[1] - marks[0], marks[2] - marks[1]))
    return times[5:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "resnet32"])
    parser.add_argument("--pairs", type=int, default=0, help="default: 1000 for mlp, 60 for resnet32")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "loop.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            results[model] = measure(model, options.pairs or (1000 if model == "mlp" else 60), Path(folder))
    print("| model | what | microseconds a step | share |\n|---|---|---|---|")
    for model, entry in results.items():
        for what, gap in entry.items():
            if isinstance(gap, dict) and "share" in gap:
                print(f"| {model} | {what} | {gap['microseconds']:,.0f} | {gap['share']:.1%} |")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
