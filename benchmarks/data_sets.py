"""What it takes to get a data set: time and memory, beside the plain way, each in a process of its own.

    python benchmarks/data_sets.py                        list of 437,513 lines, glyphs-lt
    python benchmarks/data_sets.py --cifar100 $CIFAR100   and CIFAR-100-LT from parquet files, with its training batches

Time is without imports. Memory is the rise of the peak over what the imports take.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

import spectail.data.sets.glyphs_lt  # noqa: F401 - it is loaded by name, and imports are not what is measured
from spectail.data import LongTailSampler, exponential, load
from spectail.data.loader import Loader
from spectail.data.longtail import select
from spectail.data.sets.lists import check_inside, read_list
from spectail.data.sets.source import as_class_ids
from spectail.data.transforms import preset

LINES, CLASSES = 437_513, 8_142
CASES = ["list", "list, plain", "glyphs-lt", "glyphs-lt, cached"]
CIFAR_CASES = ["cifar100-lt", "cifar100-lt, plain", "cifar100-lt, cached", "cifar100-lt, batches"]


def write_list(path: Path) -> None:
    """A list as long and as uneven as iNaturalist 2018's."""
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.arange(CLASSES), generator.zipf(1.6, 3 * LINES) % CLASSES])[:LINES]
    names = (f"train_val2018/Plantae/{label}/{n:032x}.jpg {label}\n" for n, label in enumerate(labels.tolist()))
    path.write_text("".join(names))


def index_list(folder: Path) -> str:
    paths, labels = read_list(folder / "list.txt")
    check_inside(paths, folder, folder / "list.txt")
    _, names = as_class_ids({"train": labels}, None, remap=False, where="list")
    return f"{len(paths):,} images, {len(names):,} classes"


def index_list_plainly(folder: Path) -> str:
    """A list of (path, label) pairs, as image-folder readers keep them."""
    samples = []
    for line in (folder / "list.txt").read_text().splitlines():
        path, label = line.rsplit(maxsplit=1)
        samples.append((os.path.join(folder, path), int(label)))
    return f"{len(samples):,} images"


def load_set(name: str, root: Path | None = None) -> str:
    data = load(name, root=root)
    return f"{len(data.train):,} + {len(data.test):,} images, identity {data.manifest.identity}"


def load_cifar_plainly(root: Path) -> str:
    """Every row as a Python object, decoded one by one, then the subset."""
    total = 0
    for split in ("train", "test"):
        rows = pq.read_table(next(root.glob(f"*{split}*.parquet"))).to_pylist()
        label = next(name for name in ("fine_label", "label") if name in rows[0])
        image = next(name for name in ("img", "image") if name in rows[0])
        pixels = np.stack([np.asarray(Image.open(io.BytesIO(row[image]["bytes"])).convert("RGB")) for row in rows])
        labels = np.array([row[label] for row in rows])
        kept = select(labels, exponential(500, 100, 100))[0] if split == "train" else np.arange(len(labels))
        total += len(pixels[kept])
    return f"{total:,} images"


def train_batches(root: Path) -> str:
    """Images per second of the loader with the training transform, over five epochs."""
    torch.set_num_threads(2)
    data = load("cifar100-lt", root=root)
    loader = Loader(data.train, preset("cifar"), sampler=LongTailSampler(data.train.labels), batch_size=128)
    rates = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        start = time.perf_counter()
        images = sum(len(batch.labels) for batch in loader)
        rates.append(images / (time.perf_counter() - start))
    rates = sorted(rates[1:])
    return f"images/s: slowest {rates[0]:,.0f}, median {rates[2]:,.0f}, fastest {rates[-1]:,.0f}"


def run(case: str, folder: Path, cifar: Path | None) -> dict[str, Any]:
    work: dict[str, Callable[[], str]] = {
        "list": lambda: index_list(folder),
        "list, plain": lambda: index_list_plainly(folder),
        "glyphs-lt": lambda: load_set("glyphs-lt"),
        "glyphs-lt, cached": lambda: load_set("glyphs-lt"),
    }
    if cifar is not None:
        work |= {
            "cifar100-lt": lambda: load_set("cifar100-lt", cifar),
            "cifar100-lt, plain": lambda: load_cifar_plainly(cifar),
            "cifar100-lt, cached": lambda: load_set("cifar100-lt", cifar),
            "cifar100-lt, batches": lambda: train_batches(cifar),
        }
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far was that of the imports
    start = time.perf_counter()
    result = work[case]()
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 2), "peak_mb": round(memory("VmHWM") - before), "result": result}


def memory(name: str) -> float:
    """Megabytes that the process has (VmRSS), or had at most (VmHWM). Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar100", type=Path, help="folder with the parquet files of CIFAR-100")
    parser.add_argument("--rounds", type=int, default=3, help="best of so many; caches are cleared in between")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "data_sets.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run(options.case, options.folder, options.cifar100)))
        return
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_list(folder / "list.txt")
        for number in range(options.rounds):
            environment = {**os.environ, "SPECTAIL_CACHE": str(folder / f"cache{number}")}
            for case in CASES + (CIFAR_CASES if options.cifar100 else []):
                command = [sys.executable, __file__, "--case", case, "--folder", name]
                command += ["--cifar100", str(options.cifar100)] if options.cifar100 else []
                answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                results.setdefault(case, []).append(json.loads(answer.stdout))
    print("| what | seconds, best | seconds, worst | peak MB | result |\n|---|---|---|---|---|")
    for case, runs in results.items():
        seconds = [entry["seconds"] for entry in runs]
        peak = max(entry["peak_mb"] for entry in runs)
        print(f"| {case} | {min(seconds):.2f} | {max(seconds):.2f} | {peak:,} | {runs[-1]['result']} |")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
