"""How much better a constant for each class could do than one shift, if the errors on test images were known.

    python benchmarks/offsets.py "cross entropy, fine-tuned=RUN/predictions.npz" ...

Both are fitted to four fifths of the test images and judged on the rest, in turns, by the code of `spectail adjust`.
This is analysis: nobody can choose so. What it finds is about as much as favouring some classes over others can give.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from spectail.diagnosis.prediction_files import read_predictions
from spectail.fit.adjust import NOTHING, OFFSETS, TAU, choose_adjustment
from spectail.fit.goals import Goal

RESULTS = Path(__file__).parent / "results" / "offsets.json"
GOALS = ("balanced", "lowest10")


def measure(path: Path) -> dict[str, dict[str, float]]:
    found = read_predictions(path)
    rows = {}
    for goal in GOALS:
        _, table = choose_adjustment(found.logits, found.labels, found.class_counts, Goal.parse(goal))
        best = max(table.scores[kind] for kind in OFFSETS)
        rows[goal] = {"as trained": table.scores[NOTHING], "shift": table.scores[TAU], "offsets": best}
    return rows


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
