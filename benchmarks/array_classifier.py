"""LongTailClassifier beside scikit-learn's LogisticRegression on an array: time, and accuracy on balanced test rows.

    python benchmarks/array_classifier.py                       50,000 x 768, 100 classes, imbalance 100, three seeds
    python benchmarks/array_classifier.py --rows 5000 --seeds 0 a quick look; nothing is written

Both see the same rows, one after the other in one process, with the same number of threads. LogisticRegression has
``class_weight="balanced"``, standardised features, its default ``C``, and as many iterations as its tolerance asks for.
The data are a mixture: classes come in groups of five that lie close together, directions differ in variance as those
of embeddings do, and classes overlap. ``overlap`` is the length of the noise: with 1.5 more than half of the balanced
test rows are right, with 1.0 six of seven. The seed changes everything about the data. Processor time is given beside
wall time, because on a machine with other work the ratio of processor times is what can be trusted.
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
import sklearn
import torch
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from spectail.sklearn import LongTailClassifier

RESULTS = Path(__file__).parent / "results" / "array_classifier.json"
CLASSES, WIDTH, IMBALANCE, TEST = 100, 768, 100, 50
MOST = 5_000
MAKERS: dict[str, Callable[[], BaseEstimator]] = {
    "car-balanced": lambda: LongTailClassifier("car-balanced"),
    "logistic regression": lambda: make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=MOST)
    ),
}


def mixture(seed: int, rows: int, overlap: float) -> tuple[Any, Any, Any, Any]:
    """Long-tailed training rows and balanced test rows, with their labels."""
    random = np.random.default_rng(seed)
    share = IMBALANCE ** (-np.arange(CLASSES) / (CLASSES - 1))
    counts = np.maximum(np.round(rows * share / share.sum()).astype(int), 1)
    counts[0] += rows - counts.sum()
    deviation = (1 + np.arange(WIDTH)) ** -0.5
    groups = random.normal(size=(CLASSES // 5, WIDTH)).repeat(5, axis=0)
    means = random.permutation(0.8 * groups + 0.6 * random.normal(size=(CLASSES, WIDTH)))
    means *= deviation / (1 + np.arange(WIDTH) / 30)  # classes differ in the leading directions above all
    turn = np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0].astype(np.float32)

    def draw(counts: Any) -> tuple[Any, Any]:
        labels = np.repeat(np.arange(CLASSES), counts)
        noise = random.standard_normal((len(labels), WIDTH), dtype=np.float32) * (overlap * deviation)
        return (means[labels] + noise).astype(np.float32) @ turn, labels

    return *draw(counts), *draw(np.full(CLASSES, TEST))


def measure(maker: Callable[[], BaseEstimator], data: tuple[Any, Any, Any, Any]) -> dict[str, float]:
    """Seconds of `fit` by the clock and by the processor, accuracy in percent, steps or iterations."""
    X, y, unseen, labels = data
    model = maker()
    clock, processor = time.perf_counter(), time.process_time()
    model.fit(X, y)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    last = model[-1] if hasattr(model, "steps") else model
    accuracy = 100 * balanced_accuracy_score(labels, model.predict(unseen))
    iterations = int(np.max(last.n_iter_))
    assert iterations < MOST or last is model
    return {"seconds": clock, "processor": processor, "accuracy": accuracy, "iterations": iterations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--overlap", type=float, nargs="+", default=[1.5, 1.0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    threadpool_limits(arguments.threads)  # of numpy and scipy
    runs = []
    for overlap in arguments.overlap:
        for seed in arguments.seeds:
            data = mixture(seed, arguments.rows, overlap)
            for name, maker in MAKERS.items():
                runs.append({"overlap": overlap, "seed": seed, "model": name, **measure(maker, data)})
                print(json.dumps(runs[-1]), flush=True)
    summary = {}
    for overlap in arguments.overlap:
        ours, theirs = ([one for one in runs if (one["overlap"], one["model"]) == (overlap, name)] for name in MAKERS)
        pairs = list(zip(ours, theirs, strict=True))
        summary[str(overlap)] = {
            f"slowest of car-balanced, {kind}": max(one[kind] for one in ours) for kind in ("seconds", "processor")
        } | {
            "smallest ratio, seconds": min(b["seconds"] / a["seconds"] for a, b in pairs),
            "smallest ratio, processor": min(b["processor"] / a["processor"] for a, b in pairs),
            "mean accuracy": {
                name: statistics.mean(one["accuracy"] for one in group)
                for name, group in zip(MAKERS, (ours, theirs), strict=True)
            },
        }
    print(json.dumps(summary, indent=2))
    if arguments.rows == 50_000 and len(arguments.seeds) >= 3:
        about = {"rows": arguments.rows, "width": WIDTH, "classes": CLASSES, "imbalance": IMBALANCE,
                 "threads": arguments.threads, "torch": torch.__version__, "scikit-learn": sklearn.__version__,
                 "machine": platform.machine()}  # fmt: skip
        RESULTS.write_text(json.dumps({"setting": about, "summary": summary, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
