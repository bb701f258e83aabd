"""`spectail export RUN`: the model as one file that runs without spectail."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from .._utils.errors import one_line
from .._utils.files import whole_file, write_json
from .._utils.versions import pip_install
from ..training.trained import Normalised, load_trained
from .arguments import SavedModel, read_flags
from .console import make_console
from .outputs import check_description, check_output

ENDINGS = {"torch": ".pt2", "onnx": ".onnx"}

if TYPE_CHECKING:
    from ..data.transforms import Preset


@dataclass(frozen=True)
class Export(SavedModel):
    """Write the model of a run as one file that runs without spectail.

    The exported model takes float images (N, 3, size, size) with values in [0, 1], normalises them itself and returns
    logits; that of a run on features takes features (N, width). Class names and sizes go into a JSON file beside it,
    and a README.md says what it is, how good it is and how to use it, in the format of Hugging Face's model cards.
    """

    format: Literal["torch", "onnx"] = "torch"
    """File format: torch.export's .pt2, or ONNX, which needs the extra `onnx`."""
    output: Path | None = None
    """File to write. Default: model.pt2 or model.onnx in the folder of the run."""


def run(arguments: list[str]) -> None:
    options = read_flags(Export, "spectail export", arguments)
    ending = ENDINGS[options.format]
    path = options.output or options.run / f"model{ending}"
    check_output(path, (ending,))
    check_description(path.with_suffix(".json"), {"classes", "input", "output"})
    trained = load_trained(options.run, options.post_hoc, options.tau, options.adjust)
    preset = trained.preset
    model = trained.model if preset is None else Normalised(trained.model, preset).eval()
    side = None if preset is None else preset.test_size or preset.size
    shape = (trained.width,) if side is None else (3, side, side)
    example = torch.rand(2, *shape)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    other = torch.rand(3, *shape)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-4, atol=1e-4)
    with whole_file(path) as temporary:
        if options.format == "torch":
            whole = io.BytesIO()  # torch's own writer ends the process where a disk is full
            torch.export.save(program, whole)
            temporary.write_bytes(whole.getbuffer())
        else:
            try:
                onnx = torch.onnx.export(program, dynamo=True)
            except ImportError as error:
                raise ValueError(f"ONNX needs {error.name or 'onnx and onnxscript'}: {pip_install('onnx')}") from None
            assert onnx is not None
            onnx.save(str(temporary))
    classes = trained.manifest.classes
    from ..report.model_card import shorter_side  # noqa: PLC0415

    takes: dict[str, Any] = {"width": trained.width} if preset is None else {
        "size": side, "resize": shorter_side(preset), "interpolation": preset.interpolation}  # fmt: skip
    inputs = "features" if preset is None else "RGB in [0, 1]"
    write_json(path.with_suffix(".json"), {**takes, "classes": classes, "input": inputs, "output": "logits"})
    console = make_console()
    console.print(f"{path}: {len(classes)} classes, {json.dumps([None, *shape])} to logits", soft_wrap=True)
    try:
        console.print(f"model card in {_write_card(options, path, preset, shape[0])}", soft_wrap=True)
    except (ValueError, OSError) as error:  # the model itself needs neither results nor predictions
        console.print(f"no model card: {one_line(error)}", soft_wrap=True)


def _write_card(options: Export, path: Path, preset: Preset | None, width: int) -> Path:
    from ..diagnosis.analysis import analyse  # noqa: PLC0415
    from ..report.model_card import card_path, model_card  # noqa: PLC0415
    from ..report.run_record import read_run  # noqa: PLC0415

    run = read_run(options.run)
    analysis = analyse(run.predictions(run.label), convention=run.config.data.groups)
    flags = {"--post-hoc": options.post_hoc, "--tau": options.tau, "--adjust": options.adjust and options.adjust.name}
    changed = ", ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)
    card = card_path(path)
    with whole_file(card) as temporary:
        text = model_card(run, analysis, path.name, preset, width, changed)
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
    return card
