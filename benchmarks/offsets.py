"""How much better a constant for each class could do than one shift, if the errors on test images were known.

    python benchmarks/offsets.py "cross entropy, fine-tuned=RUN/predictions.npz" ...

Both are fitted to four fifths of the test images and judged on the rest, in turns, by the code of `spectail adjust`.
This is analysis: nobody can choose so. What it finds is about as much as favouring some classes over others can give.
For the lowest tenth of the classes, overall accuracy and tail are held at those of the best shift.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from spectail import ClassCounts
from spectail.diagnosis.prediction_files import read_predictions
from spectail.diagnosis.predictions import Predictions
from spectail.fit.adjust import NOTHING, OFFSETS, TAU, Fitter, cut
from spectail.fit.describe import describe
from spectail.fit.goals import Goal

RESULTS = Path(__file__).parent / "results" / "offsets.json"
FIGURES = {"overall": "balanced", "tail": "tail", "lowest 10 %": "lowest 10 %"}
FOLDS = 5


def cross_fitted(found: Predictions, kinds: tuple[str, ...], goal: Goal) -> dict[str, float]:
    """Figures of the best of these kinds of adjustment, each fold adjusted by what the others say."""
    counts = ClassCounts(found.class_counts)
    fitter, parts = Fitter(found.logits, found.labels, counts, goal, 0), cut(found.labels, FOLDS, 0)
    results = []
    for kind in kinds:
        moved = np.empty_like(found.logits)
        for fold in range(FOLDS):
            offsets, _ = fitter.fit(kind, np.flatnonzero(parts != fold))
            moved[parts == fold] = found.logits[parts == fold] + offsets.astype(np.float32)
        figures = describe(moved, found.labels, counts, Goal())
        results.append({name: float(figures[key] or 0.0) for name, key in FIGURES.items()})
    aim = "lowest 10 %" if goal.name == "lowest10" else "overall"
    return max(results, key=lambda figures: figures[aim])


def measure(path: Path) -> dict[str, dict[str, float]]:
    found = read_predictions(path)
    shifted = cross_fitted(found, (TAU,), Goal())
    kept = (("balanced", shifted["overall"]), ("tail", shifted["tail"]))
    return {
        "as trained": cross_fitted(found, (NOTHING,), Goal()),
        "best shift": shifted,
        "offsets for overall": cross_fitted(found, OFFSETS, Goal()),
        "offsets for lowest 10 %": cross_fitted(found, OFFSETS, Goal("lowest10", kept)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("predictions", nargs="+", metavar="NAME=FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for entry in options.predictions:
        name, _, path = entry.rpartition("=")
        known[name] = measure(Path(path))
        print(name, known[name], flush=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
