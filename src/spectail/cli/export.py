"""`spectail export RUN`: the model as one file that runs without spectail."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from .._utils.files import whole_file, write_json
from ..training.trained import Normalised, load_trained
from .arguments import SavedModel, read_flags
from .console import make_console


@dataclass(frozen=True)
class Export(SavedModel):
    """Write the model of a run as one file that runs without spectail.

    The exported model takes float images (N, 3, size, size) with values in [0, 1], normalises them itself and returns
    logits. Class names and image size go into a JSON file beside it.
    """

    format: Literal["torch", "onnx"] = "torch"
    """File format: torch.export's .pt2, or ONNX, which needs the packages onnx and onnxscript."""
    output: Path | None = None
    """File to write. Default: model.pt2 or model.onnx in the folder of the run."""


def run(arguments: list[str]) -> None:
    options = read_flags(Export, "spectail export", arguments)
    trained = load_trained(options.run, options.post_hoc, options.tau, options.adjust)
    model = Normalised(trained.model, trained.preset).eval()
    path = options.output or options.run / {"torch": "model.pt2", "onnx": "model.onnx"}[options.format]
    size = trained.preset.size
    example = torch.rand(2, 3, size, size)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    other = torch.rand(3, 3, size, size)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-4, atol=1e-4)
    with whole_file(path) as temporary:
        if options.format == "torch":
            with temporary.open("wb") as file:
                torch.export.save(program, file)
        else:
            try:
                onnx = torch.onnx.export(program, dynamo=True)
            except ImportError as error:
                raise ValueError(f"ONNX needs the packages onnx and onnxscript: {error}") from None
            assert onnx is not None
            onnx.save(str(temporary))
    classes = trained.manifest.classes
    write_json(
        path.with_suffix(".json"), {"size": size, "classes": classes, "input": "RGB in [0, 1]", "output": "logits"}
    )
    make_console().print(
        f"{path}: {len(classes)} classes, {json.dumps([None, 3, size, size])} to logits", soft_wrap=True
    )
