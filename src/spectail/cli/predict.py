"""`spectail predict RUN IMAGES...`: the most likely classes of new images."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.table import Table

from ..data.decoding import BrokenImage, decode
from ..data.sets.folder import images_below
from ..training.trained import Trained, load_trained
from .arguments import SavedModel, read_flags
from .console import make_console


@dataclass(frozen=True)
class Predict(SavedModel):
    """Show the most likely classes of new images."""

    images: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Image files, or folders of them."""
    top: int = 3
    """Classes to show for each image."""
    json: bool = False
    """Print one JSON object per image."""


def run(arguments: list[str]) -> None:
    options = read_flags(Predict, "spectail predict", arguments)
    if options.top < 1:
        raise ValueError(f"--top must be 1 or more; got {options.top}.")
    files = find_images(options.images)
    trained = load_trained(options.run, options.post_hoc, options.tau, options.adjust)
    predictions = [predict(trained, file, options.top) for file in files]
    if options.json:
        for entry in predictions:
            print(json.dumps(entry, ensure_ascii=False))
        return
    table = Table("image", *(f"{rank + 1}" for rank in range(min(options.top, len(trained.manifest.classes)))))
    for entry in predictions:
        table.add_row(entry["image"], *(f"{name} {share:.1%}" for name, share in entry["classes"]))
    make_console().print(table)


def find_images(paths: tuple[Path, ...]) -> list[Path]:
    """The files named, and the images in the folders named."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [path / name for name in images_below(path)]
            if not inside:
                raise ValueError(f"{path} has no image in it.")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise FileNotFoundError(f"{path} does not exist; expected an image or a folder of images.")
    if not files:
        raise ValueError("name at least one image, or a folder of images.")
    return files


@torch.no_grad()
def predict(trained: Trained, file: Path, top: int) -> dict[str, Any]:
    try:
        image = trained.preset.test(decode(file.read_bytes()))
    except BrokenImage as error:
        raise ValueError(f"{file} {error}.") from None
    shares = trained.model(image[None]).float().softmax(1)[0]
    best = shares.topk(min(top, len(shares)))
    names = trained.manifest.classes
    classes = [(names[label], share) for share, label in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
    return {"image": str(file), "classes": classes}
