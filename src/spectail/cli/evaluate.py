"""`spectail evaluate RUN`: measure the model of a run again, on any of its splits."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..data.datasets import load
from ..training.build import make_accelerator
from ..training.evaluate import evaluate
from ..training.hardware import in_fast_format
from ..training.trained import load_trained
from .arguments import SavedModel, read_flags
from .console import ConsoleReporter, make_console, show_results


@dataclass(frozen=True)
class Evaluate(SavedModel):
    """Measure the model of a run again, on any split of its data set."""

    split: Literal["test", "val", "train"] = "test"
    """Which images of the run's data set to measure on."""
    root: Path | None = None
    """Folder of the data, if it has moved since the run."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print all figures as JSON."""


def run(arguments: list[str]) -> None:
    options = read_flags(Evaluate, "spectail evaluate", arguments)
    trained = load_trained(options.run, options.post_hoc, options.tau, options.adjust)
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
    model = in_fast_format(trained.model.to(accelerator.device), accelerator.device, config.hardware.channels_last)
    metrics, _ = evaluate(
        model, split, trained.preset, data.counts, accelerator, convention=config.data.groups, workers=config.workers
    )
    added = options.post_hoc or (options.adjust and "adjustment")
    name = config.method + (f" + {added}" if added else "")
    if options.json:
        print(json.dumps(metrics, indent=1))
    else:
        show_results(console, {f"{name} on {options.split}": [metrics | {"selection": "", "seconds": None}]})
