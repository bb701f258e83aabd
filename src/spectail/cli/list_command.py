"""`spectail list datasets|methods|models`: what there is to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class List:
    """Show what there is to choose from."""

    what: tyro.conf.Positional[Literal["datasets", "methods", "models"]] = "datasets"
    """What to list."""


def run(arguments: list[str]) -> None:
    what = tyro.cli(List, prog="spectail list", args=arguments).what
    Console().print({"datasets": datasets, "methods": methods, "models": models}[what]())


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
