"""What the HTML report costs: seconds and memory to analyse and write it, its size, and how fast it opens.

Predictions are made up, with frequent and rare classes and look-alikes, saved as .npz, and then read, analysed and
written in a process of their own; importing torch and matplotlib is counted apart. Chromium, where it is installed,
tells when the last script of the page has run.

    python benchmarks/report.py               50,000 images of 1,000 classes, 24,426 of 8,142 (about 2 minutes)
    python benchmarks/report.py --classes 1000
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

IMAGES = {100: 10_000, 1_000: 50_000, 8_142: 24_426}
LIMITS = {1_000: {"seconds": 15, "megabytes": 6, "interactive_ms": 2_000}, 8_142: {"seconds": 60, "peak_gb": 1.5}}
STEP = """
import json, resource, sys, time
from pathlib import Path
start = time.perf_counter()
from spectail.diagnosis.analysis import analyse
from spectail.report.page import write_report
from spectail.diagnosis.prediction_files import read_predictions
loaded = time.perf_counter()
analysis = analyse(read_predictions(sys.argv[1]))
analysed = time.perf_counter()
write_report([analysis], Path(sys.argv[2]))
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({
    "seconds": end - loaded, "read_and_analyse": analysed - loaded, "write": end - analysed, "import": loaded - start,
    "cpu_seconds": time.process_time(), "peak_gb": peak, "overall": analysis.metrics["overall"],
    "cells": None if analysis.confusion is None else int((analysis.confusion > 0).sum()),
}))
"""


def make_predictions(path: Path, classes: int, images: int) -> None:
    """Logits of a classifier that knows frequent classes better and mistakes classes of the same ten."""
    generator = np.random.default_rng(0)
    labels = np.arange(images) % classes
    counts = np.maximum((1280 * 256.0 ** (-np.arange(classes) / (classes - 1))).astype(np.int64), 5)
    known = 3 * np.log(counts[labels] / counts.min()) / np.log(counts.max() / counts.min())
    logits = np.empty((images, classes), dtype=np.float32)
    for start in range(0, images, 1024):
        rows = np.arange(start, min(start + 1024, images))
        logits[rows] = generator.standard_normal((len(rows), classes), dtype=np.float32)
        for shift in range(10):
            logits[rows, (labels[rows] // 10 * 10 + shift) % classes] += 1.5
        logits[rows, labels[rows]] += known[rows]
    names = [f"class {label:04d} of a made-up set" for label in range(classes)]
    np.savez(path, logits=logits, labels=labels, class_names=names, class_counts=counts)


def time_to_interactive(page: Path, repeats: int = 3) -> float | None:
    """Milliseconds from the start of loading until the last script has run, the median; None without Chromium."""
    driver_path, browser = shutil.which("chromedriver"), shutil.which("chromium")
    if driver_path is None or browser is None:
        return None
    from selenium import webdriver  # noqa: PLC0415 - not needed for the rest

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
                     "disable-background-networking", "disable-component-update", "disable-dev-shm-usage",
                     f"user-data-dir={profile}"):  # fmt: skip
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
        try:
            found = []
            for _ in range(repeats):
                driver.get(page.resolve().as_uri())
                found.append(float(driver.execute_script("return document.documentElement.dataset.ready")))
        finally:
            driver.quit()
    return sorted(found)[len(found) // 2]


def measure(classes: int, folder: Path) -> dict[str, Any]:
    source, page = folder / "predictions.npz", folder / "report.html"
    make_predictions(source, classes, IMAGES[classes])
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(source), str(page)], check=True, capture_output=True, text=True
    )
    entry: dict[str, Any] = {"images": IMAGES[classes], **json.loads(done.stdout)}
    entry["megabytes"] = page.stat().st_size / 1e6
    entry["interactive_ms"] = time_to_interactive(page)
    entry["limits"] = LIMITS.get(classes, {})
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", choices=IMAGES, default=[1_000, 8_142])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "report.json")
    options = parser.parse_args()
    results = {}
    for classes in options.classes:
        with tempfile.TemporaryDirectory() as folder:
            results[str(classes)] = measure(classes, Path(folder))
    print("| classes | images | seconds | peak GB | HTML MB | interactive after ms |\n|---|---|---|---|---|---|")
    for name, entry in results.items():
        ready = "no Chromium" if entry["interactive_ms"] is None else f"{entry['interactive_ms']:.0f}"
        print(f"| {int(name):,} | {entry['images']:,} | {entry['seconds']:.1f} | {entry['peak_gb']:.2f} "
              f"| {entry['megabytes']:.2f} | {ready} |")  # fmt: skip
    over = [f"{name} classes: {key} {entry[key]:.1f} over {limit}" for name, entry in results.items()
            for key, limit in entry["limits"].items() if entry[key] is not None and entry[key] > limit]  # fmt: skip
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    if over:
        sys.exit("over the limit: " + "; ".join(over))


if __name__ == "__main__":
    main()
