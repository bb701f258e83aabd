"""The diagnosis on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table as RichTable

from .analysis import GROUPS, Analysis
from .comparison import Comparison
from .tables import accuracy_table, confusion_table, difference_table, direction_text, worst_table
from .text_table import TITLES, Table, turned
from .verdict import verdict


def show(console: Console, analyses: Sequence[Analysis], comparison: Comparison | None = None, top: int = 10) -> None:
    """Accuracies, differences, and for each set of predictions its confusions and its lowest classes.

    Accuracies and differences have one column per set of predictions: intervals are wide, and there are few sets.
    """
    console.print(_rich(_explained(turned(accuracy_table(analyses)), analyses)))
    for analysis in analyses:
        for note in analysis.predictions.notes:
            console.print(f"{analysis.predictions.name}: {note}", soft_wrap=True)
    if any(analysis.predictions.class_counts is None for analysis in analyses):
        console.print("Without training images per class (--counts) there is no head, medium and tail.")
    if comparison is not None:
        console.print(_rich(turned(difference_table(comparison))))
        for pair in comparison.pairs:
            console.print(verdict(pair.name, pair.baseline, pair.differences), soft_wrap=True)
    for analysis in analyses:
        for table in (confusion_table(analysis, top), worst_table(analysis, top)):
            if table.rows:
                console.print(_rich(table))
        console.print(direction_text(analysis))
        untested = sum(entry["test_count"] == 0 for entry in analysis.per_class)
        if untested:
            noun = "class without test images counts" if untested == 1 else "classes without test images count"
            console.print(f"{untested:,} {noun} nowhere.")


def _explained(table: Table, analyses: Sequence[Analysis]) -> Table:
    """How many classes are in each group, and which class is the worst."""
    sizes = analyses[0].metrics["groups"] or {}
    rows = []
    for title, *figures in table.rows:
        size = f" ({sizes[title]:,} class{'' if sizes[title] == 1 else 'es'})" if title in GROUPS and sizes else ""
        rows.append((title + size, *figures))
        if title == TITLES["worst"]:
            rows.append(("", *map(_worst, analyses)))
    return replace(table, rows=rows)


def _worst(analysis: Analysis) -> str:
    others = analysis.tied - 1
    return f"{analysis.metrics['worst_test_class']}{f' and {others:,} more' if others else ''}"


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left")
    for column, name in enumerate(table.header):
        shown.add_column(name, justify="left" if column < table.text_columns else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown
