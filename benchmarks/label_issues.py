"""How many of the labels that `fit` calls wrong are wrong: 5 % of the labels are flipped on purpose, then looked for.

    python benchmarks/label_issues.py [--features FILE]

Data: the digits of scikit-learn (long-tailed), a mixture of Gaussians, characters of glyphs-lt as histograms of edge
directions and as raw pixels (features too weak to judge labels by: nothing should be listed), and the X and y of a .npz
file. Labels are flipped to any other class alike, or to classes in proportion to their size; without flips, all that is
listed is a false alarm. Heads are cross-fitted as in `fit`. Where cleanlab is installed, its list is judged beside.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spectail.data.folds import make_folds
from spectail.fit.advice import advise
from spectail.fit.candidates import trainings
from spectail.fit.crossfit import CrossFit, Table, cross_fit
from spectail.fit.goals import Goal
from spectail.training.config import TrainConfig

try:
    from cleanlab.filter import find_label_issues as cleanlab_issues
except ImportError:
    cleanlab_issues = None

FLIPPED, FIRST, TARGET = 0.05, 50, 0.7
WEAK = "glyphs, pixels"
LADDER = (250, 500, 1_000)


def long_tailed(features: Any, labels: Any, factor: float) -> tuple[Any, Any]:
    draw, classes = np.random.default_rng(0), int(labels.max()) + 1
    most = np.bincount(labels).min()
    kept = [
        draw.permutation(np.flatnonzero(labels == label))[: max(4, int(most * factor ** (-label / (classes - 1))))]
        for label in range(classes)
    ]
    chosen = np.sort(np.concatenate(kept))
    return features[chosen], labels[chosen]


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits  # noqa: PLC0415

    data = load_digits()
    return long_tailed(data.data, data.target, 4.0)


def mixture() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    centres, labels = 1.1 * draw.normal(size=(30, 32)), np.repeat(np.arange(30), 200)
    return long_tailed(centres[labels] + draw.normal(size=(len(labels), 32)), labels, 50.0)


def glyphs() -> tuple[Any, Any]:
    from spectail.data import load  # noqa: PLC0415

    data = load("glyphs-lt", num_classes=40, max_per_class=200, imbalance=50.0).train
    pixels = [np.asarray(data.images.read(at).convert("L"), dtype=np.float64) for at in range(len(data))]
    return np.stack(pixels) / 255, data.labels


def pixels() -> tuple[Any, Any]:
    images, labels = glyphs()
    return images.reshape(len(images), -1), labels


def edges() -> tuple[Any, Any]:
    """Histograms of nine edge directions in cells of 4 x 4 pixels, each image of the same length."""
    images, labels = glyphs()
    down, across = np.gradient(images, axis=(1, 2))
    size, angle = np.hypot(down, across), np.arctan2(down, across) % np.pi
    layers = [size * (np.floor(angle / np.pi * 9 - 1e-9) == place) for place in range(9)]
    cells = [layer.reshape(len(images), 8, 4, 8, 4).sum((2, 4)).reshape(len(images), -1) for layer in layers]
    found = np.sqrt(np.concatenate(cells, axis=1))
    return found / np.linalg.norm(found, axis=1, keepdims=True), labels


def flip(labels: Any, how: str, seed: int) -> Any:
    draw, given = np.random.default_rng(seed), labels.copy()
    sizes = np.bincount(labels).astype(float)
    for at in draw.permutation(len(labels))[: round(FLIPPED * len(labels)) if how != "none" else 0]:
        weights = sizes.copy() if how == "by size" else np.ones_like(sizes)
        weights[labels[at]] = 0
        given[at] = draw.choice(len(sizes), p=weights / weights.sum())
    return given


def mean(values: Any) -> float | None:
    return round(float(np.mean(values)), 3) if len(values) else None


def judged(wrong: Any, places: Any) -> dict[str, Any]:
    return {
        "listed": len(places),
        "precision_first_50": mean(wrong[places[:FIRST]]),
        "precision": mean(wrong[places]),
        "found": round(float(wrong[places].sum() / max(wrong.sum(), 1)), 3),
    }


def measure(features: Any, labels: Any, how: str, seed: int) -> dict[str, Any]:
    labels = labels.astype(np.int64)
    given = flip(labels, how, seed)
    scaled = ((features - features.mean(0)) / (features.std(0) + 1e-6)).astype(np.float32)
    names = tuple(str(label) for label in range(int(labels.max()) + 1))
    training = next(one for one in trainings(features.shape[1]) if one.features == "standard" and one.decay)
    table = Table(scaled, given, names)
    fit = CrossFit(given, table.counts, make_folds(given, 5, seed))
    cross_fit(fit, table, [training], TrainConfig(seed=seed), Goal(), ladder=LADDER)
    logits = fit.fitted[training.title].logits
    advice = advise(logits, given, names, table.counts)
    places, wrong = np.array([issue.position for issue in advice.label_issues], dtype=np.int64), given != labels
    known = ~np.isnan(logits[:, 0])
    row = {
        "flips": how,
        "seed": seed,
        "flipped": int(wrong.sum()),
        "recognised_percent": round(100 * float((logits[known].argmax(1) == labels[known]).mean()), 1),
        "wrong_share_percent": None if advice.wrong_share is None else round(advice.wrong_share, 2),
        "mean_confidence": mean([one.confidence for one in advice.label_issues]),
        "suggestion_right": mean([one.suggested == names[labels[one.position]] for one in advice.label_issues[:FIRST]]),
        **judged(wrong, places),
    }
    if cleanlab_issues is not None:
        scores = torch.from_numpy(logits[known]).double().softmax(1).numpy()
        by_theirs = cleanlab_issues(given[known], scores, return_indices_ranked_by="self_confidence", n_jobs=1)
        row["cleanlab"] = judged(wrong, np.flatnonzero(known)[by_theirs])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, help="a .npz file with X and y to measure too")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "label_issues.json")
    arguments = parser.parse_args()
    sets: dict[str, Callable[[], tuple[Any, Any]]] = {
        "digits": digits, "mixture": mixture, "glyphs, edges": edges, WEAK: pixels,
    }  # fmt: skip
    if arguments.features:
        with np.load(arguments.features) as file:
            arrays = file["X"], file["y"]
        sets[arguments.features.stem] = lambda: arrays
    results: dict[str, Any] = {"target": f"precision of {TARGET} among the first {FIRST}"}
    for name, make in sets.items():
        features, labels = make()
        rows = [measure(features, labels, how, seed) for seed in range(arguments.seeds)
                for how in ("none", "any class", "by size")]  # fmt: skip
        reached = [row["precision_first_50"] >= TARGET for row in rows if row["flipped"] and row["listed"]]
        results[name] = {
            "images": len(labels),
            "classes": int(labels.max()) + 1,
            "reached": all(reached) if reached else None,
            "runs": rows,
        }
        for row in rows:
            print(name, json.dumps(row), flush=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
