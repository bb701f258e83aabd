"""A training step and a forward pass on a CPU with the network in channels_last, beside the usual format.

Both formats take the same batches in turns; reported is the least time of each and their ratio.

    python benchmarks/memory_format.py [--threads 1] [--rounds 8] [--models resnet32 ...]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from spectail.models.build import ModelConfig, build_model

SIZES = {
    "small-cnn": (32, 64), "resnet32": (32, 128), "small-vit": (32, 64), "tf_efficientnet_lite0": (64, 64),
    "resnet50": (64, 32), "mobilenetv3_small_100": (128, 32), "convnext_atto": (64, 32),
}  # fmt: skip
"""Pixels and images in a batch."""
RESULTS = Path(__file__).parent / "results" / "memory_format.json"


def step_of(model: nn.Module) -> Callable[[torch.Tensor], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(images: torch.Tensor) -> None:
        model.train()
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward_of(model: nn.Module) -> Callable[[torch.Tensor], None]:
    @torch.no_grad()
    def forward(images: torch.Tensor) -> None:
        model.eval()(images)

    return forward


def compare(name: str, rounds: int) -> dict[str, float]:
    pixels, size = SIZES[name]
    found = {}
    for kind, made in (("step", step_of), ("forward", forward_of)):
        least = {}
        runs = {}
        for form in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(0)
            model, _ = build_model(ModelConfig(model=name, img_size=pixels), 100)
            runs[form] = made(model.to(memory_format=form))
            least[form] = float("inf")
        for turn in range(rounds):
            images = torch.randn(size, 3, pixels, pixels, generator=torch.Generator().manual_seed(turn))
            for form, run in runs.items():
                began = time.perf_counter()
                run(images)
                least[form] = min(least[form], time.perf_counter() - began)
        usual, last = least[torch.contiguous_format], least[torch.channels_last]
        found[kind] = {"usual_ms": round(1e3 * usual, 2), "channels_last_ms": round(1e3 * last, 2),
                       "ratio": round(last / usual, 3)}  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {"threads": options.threads, "torch": torch.__version__, "models": {}}
    for name in options.models:
        found["models"][name] = compare(name, options.rounds)
        print(name, found["models"][name], flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
