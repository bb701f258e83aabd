"""Variants of `car-worst` that were tried where the backbone is trained too, beside the line of Balanced Softmax.

    python benchmarks/variants.py scratch --seeds 0 1 2
    python benchmarks/variants.py resnet --seeds 0 --root $CIFAR100
    python benchmarks/variants.py fine-tuned --seeds 0 1 --root $CIFAR100 --init $WEIGHTS
    python benchmarks/variants.py probe --seeds 0 1 2 3 4 --root $CIFAR100 --init $WEIGHTS

``--methods`` takes some of them only.

Each was written down with one setting before it was trained, and is reported whatever it gave. Data, network, optimiser
and length are those of `spectail experiment run purpose --scale complete`, and for a probe those of the heads of
`trade-off`; the reference rows come from their evidence, such as docs/evidence/scratch.csv. The same methods work with
`spectail train --method variants:CrossFitted`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectail import CAR, MixedTarget
from spectail import functional as SF
from spectail.car import PRESETS
from spectail.experiments.cells import Cell
from spectail.experiments.frontier import with_distances
from spectail.experiments.measures import DISTANCES
from spectail.experiments.runs import Run
from spectail.experiments.scales import Overrides, sized
from spectail.experiments.tables import Figure, Row, as_csv, from_csv, metric_of
from spectail.methods import About, Outcome
from spectail.methods.balanced_softmax import BalancedSoftmax
from spectail.methods.car_worst import CARWorstOptions
from spectail.training.loop import train

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "evidence"
WORST = PRESETS["worst"]
REFERENCES = ("Balanced Softmax", "Balanced Softmax, tau 1", "car-worst", "car-worst, alpha 3")
SETTINGS = {
    "scratch": ("scratch", "glyphs-lt", "small-cnn"),
    "resnet": ("scratch", "cifar100-lt", "vit_small"),
    "fine-tuned": ("pretrained", "cifar100-lt", "vit_small"),
    "probe": ("pretrained", "cifar100-lt", "vit_small"),
}
"""By the file of evidence with the reference rows."""
METRICS = ("overall", "head", "medium", "tail", "worst_test", "zero_classes", "bottom_10pct", "bottom_20pct", "ece",
           "worst_train", "late_gain")  # fmt: skip


class Variant(BalancedSoftmax):
    """Balanced Softmax at tau 0.75 whose own loss holds CAR with the settings of `car-worst`."""

    about = About("regulariser", "tried here", "class counts")
    options = CARWorstOptions()

    def __init__(self, counts, options, *, epochs):
        super().__init__(counts, options, epochs=epochs)
        self.car = CAR(counts, prior_shift=options.tau, **WORST.options)

    def loss(self, model, batches, step):
        batch = batches["main"]
        logits = model(batch.images)
        total = self.criterion(logits, batch.labels) + WORST.alpha * self.car(logits, batch.labels)
        return Outcome(total, logits, batch.labels)


class CrossFitted(Variant):
    """Which classes are worst is judged by heads that have not learned the image.

    Two more heads learn half of each class each, from the same features, whose gradient stops there. The error of an
    image is that of the head that does not learn it; the soft maximum is taken over the running means of these.
    """

    half: Tensor

    def build(self, backbone, head):
        self.heads = nn.ModuleList(nn.Linear(head.in_features, head.out_features) for _ in range(2))
        self.register_buffer("weights", SF.class_weights(self.counts, r0=WORST.options["r0"]), persistent=False)
        self.register_buffer("errors", torch.full((len(self.counts),), -1.0))  # -1: not seen yet
        return super().build(backbone, head)

    def begin_stage(self, model, step, *, resumed):
        place = torch.zeros_like(step.labels)
        for label in step.labels.unique():
            mine = step.labels == label
            place[mine] = torch.arange(int(mine.sum()))
        self.half = place % 2

    def class_errors(self, logits: Tensor, labels: Tensor) -> Tensor:
        shifted = logits + self.car.prior_shift * self.car.log_prior
        surrogate = {name: WORST.options[name] for name in ("gamma", "competitors")}
        return self.weights * SF.soft_confusion(shifted, labels, **surrogate).sum(0)

    def loss(self, model, batches, step):
        batch = batches["main"]
        labels = batch.labels
        vectors, logits = model(batch.images, features=True)
        half = self.half[batch.indices.cpu()].to(labels.device)
        both = torch.stack([one(vectors.detach()) for one in self.heads])
        rows = torch.arange(len(labels))
        own, honest = both[half, rows], both[1 - half, rows].detach()
        with torch.no_grad():
            found, present = self.class_errors(honest, labels), torch.bincount(labels, minlength=len(self.errors)) > 0
            mean = torch.where(self.errors < 0, found, WORST.options["beta"] * self.errors + 0.1 * found)
            self.errors.copy_(torch.where(present, mean, self.errors))
            known = self.errors.clamp_min(0)
            shares = (WORST.options["sharpness"] * known / known.max()).softmax(0)
        term = (1 - WORST.options["beta"]) * (shares * self.class_errors(logits, labels)).sum()
        total = self.criterion(logits, labels) + self.criterion(own, labels) + WORST.alpha * term
        return Outcome(total, logits, labels)


class DualAscent(Variant):
    """alpha rises while the soft maximum of the class errors is over twice their mean, and falls while it is below."""

    RATE, RATIO, MOST = 0.003, 2.0, 10.0

    def __init__(self, counts, options, *, epochs):
        super().__init__(counts, options, epochs=epochs)
        self.register_buffer("alpha", torch.zeros(()))

    def loss(self, model, batches, step):
        batch = batches["main"]
        logits = model(batch.images)
        worst = self.car(logits, batch.labels)
        total = self.criterion(logits, batch.labels) + self.alpha.clone() * worst
        excess = worst.detach() / self.car.errors.mean() - self.RATIO
        self.alpha.copy_((self.alpha + self.RATE * excess).clamp(0, self.MOST))
        step.log("alpha", self.alpha)
        return Outcome(total, logits, batch.labels)


class FeatureMixup(Variant):
    """Half of the loss is on features mixed with those of a partner in the batch, drawn with equal chances of each
    class; the share of the partner is up to a half. CAR sees the features as they are."""

    def loss(self, model, batches, step):
        batch = batches["main"]
        labels = batch.labels
        vectors, logits = model(batch.images, features=True)
        chances = 1.0 / torch.bincount(labels, minlength=len(self.counts))[labels]
        partners = torch.multinomial(chances.cpu(), len(labels), True, generator=step.generator).to(labels.device)
        share = 1 - 0.5 * torch.rand(len(labels), generator=step.generator).to(labels.device)
        mixed = model.head(share[:, None] * vectors + (1 - share[:, None]) * vectors[partners])
        target = MixedTarget(labels, labels[partners], share)
        total = 0.5 * (self.criterion(logits, labels) + self.criterion(mixed, target))
        return Outcome(total + self.regulariser(logits, labels), logits, labels)

    def regulariser(self, logits: Tensor, labels: Tensor) -> Tensor:
        return WORST.alpha * self.car(logits, labels)


class FeatureMixupAlone(FeatureMixup):
    """The same without CAR."""

    def regulariser(self, logits, labels):
        return F.cross_entropy(logits, labels) * 0


VARIANTS = {
    "car-worst, cross-fitted": CrossFitted,
    "car-worst, dual ascent on alpha": DualAscent,
    "car-worst, mixup of features": FeatureMixup,
    "Balanced Softmax, tau 0.75, mixup of features": FeatureMixupAlone,
}


def runs(options: argparse.Namespace, seeds: Iterable[int], labels: Iterable[str]) -> list[Run]:
    start, dataset, backbone = SETTINGS[options.setting]
    scale, changes = "complete", Overrides(epochs=options.epochs, init=options.init)
    if options.setting == "probe":
        scale, changes = "quick", replace(changes, model="tf_efficientnet_lite0", img_size=128, epochs=12)
    found = []
    for label in labels:
        cell = Cell(start, dataset, 100.0, backbone, "balanced-softmax", label)
        size = sized(cell, scale, changes)
        size = replace(size, own=size.own | {"method": f"variants:{VARIANTS[label].__name__}"})
        found += [Run(cell, scale, size, seed) for seed in seeds]
    return found


def rows(setting: str, done: list[tuple[Run, dict]]) -> list[Row]:
    known = [row for row in from_csv((EVIDENCE / f"{setting}.csv").read_text()) if row.cell.label in REFERENCES]
    distances = {one.metric for one in DISTANCES}
    known = [replace(row, figures=tuple(one for one in row.figures if one.metric not in distances)) for row in known]
    for label in VARIANTS:
        mine = [(run, found) for run, found in done if run.cell.label == label]
        if not mine:
            continue
        run, results = mine[0][0], [found for _, found in mine]
        figures = tuple(
            Figure(metric, tuple(value for found in results if (value := metric_of(found, metric)) is not None), None,
                   tuple(tuple(found["line"][metric]) for found in results) if metric in results[0]["line"] else ())
            for metric in METRICS
        )  # fmt: skip
        known.append(
            Row(replace(run.cell, method=run.sized.own["method"]), known[0].scale,
                tuple(one.seed for one, _ in mine), figures, run.sized.model, run.sized.epochs, run.sized.notes,
                data=(results[0]["identity"],), shifts=tuple(results[0]["line"]["shifts"]))
        )  # fmt: skip
    return with_distances(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("setting", nargs="?", choices=list(SETTINGS), default="scratch")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--methods", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--root", help="folder of CIFAR-100")
    parser.add_argument("--init", type=Path, help="weights of tf_efficientnet_lite0")
    parser.add_argument("--folder", type=Path, default=Path("runs/variants"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.append(str(Path(__file__).parent))  # for variants:CrossFitted
    given = {"data": {"root": options.root}} if options.root is not None else {}
    for run in runs(options, options.seeds, options.methods):
        folder = options.folder / run.name
        found = dict(train(run.config(folder, device="cpu", **given), resume=True))
        figures = ", ".join(f"{name} {found[name]:.1f}" for name in ("overall", "tail", "bottom_10pct"))
        print(f"{run.cell.label}, seed {run.seed}: {figures}", flush=True)
    done = []
    for run in runs(options, range(10), VARIANTS):  # those of earlier calls too
        path = options.folder / run.name / "results.json"
        if path.exists():
            done.append((run, json.loads(path.read_text())))
    table = as_csv(SimpleNamespace(experiment=SimpleNamespace(name="variants")), rows(options.setting, done))
    (EVIDENCE / f"variants-{options.setting}.csv").write_text(table)


if __name__ == "__main__":
    main()
