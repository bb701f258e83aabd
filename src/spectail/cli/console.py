"""The terminal: progress of a run, tables of results. Plain lines where there is no terminal."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, track
from rich.table import Table
from rich.text import Text

from .._utils.plain_text import visible
from ..training.reporter import Reporter

COLUMNS = ("overall", "head", "medium", "tail", "worst_test", "zero_classes", "bottom_10pct", "seconds")
MATTER = ("overall", "tail", "worst_test", "head", "medium", "bottom_10pct", "zero_classes", "seconds")
"""The columns again, those first that are shown on a narrow terminal too."""
TITLES = {"worst_test": "worst class", "zero_classes": "classes at 0", "bottom_10pct": "lowest 10 %"}
NAME = 16  # characters of a method's name before it is wrapped


class PlainConsole(Console):
    """Shows names from anywhere as they are, and obeys none of them: terminals take codes inside text as orders."""

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        return super().render_str(visible(text), *args, **options)


def make_console(*, stderr: bool = False) -> Console:
    """Names of classes and folders may hold brackets, so nothing is read as markup."""
    return PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


MOST_LINES = 200
"""About epochs, of a run with more of them: that of a head may have thousands."""


class ConsoleReporter(Reporter):
    """A bar per epoch on a terminal, a line per epoch, or per several if there are many; only the first process
    speaks."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.is_main = os.environ.get("RANK", "0") == "0"
        self.quiet = quiet or not self.is_main
        self.bar: Progress | None = None

    def start(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, soft_wrap=True)

    def track(self, items: Iterable[Any], description: str, total: int) -> Iterable[Any]:
        if self.quiet:
            return items
        if self.console.is_terminal:
            return track(items, description, total=total, console=self.console, transient=True)
        self.console.print(f"{description}: {total:,}")
        return items

    def begin_epoch(self, stage: str, epoch: int, epochs: int, steps: int, done: int) -> None:
        self.title, self.shown = f"{stage} {epoch + 1}/{epochs}", time.monotonic()
        self.told = (epoch + 1) % -(-epochs // MOST_LINES) == 0 or epoch + 1 == epochs
        if self.quiet or not self.console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=self.console, transient=True)
        self.task = self.bar.add_task(self.title, total=steps, completed=done, figures="")
        self.bar.start()

    def step(self, done: int, figures: Callable[[], dict[str, float]]) -> None:
        if self.bar is not None and time.monotonic() - self.shown > 0.5:
            self.shown = time.monotonic()
            self.bar.update(self.task, completed=done, figures=_figures(figures()))

    def end_epoch(self, entry: dict[str, Any]) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
        if self.told and not self.quiet:
            self.console.print(f"{self.title}  {_figures(entry)}", soft_wrap=True)


def _figures(entry: dict[str, Any]) -> str:
    names = {"loss": "loss", "spectral_norm": "spectral norm", "worst_error": "worst error"}
    names |= {"val_overall": "val", "val_tail": "val tail"}
    parts = [f"{text} {entry[name]:.3f}" for name, text in names.items() if isinstance(entry.get(name), float)]
    if "images_per_second" in entry:
        parts.append(f"{entry['images_per_second']:,.0f} images/s")
    if entry.get("data_seconds", 0) >= 1:
        parts.append(f"waited {entry['data_seconds']:,.0f} s for data")
    return "  ".join(parts)


def show_results(console: Console, runs: dict[str, list[dict[str, Any]]]) -> None:
    """One row per method, mean and standard deviation over its runs, in as many columns as fit."""
    cells = {column: [_mean([result.get(column) for result in results]) for results in runs.values()]
             for column in COLUMNS}  # fmt: skip
    seeds = {len(results) for results in runs.values()}
    if len(seeds) > 1:
        cells["seeds"] = [str(len(results)) for results in runs.values()]
    width = {column: max(map(len, [TITLES.get(column, column), *values])) + 3 for column, values in cells.items()}
    room = console.width - 4 - min(NAME, max(map(len, [*runs, "method"]))) - width.get("seeds", 0)
    kept = {"seeds"}
    for column in MATTER:
        if width[column] <= room:
            kept.add(column)
            room -= width[column]
    title = f"percent right, mean ± standard deviation over {max(seeds)} seeds" if max(seeds) > 1 else "percent right"
    table = Table(title=title, title_justify="left")
    table.add_column("method", overflow="fold")
    shown = [column for column in cells if column in kept]
    for column in shown:
        table.add_column(TITLES.get(column, column), no_wrap=True, justify="right")
    for place, name in enumerate(runs):
        table.add_row(name, *(cells[column][place] for column in shown))
    console.print(table)
    for name, results in runs.items():
        if len(results) == 1 and results[0].get("worst_test_interval"):
            result = results[0]
            low, high = result["worst_test_interval"]
            others = ", ".join(f"{entry['class']} {entry['accuracy']:.0f}" for entry in result["worst_test_next"][:3])
            console.print(
                f"{name}: worst class {result['worst_test_class']} at {result['worst_test']:.1f} % "
                f"(95 % interval {low:.1f} to {high:.1f}); next {others}", soft_wrap=True,
            )  # fmt: skip
        for selection in sorted({result["selection"] for result in results if "TEST" in result["selection"]}):
            console.print(f"{name}: selected by {selection}")


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "n/a"
    mean = statistics.fmean(known)
    return f"{mean:.1f} ± {statistics.stdev(known):.1f}" if len(known) > 1 else f"{mean:.1f}"
