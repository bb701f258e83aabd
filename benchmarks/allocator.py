"""A training step on a CPU that takes its memory from what was freed, beside the system's way of new pages each time.

Each way has processes of its own, which take turns. Reported are processor seconds of the median step, their ratio, and
the largest memory of a process. It is about glibc, so Linux.

    OMP_NUM_THREADS=1 python benchmarks/allocator.py [--rounds 3] [--steps 12] [--models resnet32 ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from memory_format import SIZES, step_of

from spectail.models.build import ModelConfig, build_model
from spectail.training.hardware import in_fast_format, keep_freed_memory

RESULTS = Path(__file__).parent / "results" / "allocator.json"
WAYS = ("system", "kept")


def child(name: str, way: str, steps: int) -> None:
    if way == "kept":
        keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pixels, size = SIZES[name]
    model, _ = build_model(ModelConfig(model=name, img_size=pixels), 100)
    run = step_of(in_fast_format(model, torch.device("cpu")))
    seconds = []
    for turn in range(steps + 3):
        images = torch.randn(size, 3, pixels, pixels, generator=torch.Generator().manual_seed(turn))
        began = time.process_time()
        run(images)
        seconds.append(time.process_time() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"ms": 1e3 * statistics.median(seconds[3:]), "memory_mb": memory}))


def compare(name: str, rounds: int, steps: int) -> dict[str, float]:
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "--child", way, "--models", name, "--steps", str(steps)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[way].append(json.loads(done.stdout))
    result = {}
    for key in ("ms", "memory_mb"):
        least = {way: min(one[key] for one in found[way]) for way in WAYS}
        result |= {f"{way}_{key}": round(value, 1) for way, value in least.items()}
        result[f"{key}_ratio"] = round(least["kept"] / least["system"], 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--models", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.models[0], options.child, options.steps)
        return
    found = {"threads": 1, "torch": torch.__version__, "models": {}}
    for name in options.models:
        found["models"][name] = compare(name, options.rounds, options.steps)
        print(name, found["models"][name], flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
