"""`spectail predict RUN FILES...`: the most likely classes of new images, or of new rows of features."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.table import Table
from torch import Tensor

from .._utils.files import read_regular
from ..data.decoding import BrokenImage, decode
from ..data.sets.feature_files import read_arrays
from ..data.sets.features import as_features, check_width
from ..data.sets.folder import images_below
from ..data.transforms import Preset
from ..training.trained import Trained, load_trained
from .arguments import SavedModel, read_flags
from .console import make_console


@dataclass(frozen=True)
class Predict(SavedModel):
    """Show the most likely classes of new images, or of new features for a run on features."""

    images: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Image files, or folders of them. For a run on features, .npz (array X or features), .npy or .parquet files."""
    top: int = 3
    """Classes to show for each image or row."""
    json: bool = False
    """Print one JSON object per image or row."""


def run(arguments: list[str]) -> None:
    options = read_flags(Predict, "spectail predict", arguments)
    if options.top < 1:
        raise ValueError(f"--top must be 1 or more; got {options.top}.")
    _require_existing(options.images)
    trained = load_trained(options.run, options.post_hoc, options.tau, options.adjust)
    if trained.preset is None:
        predictions = [row for file in options.images for row in predict_rows(trained, file, options.top)]
    else:
        preset = trained.preset
        predictions = [predict(trained, preset, file, options.top) for file in find_images(options.images)]
    if options.json:
        for entry in predictions:
            print(json.dumps(entry, ensure_ascii=False))
        return
    shown = min(options.top, len(trained.manifest.classes))
    table = Table("row" if trained.preset is None else "image", *(f"{rank + 1}" for rank in range(shown)))
    for entry in predictions:
        table.add_row(entry.get("image") or entry["row"], *(f"{name} {share:.1%}" for name, share in entry["classes"]))
    make_console().print(table)


def _require_existing(paths: tuple[Path, ...]) -> None:
    """Said before the model is loaded."""
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise FileNotFoundError(f"{missing} does not exist; expected an image, a folder of images, or features.")
    if not paths:
        raise ValueError(
            "give the folder of a run and then at least one image, as in spectail predict runs/NAME new.jpg; for a run "
            "on features, a file of features."
        )


def find_images(paths: tuple[Path, ...]) -> list[Path]:
    """The files named, and the images in the folders named."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [path / name for name in images_below(path)]
            if not inside:
                raise ValueError(f"{path} has no image in it.")
            files += inside
        else:
            files.append(path)
    return files


def predict(trained: Trained, preset: Preset, file: Path, top: int) -> dict[str, Any]:
    try:
        image = preset.test(decode(read_regular(file)))
    except BrokenImage as error:
        raise ValueError(f"{file} {error}.") from None
    return {"image": str(file), "classes": most_likely(trained, image[None], top)[0]}


def predict_rows(trained: Trained, file: Path, top: int) -> list[dict[str, Any]]:
    """The rows of a file of features."""
    column = trained.config.data.feature_column if file.suffix.lower() == ".parquet" else None
    stored = read_arrays(file, feature_column=column, labelled=False)
    rows = as_features(stored.features["train"], str(file))
    check_width(rows, trained.width, str(file), "the run was trained on")
    return [{"row": f"{file} row {at}", "classes": found} for at, found in enumerate(most_likely(trained, rows, top))]


@torch.no_grad()
def most_likely(trained: Trained, inputs: Tensor, top: int) -> list[list[tuple[str, float]]]:
    """Classes with their probability, the most likely first, for each input."""
    names = trained.manifest.classes
    best = trained.model(inputs).float().softmax(1).topk(min(top, len(names)))
    return [
        [(names[label], share) for share, label in zip(shares, labels, strict=True)]
        for shares, labels in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
