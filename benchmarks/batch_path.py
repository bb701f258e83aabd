"""Images per second of the whole-batch path, beside the same recipe image by image.

Both run in one process, in turns, on the same random 32 x 32 images in memory. The whole-batch path does everything a
training step needs: random numbers, gather, crop, flip, normalise to float32. The other side is what a
worker of a data loader does: for each item a PIL image from the array and torchvision's transforms, then a stack.

    python benchmarks/batch_path.py                      the table, in half a minute
    python benchmarks/batch_path.py --threads 1
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spectail.data.transforms import preset

from torchvision.transforms import v2  # isort: skip

Maker = Callable[[np.ndarray], Tensor]


def makers(pixels: np.ndarray, seed: int) -> dict[str, dict[str, Maker]]:
    """For each recipe, both ways to make a batch from indices."""
    cifar, rng = preset("cifar"), np.random.default_rng(seed)
    assert cifar.batch_train is not None
    stored = cifar.batch_train.prepare(pixels)

    def whole(transform: Any) -> Maker:
        return lambda rows: transform(stored, rows, transform.draws(len(rows), rng))

    def single(transform: Any) -> Maker:
        return lambda rows: torch.stack([transform(Image.fromarray(pixels[row])) for row in rows])

    _rgb, _resize, crop, flip, *rest = cifar.train.transforms  # the first two have nothing to do here
    return {
        "cifar": {"whole batch": whole(cifar.batch_train), "image by image": single(v2.Compose([crop, flip, *rest]))},
    }


def measure(ways: dict[str, Maker], images: int, batch: int, rounds: int, repeats: int, seed: int) -> dict[str, Any]:
    """Best and median images per second of each way. A round is ``repeats`` whole batches and one image by image."""
    rng = np.random.default_rng(seed)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for step in range(rounds + 2):
        for name, make in ways.items():
            for _ in range(repeats if name == "whole batch" else 1):
                rows = rng.integers(0, images, batch)
                start = time.perf_counter()
                result = make(rows)
                elapsed = time.perf_counter() - start
                assert result.shape == (batch, 3, 32, 32)
                if step >= 2:  # two rounds to warm up
                    times[name].append(elapsed)
    entry: dict[str, Any] = {
        name: {
            "batches": len(values),
            "best": batch / min(values),
            "median": batch / statistics.median(values),
            "overall": batch * len(values) / sum(values),
        }
        for name, values in times.items()
    }
    slow, fast = entry["image by image"], entry["whole batch"]
    entry["ratio"] = {key: fast[key] / slow[key] for key in ("best", "median", "overall")}
    return entry


def table(recipes: dict[str, Any]) -> str:
    lines = ["| recipe | way | images/s, best | images/s, median | ratio (median) |", "|---|---|---|---|---|"]
    for recipe, entry in recipes.items():
        for name in ("whole batch", "image by image"):
            ratio = f"{entry['ratio']['median']:.0f}" if name == "whole batch" else ""
            lines.append(f"| {recipe} | {name} | {entry[name]['best']:,.0f} | {entry[name]['median']:,.0f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_847, help="as many as CIFAR-100-LT with factor 100 has")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10, help="whole batches for every batch image by image")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "batch_path.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    pixels = np.random.default_rng(options.seed).integers(0, 256, (options.images, 32, 32, 3), dtype=np.uint8)
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        **{name: getattr(options, name) for name in ("images", "batch", "threads", "rounds", "repeats", "seed")},
        "recipes": {
            recipe: measure(ways, options.images, options.batch, options.rounds, options.repeats, options.seed)
            for recipe, ways in makers(pixels, options.seed).items()
        },
    }
    print(table(report["recipes"]))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    partial = options.output.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(options.output)


if __name__ == "__main__":
    main()
