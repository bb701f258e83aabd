"""What tuning a part of a network costs beside training all of it: step time, memory, share of the parameters.

All choices of ``--tune`` make their steps in turns on the same batch, one thread; the time of a step is that of the
processor, and a ratio is the median over the turns. Memory is the peak of the bytes in tensors, from before the network
is made to the end of its second AdamW step, as torch's profiler sees them allocated and freed.

    python benchmarks/tuning.py               ViT-S at 224 pixels, batch 8 (about 5 minutes)

``on one GPU`` is an estimate. Memory: 4 bytes for a weight, 8 more for one that is trained (Adam; gradients come as
activations go), and the rest of the peak measured here, which is activations, for a larger batch and halved by bf16.
Time: what spectail.experiments.devices says of a full step, times the ratio measured here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from spectail._utils import torchvision_ops  # noqa: F401 - before timm
from spectail.experiments.devices import TFLOPS, image_flops
from spectail.models.build import ModelConfig, build_model
from spectail.models.classifier import Classifier
from spectail.models.tuning import TuneConfig, tune
from spectail.training.config import OptimConfig
from spectail.training.optim import make_optimizer

CLASSES = 100
CHOICES = {
    "full": TuneConfig(),
    "lora": TuneConfig(tune="lora"),
    "lora, attention and MLP": TuneConfig(tune="lora", tune_targets=("attn", "mlp")),
    "adaptformer": TuneConfig(tune="adaptformer"),
    "bias": TuneConfig(tune="bias"),
    "norm": TuneConfig(tune="norm"),
    "head": TuneConfig(tune="head"),
}
GPU, GPU_BATCH = "rtx4090", 128


class Run:
    """A network, its optimiser and a batch."""

    def __init__(self, model: str, size: int, batch: int, choice: TuneConfig) -> None:
        torch.manual_seed(0)
        self.model: Classifier = build_model(ModelConfig(model, img_size=size), CLASSES)[0]
        self.tuned, self.total = tune(self.model, choice, size)
        self.model.train()
        self.optimizer = make_optimizer(self.model, OptimConfig())
        self.images, self.labels = torch.randn(batch, 3, size, size), torch.arange(batch) % CLASSES

    def step(self) -> float:
        start = time.process_time()
        F.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - start


def peak(*arguments: Any) -> int:
    """Most bytes in tensors at any moment of two steps, the network itself included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run = Run(*arguments)
        for _ in range(2):
            run.step()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure(model: str, size: int, batch: int, turns: int) -> dict[str, Any]:
    peaks = {name: peak(model, size, batch, choice) for name, choice in CHOICES.items()}
    runs = {name: Run(model, size, batch, choice) for name, choice in CHOICES.items()}
    for run in runs.values():
        run.step()
    times = [{name: run.step() for name, run in runs.items()} for _ in range(turns)]
    seconds = image_flops(model, size) * GPU_BATCH / (1e12 * TFLOPS[GPU]["bf16"])
    found = {}
    for name, run in runs.items():
        ratio = statistics.median(turn[name] / turn["full"] for turn in times)
        trained = sum(value.numel() for value in run.model.parameters() if value.requires_grad)
        static = 4 * size_of(run.model) + 8 * trained
        memory = static + (peaks[name] - static) / batch * GPU_BATCH / 2
        found[name] = {
            "trained of the backbone": run.tuned,
            "share": round(run.tuned / run.total, 5),
            "step seconds": round(statistics.median(turn[name] for turn in times), 3),
            "step against full": round(ratio, 3),
            "peak MB": round(peaks[name] / 2**20),
            "peak against full": round(peaks[name] / peaks["full"], 3),
            "on one GPU": {"GB": round(memory / 2**30, 1), "ms per step": round(1000 * seconds * ratio)},
        }
    how = {"model": model, "size": size, "batch": batch, "turns": turns, "GPU": GPU, "batch there": GPU_BATCH}
    return how | {"choices": found}


def size_of(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=11)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(given.model, given.size, given.batch, given.turns)
    path = Path(__file__).parent / "results" / "tuning.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{'--tune':26}{'trained':>11}{'share':>9}{'step':>8}{'ratio':>7}{'peak MB':>9}{'ratio':>7}")
    for name, row in found["choices"].items():
        print(
            f"{name:26}{row['trained of the backbone']:11,}{row['share']:9.2%}{row['step seconds']:8.2f}"
            f"{row['step against full']:7.2f}{row['peak MB']:9,}{row['peak against full']:7.2f}"
        )


if __name__ == "__main__":
    main()
