"""`spectail evaluate RUN`: measure the model of a run again, on any of its splits."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from ..data.manifest import Manifest
from ..models.weights import read_weights
from ..training.config_io import read_yaml
from ..training.evaluate import evaluate
from ..training.setup import make_pieces, make_preset
from .console import ConsoleReporter, make_console, show_results


@dataclass(frozen=True)
class Evaluate:
    """Measure the model of a run again."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    split: Literal["test", "val", "train"] = "test"
    root: Path | None = None
    """Where the data lies now, if it has moved."""
    device: str = "auto"
    json: bool = False
    """Print all figures as JSON."""


def run(arguments: list[str]) -> None:
    options = tyro.cli(Evaluate, prog="spectail evaluate", args=arguments)
    if not (options.run / "model.safetensors").is_file():
        raise FileNotFoundError(f"{options.run} holds no finished run: model.safetensors is missing.")
    config = read_yaml(options.run / "config.yaml")
    root = options.root if options.root is not None else config.data.root
    config = replace(config, data=replace(config.data, root=root), device=options.device, probe=False, trackers=())
    console = make_console(stderr=options.json)
    bare = replace(config, model=replace(config.model, init=None, pretrained=False))  # the run has the weights
    pieces = make_pieces(bare, ConsoleReporter(console, quiet=options.json))
    preset = make_preset(config, pieces.data)  # with the normalisation that the run was trained with
    Manifest.load(options.run / "manifest.json").require_same(pieces.data.manifest, f"the run in {options.run}")
    if options.split not in pieces.splits:
        raise ValueError(f"the run in {options.run} has no {options.split} split.")
    pieces.model.load_state_dict(read_weights(options.run / "model.safetensors"))
    model = pieces.method.inference(pieces.model).to(pieces.accelerator.device)
    data, counts = pieces.splits[options.split], pieces.data.counts
    found, _ = evaluate(
        model, data, preset, counts, pieces.accelerator, convention=config.data.groups, workers=config.workers
    )
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        show_results(console, {f"{config.method} on {options.split}": [found | {"selection": "", "seconds": None}]})
