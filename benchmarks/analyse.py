"""What a diagnosis takes: time and memory at the sizes of ImageNet-LT and iNaturalist 2018, each in its own process.

    python benchmarks/analyse.py

The file of predictions is read, analysed, compared with a second one that has predicted classes only, and written as
JSON. Time is without imports. Memory is the peak of the whole process, imports and scores included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from data_sets import memory

from spectail.diagnosis import analyse, compare, make_predictions, read_predictions, summary

SIZES = {"ImageNet-LT": (1_000, 50), "iNaturalist 2018": (8_142, 3)}
LIMITS = {"ImageNet-LT": (15.0, None), "iNaturalist 2018": (60.0, 1_500)}  # seconds, MB


def write_predictions(path: Path, classes: int, each: int) -> None:
    """Scores of a model that favours frequent classes and mixes up neighbours, in blocks for the memory."""
    draw = np.random.default_rng(0)
    counts = np.maximum((1_000 * 0.002 ** (np.arange(classes) / (classes - 1))).astype(np.int64), 2)
    labels = draw.permutation(np.repeat(np.arange(classes), each))
    logits = np.empty((len(labels), classes), dtype=np.float32)
    for start in range(0, len(labels), 1_000):
        part = labels[start : start + 1_000]
        rows = np.arange(len(part))
        block = draw.standard_normal((len(part), classes), dtype=np.float32)
        block += 0.4 * np.log(counts).astype(np.float32)
        block[rows, part] += draw.normal(3.0, 2.0, len(part))
        block[rows, (part // 7 * 7) % classes] += draw.normal(2.0, 1.5, len(part))
        logits[start : start + 1_000] = block
    names = np.array([f"class {label}" for label in range(classes)])
    np.savez(path, logits=logits, labels=labels, class_names=names, class_counts=counts)


def run(path: Path, output: Path) -> dict[str, Any]:
    times = [time.perf_counter()]

    def lap() -> float:
        times.append(time.perf_counter())
        return round(times[-1] - times[-2], 2)

    base = memory("VmRSS")
    predictions = read_predictions(path)
    seconds = {"read": lap()}
    found = analyse(predictions)
    seconds["analyse"] = lap()
    rest = {"class_names": predictions.class_names, "class_counts": predictions.class_counts}
    moved = np.where(np.arange(len(predictions)) % 9, predictions.predicted, predictions.labels)
    compare([found, analyse(make_predictions(predictions.labels, moved, **rest))])
    seconds["second and comparison"] = lap()
    output.write_text(json.dumps(summary(found)))
    seconds["JSON"] = lap()
    return {
        "seconds": seconds,
        "total_seconds": round(times[-1] - times[0], 2),
        "imports_mb": round(base),
        "logits_mb": round(predictions.logits.nbytes / 2**20) if predictions.logits is not None else 0,
        "peak_mb": round(memory("VmHWM")),
        "overall": round(found.metrics["overall"], 2),
        "spectral_norm": round(found.metrics["spectral_norm"], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "analyse.json")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file:
        print(json.dumps(run(options.file, options.file.with_suffix(".json"))))
        return
    results: dict[str, Any] = {}
    print("| size | classes | test images | seconds, best | seconds, worst | peak MB | of it scores |")
    print("|---|---|---|---|---|---|---|")
    for name, (classes, each) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "predictions.npz"
            write_predictions(path, classes, each)
            environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
            command = [sys.executable, __file__, "--file", str(path)]
            runs = []
            for _ in range(options.rounds):
                answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                runs.append(json.loads(answer.stdout))
        totals = [entry["total_seconds"] for entry in runs]
        peak = max(entry["peak_mb"] for entry in runs)
        print(
            f"| {name} | {classes:,} | {classes * each:,} | {min(totals):.1f} | {max(totals):.1f} | {peak:,} "
            f"| {runs[0]['logits_mb']:,} |"
        )
        limit, most = LIMITS[name]
        kept = max(totals) <= limit and (most is None or peak <= most)
        results[name] = {"classes": classes, "test_images": classes * each, "within_limits": kept, "runs": runs}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
