"""`spectail list datasets|methods|models|recipes|augment`: what there is to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from .arguments import read_flags


@dataclass(frozen=True)
class List:
    """Show what there is to choose from."""

    what: tyro.conf.Positional[Literal["datasets", "methods", "models", "recipes", "augment"]] = "datasets"
    """What to list: datasets, methods, models, recipes or augment."""
    show: Path | None = None
    """With augment: write a picture of batches before and after each augmentation to this PNG file."""
    dataset: str = "glyphs-lt"
    """Data set of the picture."""
    root: Path | None = None
    """Folder of its files."""


def run(arguments: list[str]) -> None:
    asked = read_flags(List, "spectail list", arguments)
    what = asked.what
    if asked.show is not None:
        _show(asked)
        return
    tables = {"datasets": datasets, "methods": methods, "models": models, "recipes": recipes, "augment": augmentations}
    console, table = Console(), tables[what]()
    if len(table.columns) < 5 or console.width >= 140:
        console.print(table)
        return
    rows = zip(*(column.cells for column in table.columns), strict=True)  # many columns on a narrow screen: a list
    for row in rows:
        console.print(f"[bold]{row[0]}[/bold]  {row[1]}")
        for column, cell in zip(table.columns[2:], row[2:], strict=True):
            console.print(Padding(f"{column.header}: {cell or 'none'}", (0, 0, 0, 4)))


def _show(asked: List) -> None:
    if asked.what != "augment" or asked.show is None or asked.show.suffix.lower() != ".png":
        raise ValueError(f"--show goes with `spectail list augment` and takes a .png file; got {asked.show}.")
    from ..methods.registry import ENTRIES  # noqa: PLC0415
    from ..report.gallery import save  # noqa: PLC0415

    save(asked.show, {"dataset": asked.dataset} | ({"root": str(asked.root)} if asked.root is not None else {}))
    features = [entry.name for entry in ENTRIES if "feature augmentation" in entry.about().kind]
    Console().print(
        f"{asked.show}: real batches before and after each augmentation, with the label mass of each image. "
        f"{' and '.join(features)} change features and not images, so there is nothing of them to see."
    )


def augmentations() -> Table:
    from ..methods.registry import ENTRIES  # noqa: PLC0415

    table = Table("method", "what", "needs")
    for entry in ENTRIES:
        if "augmentation" in entry.about().kind:
            table.add_row(entry.name, entry.summary, entry.about().needs)
    return table


def datasets() -> Table:
    from ..data.catalog import ENTRIES, OWN  # noqa: PLC0415 - only what is asked for is imported

    table = Table("data set", "what", "imbalance", "transform")
    for entry in [*ENTRIES, *OWN]:
        imbalance = "by lists" if entry.fixed else "as it is" if entry.imbalance is None else f"{entry.imbalance:g}"
        table.add_row(entry.name, entry.summary, imbalance, entry.transform)
    return table


def methods() -> Table:
    from ..methods.registry import ENTRIES  # noqa: PLC0415

    table = Table("method", "what", "kind", "venue", "needs", "extra cost", "deviations")
    for entry in ENTRIES:
        about = entry.about()
        table.add_row(entry.name, entry.summary, about.kind, about.venue, about.needs, about.cost, about.deviations)
    return table


def models() -> Table:
    from ..models.build import MODELS  # noqa: PLC0415

    table = Table("model", "what")
    for name, (summary, _) in MODELS.items():
        table.add_row(name, summary)
    table.add_row("any timm name", "such as vit_small_patch16_224, resnet50, swin_tiny_patch4_window7_224")
    return table


def recipes() -> Table:
    from ..training.recipes import RECIPES  # noqa: PLC0415

    table = Table("data set", "method", "source", "optimisation", "options")
    for dataset, entries in RECIPES.items():
        for method, recipe in entries.items():
            o = recipe.optim
            how = f"{o['epochs']} epochs of {o['batch_size']}, lr {o['lr']:g} {o['schedule']}, "
            how += f"decay {o['weight_decay']:g}"
            options = ", ".join(f"{name} {value}" for name, value in (recipe.options | recipe.rest).items())
            table.add_row(dataset, method, recipe.source, how, options)
    return table
