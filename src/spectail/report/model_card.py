"""The card of an exported model: a README.md in the format of the Hugging Face hub, from what the run knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .. import __version__
from ..data.transforms import Preset
from ..diagnosis.analysis import Analysis
from ..diagnosis.tables import figure, worst_table
from ..diagnosis.text_table import TITLES, plain, to_markdown

if TYPE_CHECKING:
    from .run_record import RunRecord

LIBRARY = "library_name: spectail"
"""What says that a card is ours."""
LISTED = 10  # of the worst classes
PICTURES = """import torch
from PIL import Image
from torchvision.transforms import v2

prepare = v2.Compose([{steps}, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
image = prepare(Image.open("new.jpg").convert("RGB"))
model = torch.export.load("{file}").module()
print(model(image[None]).softmax(1))"""
FEATURES = """import torch

model = torch.export.load("{file}").module()
print(model(torch.rand(1, {width})).softmax(1))"""
ONNX = """import onnxruntime

session = onnxruntime.InferenceSession("{file}")
print([(one.name, one.shape) for one in session.get_inputs()])"""


def card_path(model: Path) -> Path:
    """Where the card of a model goes: README.md beside it, unless somebody else's is there."""
    readme = model.with_name("README.md")
    if readme.is_file() and LIBRARY not in readme.read_text(encoding="utf-8", errors="replace")[:500]:
        return model.with_suffix(".md")
    return readme


def model_card(run: RunRecord, analysis: Analysis, file: str, preset: Preset | None, width: int, changed: str) -> str:
    """The text of a card.

    Args:
        run: where the model comes from.
        analysis: of its test predictions.
        file: name of the exported file.
        preset: how images are prepared; None for a model of features, which takes ``width`` numbers.
        changed: what the export did to the logits of the run; empty for nothing.
    """
    data, counts = run.manifest, run.manifest.counts
    task = "image-classification" if preset is not None else "tabular-classification"
    head = {
        "pipeline_tag": task,
        "tags": ["long-tailed-recognition", "class-imbalance", str(run.results["method"])],
        "model-index": [{"name": run.folder.resolve().name, "results": [{
            "task": {"type": task}, "dataset": {"name": data.dataset, "type": data.dataset, "revision": data.identity},
            "metrics": _metrics(analysis)}]}],
    }  # fmt: skip
    sizes = ", ".join(f"{split.images:,} {name}" for name, split in data.splits.items())
    parts = [
        f"---\n{LIBRARY}\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {_text(run.folder.resolve().name)}",
        f"A classifier of {len(data.classes):,} classes, trained by {_text(run.label)} with spectail {__version__} on "
        f"long-tailed data: the largest class has {int(counts.counts.max()):,} training images, the smallest "
        f"{int(counts.counts.min()):,}.",
        "## Results",
        _changed(changed) + "Percent right on the test images, with 95 % intervals.",
        _results(analysis),
        f"The {min(LISTED, len(analysis.worst))} classes with the lowest accuracy:",
        to_markdown(worst_table(analysis, LISTED)).split("\n\n", 1)[-1],
        "## Intended use",
        f"To tell apart the classes below on data like those it was trained on. "
        f"{_limits(analysis)} Test it on data of your own before anything depends on it.",
        "## How to use it",
        f"```python\n{_usage(file, preset, width)}\n```",
        "The outputs are logits in the order of the classes in the `.json` file beside the model.",
        "## Data",
        f"- **Data set**: {_text(data.dataset)}, identity `{data.identity}`\n- **Images**: {sizes}\n"
        f"- **Imbalance factor**: {counts.imbalance_factor:.4g}\n- **Classes**: {_classes(data.classes)}",
        "## Training",
        f"`{run.config.model.model}`, {run.results.get('epochs')} epochs, seed {run.config.seed}. `config.yaml` of the "
        "run has every setting.",
    ]
    return "\n\n".join(parts) + "\n"


def _metrics(analysis: Analysis) -> list[dict[str, Any]]:
    known = {"accuracy": "overall", "balanced accuracy": "balanced", "accuracy on rare classes": "tail",
             "accuracy of the worst class": "worst_test", "macro F1": "macro_f1"}  # fmt: skip
    found = {name: analysis.metrics[key] for name, key in known.items()}
    return [
        {"type": "f1" if name == "macro F1" else "accuracy", "name": name, "value": round(float(value), 2)}
        for name, value in found.items()
        if value is not None
    ]


def _results(analysis: Analysis) -> str:
    keys = [key for key in ("overall", "balanced", "head", "medium", "tail", "worst")
            if analysis.metrics["worst_test" if key == "worst" else key] is not None]  # fmt: skip
    sizes = analysis.metrics["groups"] or {}
    rows = [f"| {TITLES.get(key, key)}{f' ({sizes[key]} classes)' if key in sizes else ''} | {figure(analysis, key)} |"
            for key in keys]  # fmt: skip
    return "\n".join(["| | |", "|---|---|", *rows])


def _limits(analysis: Analysis) -> str:
    worst = analysis.per_class[analysis.worst[0]]
    names = [analysis.predictions.class_names[one.predicted] for one in worst["taken_for"][:1]]
    taken = f", most often taken for {_text(names[0])}" if names else ""
    return (
        f"Look at the table above before you rely on a single class: {_text(worst['name'])} is recognised in "
        f"{worst['accuracy']:.0f} % of its test images{taken}."
    )


def _usage(file: str, preset: Preset | None, width: int) -> str:
    if file.endswith(".onnx"):
        return ONNX.format(file=file)
    if preset is None:
        return FEATURES.format(file=file, width=width)
    mode = f"v2.InterpolationMode.{preset.interpolation.upper()}"
    steps = f"v2.Resize({shorter_side(preset)}, {mode}), v2.CenterCrop({preset.size})"
    return PICTURES.format(file=file, steps=steps)


def shorter_side(preset: Preset) -> int:
    """To how many pixels the shorter side of a test image is resized before its centre is cut out."""
    steps = getattr(preset.test, "transforms", ())
    sides = [step.size[0] for step in steps if type(step).__name__ == "Resize"]
    return int(sides[0] if sides else getattr(preset.test, "side", None) or preset.size)


def _classes(names: list[str], most: int = 50) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(_text, names[:most])) + more


def _changed(text: str) -> str:
    return f"**These figures are of the run before its logits were changed for this file ({text}).** " if text else ""


def _text(name: str) -> str:
    return plain(name)
