"""A network that goes on with all images after it was judged on a part of them, beside one that begins anew.

    python benchmarks/going_on.py [--data glyphs-lt] [--method balanced-softmax] [--seeds 0 1 2] [--threads 1]

It is what `fit` does with a network trained from scratch. A fifth of each class is held out of everything here, since
only that can judge both. Of the rest four fifths train the first network, as in a fit, which then goes on with all of
it; the second network sees all of it from the beginning. Figures are of the last epoch, in percent.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from spectail.data.datasets import load
from spectail.data.longtail import hold_out
from spectail.fit import networks
from spectail.training.config_io import from_dict
from spectail.training.loop import train
from spectail.training.run_folder import RunFolder

RESULTS = Path(__file__).parent / "results" / "going_on.json"


def measure(dataset, method, seed, folder):
    data = {"dataset": dataset, "val_fraction": 0.2, "data_seed": seed}
    config = from_dict({"device": "cpu", "seed": seed, "model": {"model": "small-cnn"}, "data": data})
    splits = load(config.data)
    out = hold_out(splits.train.labels, splits.train.names, fraction=networks.HELD_OUT, seed=seed + 1)
    part = replace(splits, train=splits.train.subset(np.flatnonzero(~out)))
    found = {"data": dataset, "method": method, "seed": seed}

    def figures(one, images):
        began = time.process_time()
        train(one, data=images)
        last = list(RunFolder(one.output).curves())[-1]
        kept = {name: round(last[f"val_{name}"], 2) for name in ("balanced", "overall", "tail")}
        return kept | {"epochs": one.optim.epochs, "processor_seconds": round(time.process_time() - began, 1)}

    figures(networks.settings(config, method, networks.cut_of(folder, method)), part)
    found["goes on"] = figures(networks.going_on(config, method, folder, folder / "on"), splits)
    found["anew"] = figures(networks.settings(config, method, folder / "anew"), splits)
    print(found, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="glyphs-lt")
    parser.add_argument("--method", default="balanced-softmax")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(options.data, options.method, seed, Path(folder))
        known = [one for one in known if any(one[key] != found[key] for key in ("data", "method", "seed"))] + [found]
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
