"""`spectail evaluate RUN`: measure the model of a run again, on any of its splits."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from ..data.datasets import load
from ..training.evaluate import evaluate
from ..training.setup import make_accelerator
from ..training.trained import load_trained
from .console import ConsoleReporter, make_console, show_results


@dataclass(frozen=True)
class Evaluate:
    """Measure the model of a run again."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    split: Literal["test", "val", "train"] = "test"
    post_hoc: Literal["logit-adjustment", "tau-norm"] | None = None
    """Adjust the logits of a run that was trained without."""
    tau: float | None = None
    """Of --post-hoc (default 1), or in place of the run's own."""
    root: Path | None = None
    """Where the data lies now, if it has moved."""
    device: str = "auto"
    json: bool = False
    """Print all figures as JSON."""


def run(arguments: list[str]) -> None:
    options = tyro.cli(Evaluate, prog="spectail evaluate", args=arguments)
    trained = load_trained(options.run, options.post_hoc, options.tau)
    config = replace(trained.config, device=options.device, trackers=())
    console = make_console(stderr=options.json)
    reporter = ConsoleReporter(console, quiet=options.json)
    root = options.root if options.root is not None else config.data.root
    data = load(replace(config.data, root=root), track=reporter.track)
    trained.manifest.require_same(data.manifest, f"the run in {options.run}")
    split = {"test": data.test, "val": data.val, "train": data.train}[options.split]
    if split is None:
        raise ValueError(f"the run in {options.run} has no {options.split} split.")
    accelerator = make_accelerator(config)
    found, _ = evaluate(
        trained.model.to(accelerator.device), split, trained.preset, data.counts, accelerator,
        convention=config.data.groups, workers=config.workers,
    )  # fmt: skip
    name = config.method + (f" + {options.post_hoc}" if options.post_hoc else "")
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        show_results(console, {f"{name} on {options.split}": [found | {"selection": "", "seconds": None}]})
