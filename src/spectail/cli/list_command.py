"""`spectail list datasets`: what there is to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from ..data.catalog import ENTRIES, OWN


@dataclass(frozen=True)
class List:
    """Show what there is to choose from."""

    what: tyro.conf.Positional[Literal["datasets"]] = "datasets"
    """What to list."""


def run(arguments: list[str]) -> None:
    tyro.cli(List, prog="spectail list", args=arguments)
    table = Table("data set", "what", "imbalance", "transform")
    for entry in [*ENTRIES, *OWN]:
        imbalance = "by lists" if entry.fixed else "as it is" if entry.imbalance is None else f"{entry.imbalance:g}"
        table.add_row(entry.name, entry.summary, imbalance, entry.transform)
    Console().print(table)
