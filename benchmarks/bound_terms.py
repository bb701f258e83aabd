"""The two terms of the bound along a training: the soft error on the training set, and the norm of a linear head.

    python benchmarks/bound_terms.py scratch
    python benchmarks/bound_terms.py frozen fine-tuned --root $CIFAR100 --init $WEIGHTS

CAR measures the error, class by class, after each epoch, and `docs/make_results.py` shows it from
docs/evidence/curves/training-confusion.csv. Balanced Softmax is `car-balanced` with alpha 0 and tau 1, so that CAR only
measures: all methods are measured on the logits of their own loss, with the same margin. Data, networks and optimisers
are those of `spectail experiment run decay` and of `purpose --scale complete`; heads all have the same length.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from spectail.experiments.cells import Cell
from spectail.experiments.grids import OWN
from spectail.experiments.runs import Run
from spectail.experiments.scales import Overrides, sized
from spectail.models.weights import read_weights
from spectail.training.loop import train
from spectail.training.run_folder import RunFolder

CURVES = Path(__file__).parents[1] / "docs" / "evidence" / "curves" / "training-confusion.csv"
TERMS = CURVES.with_name("bound-terms.csv")
GROUPS = ("head", "medium", "tail")
LENGTH = 24
"""Epochs of a head, the same for all."""
Line: TypeAlias = dict[str, Any]
METHODS = ("Balanced Softmax", "car-balanced", "car-worst")
HEAD = "head.weight"


def cells(setting: str) -> Iterator[Cell]:
    dataset, start = ("glyphs-lt", "scratch") if setting == "scratch" else ("cifar100-lt", "pretrained")
    for cell in OWN["decay" if setting == "frozen" else "purpose"].cells():
        name = cell.label.partition(",")[0]
        if (cell.dataset, cell.setting) == (dataset, start) and name in METHODS and "alpha" not in cell.label:
            yield cell


def measured(cell: Cell) -> Cell:
    """The same training, with CAR looking on."""
    changes = (*cell.changes, ("log_cm_gap", True))
    if cell.method == "balanced-softmax":
        silent = (("options.tau", 1.0), ("car.alpha", 0.0))
        cell = replace(cell, method="car-balanced/balanced")
        changes = (*changes, *silent)
    return replace(cell, changes=changes)


def run_of(setting: str, cell: Cell, seed: int, init: Path | None) -> Run:
    if setting == "frozen":
        overrides = Overrides(model="tf_efficientnet_lite0", init=init, img_size=128, epochs=LENGTH)
        return Run(cell, "quick", sized(cell, "quick", overrides), seed)
    overrides = Overrides(init=init) if setting == "fine-tuned" else None
    return Run(cell, "complete", sized(cell, "complete", overrides), seed)


def measure(setting: str, cell: Cell, seed: int, options: argparse.Namespace) -> tuple[list[Line], Line]:
    """The error by epoch, and the terms at the end."""
    run = run_of(setting, measured(cell), seed, options.init)
    folder = options.folder / run.name
    changes: dict[str, Any] = {"device": "cpu"}
    if options.root is not None and setting != "scratch":
        changes["data"] = {"root": str(options.root)}
    results = train(run.config(folder, **changes), resume=True)
    name, _, decay = cell.label.partition(", decay ")
    what = {"setting": setting, "weight decay": decay, "method": name, "seed": seed}
    curve = [
        what | {"epoch": entry["epoch"] + 1} | {group: round(entry[f"confusion_{group}"], 5) for group in GROUPS}
        for entry in RunFolder(folder).curves()
        if "confusion_tail" in entry
    ]
    norm = round(float(read_weights(folder)[HEAD].norm()), 3) if setting == "frozen" else ""
    last = {f"training {group}": curve[-1][group] for group in GROUPS}
    return curve, what | last | {"norm": norm} | {name: results[name] for name in ("overall", *GROUPS)}


def written(path: Path, lines: list[Line]) -> None:
    """Add lines to a file of evidence; those of the same training replace what was there."""
    old = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
    key = ("setting", "weight decay", "method", "seed")
    new = {tuple(str(line[name]) for name in key) for line in lines}
    kept = [line for line in old if tuple(line[name] for name in key) not in new]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="+", choices=("frozen", "scratch", "fine-tuned"))
    parser.add_argument("--root", type=Path, help="folder of CIFAR-100")
    parser.add_argument("--init", type=Path, help="weights of tf_efficientnet_lite0")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/bound-terms"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for setting in options.settings:
        for cell in cells(setting):
            for seed in options.seeds:
                curve, terms = measure(setting, cell, seed, options)
                written(CURVES, curve)
                written(TERMS, [terms])
                print(terms, flush=True)


if __name__ == "__main__":
    main()
