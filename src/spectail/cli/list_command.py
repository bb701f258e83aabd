"""`spectail list datasets|methods|models|recipes`: what there is to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from .arguments import read_flags


@dataclass(frozen=True)
class List:
    """Show what there is to choose from."""

    what: tyro.conf.Positional[Literal["datasets", "methods", "models", "recipes"]] = "datasets"
    """What to list: datasets, methods, models or recipes."""


def run(arguments: list[str]) -> None:
    what = read_flags(List, "spectail list", arguments).what
    tables = {"datasets": datasets, "methods": methods, "models": models, "recipes": recipes}
    console, table = Console(), tables[what]()
    if len(table.columns) < 5 or console.width >= 140:
        console.print(table)
        return
    rows = zip(*(column.cells for column in table.columns), strict=True)  # many columns on a narrow screen: a list
    for row in rows:
        console.print(f"[bold]{row[0]}[/bold]  {row[1]}")
        for column, cell in zip(table.columns[2:], row[2:], strict=True):
            console.print(Padding(f"{column.header}: {cell or 'none'}", (0, 0, 0, 4)))


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
    table.add_row(
        "any timm name", "any model of timm, such as vit_small_patch16_224, resnet50 or swin_tiny_patch4_window7_224"
    )
    return table


def recipes() -> Table:
    from ..methods.registry import find_method  # noqa: PLC0415
    from ..training.recipe_table import NAMED, RECIPES  # noqa: PLC0415

    table = Table("data set", "method", "variant", "published", "source", "optimisation", "other than by default")
    for dataset, entries in {**RECIPES, "any": NAMED}.items():
        for method, recipe in entries.items():
            o = recipe.optim
            how = f"{o['epochs']} epochs of {o['batch_size']}, lr {o['lr']:g} {o['schedule']}, "
            how += f"decay {o['weight_decay']:g}" + ", Nesterov" * o["nesterov"]
            usual = find_method(method).load().options if method not in NAMED else None
            options = {name: value for name, value in recipe.options.items() if getattr(usual, name) != value}
            options |= {name: value for name, value in recipe.rest.items() if not isinstance(value, dict)}
            for group in recipe.rest.values():
                options |= group if isinstance(group, dict) else {}
            said = ", ".join(f"{name} {_short(value)}" for name, value in options.items())
            table.add_row(dataset, method, recipe.variant, recipe.published, recipe.source, how, said)
    return table


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
