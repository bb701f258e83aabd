"""How well `fit` chooses: the test figure of its choice against the best candidate in hindsight.

    python benchmarks/fit.py [--images NAME ... --init WEIGHTS --root FOLDER [--cuts]] [--seeds 0 1] [--goals tail ...]

For every data set and seed, all trainings are cross-fitted on all folds; the first look of `fit` is then taken from
them, so that each goal is chosen for as the command does. Every training is also fitted to all rows, and its logits for
the test rows, at every shift, are what hindsight chooses from, also those that the command does not try on few rows,
for otherwise a shorter list would look like a better choice. Hindsight chooses on one half of the test rows and is
judged on the other, as the choice is: otherwise it would be praised for its luck. NAME is a data set of images, such as
cifar100-lt or glyphs-lt; its features are those of a frozen tf_efficientnet_lite0 at 128 pixels.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from spectail.data.folds import make_folds
from spectail.fit import crossfit
from spectail.fit.candidates import SHIFTS, shifted, trainings
from spectail.fit.choice import choose_candidate
from spectail.fit.crossfit import CrossFit, Fitted, Table, cross_fit
from spectail.fit.figures import GOALS, class_accuracies
from spectail.fit.goals import Goal
from spectail.models.feature_transform import FeatureTransform
from spectail.training.build import make_pieces
from spectail.training.config_io import from_dict
from spectail.training.heads import train_head
from spectail.training.reporter import Reporter

RESULTS = Path(__file__).parent / "results" / "fit.json"


def plain_figure(goal, right, labels, counts):
    """The figure of a goal on a large balanced test set, where nothing needs to be shrunk."""
    hits, totals = class_accuracies(right, labels, len(counts))
    shares = 100 * hits / np.maximum(totals, 1)
    if goal == "overall":  # on data as unbalanced as the training rows
        weights = counts.counts.numpy() / counts.counts.sum().item()
        return shares @ weights
    if goal == "tail":
        return shares[..., counts.groups()["tail"] or list(range(len(counts) * 2 // 3, len(counts)))].mean(-1)
    lowest = np.sort(shares, axis=-1)
    take = {"balanced": len(counts), "worst": 1, "lowest10": -(-len(counts) // 10)}[goal]
    return lowest[..., :take].mean(-1)


def digits(seed):
    data, random = load_digits(), np.random.default_rng(seed)
    train, test = [], []
    for label in range(10):
        own = random.permutation(np.flatnonzero(data.target == label))
        train += own[: max(3, int(100 * 30 ** (-label / 9)))].tolist()
        test += own[100:].tolist()
    values = data.data.astype(np.float32)
    return values[train], data.target[train], values[test], data.target[test]


def mixture(seed, classes=30, width=32, largest=300, factor=100):
    random = np.random.default_rng(seed)
    centres = 0.75 * random.standard_normal((classes, width))
    sizes = [max(2, int(largest * factor ** (-label / (classes - 1)))) for label in range(classes)]
    labels, test = np.repeat(np.arange(classes), sizes), np.repeat(np.arange(classes), 100)
    draw = lambda own: (centres[own] + random.standard_normal((len(own), width))).astype(np.float32)  # noqa: E731
    return draw(labels), labels, draw(test), test


def frozen(name, root, init):
    """Features and labels of the training and the test images of a data set."""
    own = {} if root is None or name == "glyphs-lt" else {"root": str(root)}
    settings = {
        "probe": True, "device": "cpu", "data": {"dataset": name} | own,
        "model": {"model": "tf_efficientnet_lite0", "img_size": 128, "init": str(init)},
    }  # fmt: skip
    splits = make_pieces(from_dict(settings), Reporter()).splits
    return tuple(part for kind in ("train", "test") for part in (splits[kind].features.numpy(), splits[kind].labels))


CUTS = {"factor200": (500, 200), "factor20": (100, 20)}
"""Other cuts of the data of NAME: images of the largest class, imbalance factor."""


def cut(arrays, largest, factor, seed):
    features, labels, test, truth = arrays
    number, random, kept = int(labels.max()) + 1, np.random.default_rng(seed), []
    for label in range(number):
        own = random.permutation(np.flatnonzero(labels == label))
        kept += own[: max(2, int(largest * factor ** (-label / (number - 1))))].tolist()
    return features[kept], labels[kept], test, truth


def fit_all(name, arrays, seed, cache):
    """Every training: cross-fitted, and its logits for the test rows after a training on all rows.

    With a folder ``cache`` each is kept there, so that another rule of choosing can be tried on the same trainings.
    """
    features, labels, test, _ = arrays
    names = tuple(map(str, range(int(labels.max()) + 1)))
    table, base = Table(features, labels.astype(np.int64), names), from_dict({"device": "cpu", "seed": seed})
    result = CrossFit(table.labels, table.counts, make_folds(table.labels, 5, seed))
    crossfit.KEPT = 1.0  # all of them: each goal takes its own from these
    logits = {}
    for way in trainings(features.shape[1]):
        kept = cache / f"{name}-{seed}-{way.title}.npz" if cache else None
        if kept is not None and kept.exists():
            with np.load(kept) as file:
                about = json.loads(str(file["about"]))
                fitted = Fitted(
                    way, file["held"].astype(np.float32), about["steps"], {}, about["converged"], result.used
                )
                result.fitted[way.title], logits[way.title] = fitted, file["test"].astype(np.float32)
            continue
        cross_fit(result, table, [way], base, Goal())
        given, fitted = torch.from_numpy(features), result.fitted[way.title]
        transform = FeatureTransform(way.features, features.shape[1]).fit_(given)
        head = train_head(transform(given), table.labels, names, way.config(base), round(fitted.steps * 1.25))
        logits[way.title] = head.logits(transform(torch.from_numpy(test))).numpy()
        if kept is not None:
            about = json.dumps({"steps": fitted.steps, "converged": fitted.converged})
            np.savez(
                kept, held=fitted.logits.astype(np.float16), test=logits[way.title].astype(np.float16), about=about
            )
    crossfit.KEPT = 1 / 3
    return table, result, logits


def measure(name, arrays, goals, seed, cache=None):
    began = time.process_time()
    table, result, logits = fit_all(name, arrays, seed, cache)
    ways, truth = [one.training for one in result.fitted.values()], arrays[3]
    half = np.random.default_rng(seed).permutation(len(truth)) < len(truth) // 2
    rows = [(way.title, shift) for way in ways for shift in SHIFTS]
    right = np.array([shifted(logits[title], shift, table.counts).argmax(1) == truth for title, shift in rows])
    balanced = rows.index((next(way.title for way in ways if way.method == "balanced-softmax"), 0.0))
    found = []
    for goal in goals:
        first = result.used[: crossfit.FIRST_LOOK]
        tried = [way.title for way in trainings(arrays[0].shape[1], None, len(table.labels))]
        looked = replace(result, fitted={title: result.fitted[title] for title in tried})
        kept = crossfit._best(looked, Goal(goal), first, max(1, round(len(tried) / 3))) | {ways[0].title}
        part = CrossFit(result.labels, result.counts, result.folds, {title: result.fitted[title] for title in kept})
        chosen = choose_candidate(part, Goal(goal), ways[0], seed)
        own = chosen.candidate.training
        place = rows.index((own.title, chosen.candidate.shift))
        same = (way.title for way in ways if way.method == "balanced-softmax"
                and (way.features, way.decay) == (own.features, own.decay))  # fmt: skip
        plain = rows.index((next(same), 0.0))
        seen, judged = (plain_figure(goal, right[:, own], truth[own], table.counts) for own in (half, ~half))
        best = int(np.argmax(seen))
        whole = plain_figure(goal, right, truth, table.counts)
        found.append({
            "data": name, "seed": seed, "goal": goal, "chosen": chosen.candidate.title, "hindsight": list(rows[best]),
            "figure": round(float(whole[place]), 2), "regret": round(float(judged[best] - judged[place]), 2),
            "balanced_softmax": round(float(whole[balanced]), 2),
            "balanced_softmax_same_head": round(float(whole[plain]), 2),
            "cross_entropy": round(float(whole[rows.index((ways[0].title, 0.0))]), 2),
            "converged": chosen.fitted.converged, "processor_seconds": round(time.process_time() - began, 1),
        })  # fmt: skip
        print(found[-1], flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--init", type=Path, help="weights of tf_efficientnet_lite0")
    parser.add_argument("--root", type=Path, help="folder of CIFAR")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--goals", nargs="*", default=list(GOALS))
    parser.add_argument("--only-images", action="store_true")
    parser.add_argument("--cuts", action="store_true", help="also other cuts of the data of each NAME")
    parser.add_argument("--cache", type=Path, help="folder that keeps the trainings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for seed in options.seeds:
        sets = {} if options.only_images else {"digits": digits(seed), "mixture": mixture(seed)}
        for name in options.images:
            sets[name] = frozen(name, options.root, options.init)
            for label, (largest, factor) in CUTS.items() if options.cuts else ():
                sets[f"{name}-{label}"] = cut(sets[name], largest, factor, seed)
        for name, arrays in sets.items():
            records += measure(name, arrays, options.goals, seed, options.cache)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    new = {(one["data"], one["seed"], one["goal"]) for one in records}
    records += [one for one in known if (one["data"], one["seed"], one["goal"]) not in new]
    RESULTS.write_text(
        json.dumps(sorted(records, key=lambda one: (one["data"], one["goal"], one["seed"])), indent=1) + "\n"
    )
    for goal in options.goals:
        own = [one["regret"] for one in records if one["goal"] == goal]
        print(f"{goal}: mean regret {np.mean(own):.2f} points over {len(own)} cases")


if __name__ == "__main__":
    main()
