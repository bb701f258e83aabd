"""The diagnosis on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable

from .analysis import GROUPS, Analysis
from .comparison import Comparison
from .tables import (
    FIGURES,
    TITLES,
    confusion_table,
    direction_text,
    figure,
    probability,
    signed,
    worst_table,
)  # fmt: skip
from .text_table import Table, number


def show(console: Console, analyses: Sequence[Analysis], comparison: Comparison | None = None, top: int = 10) -> None:
    """Accuracies, differences, and for each set of predictions its confusions and its lowest classes."""
    console.print(accuracies(analyses))
    for analysis in analyses:
        for note in analysis.predictions.notes:
            console.print(f"{analysis.predictions.name}: {note}", soft_wrap=True)
    if any(analysis.predictions.class_counts is None for analysis in analyses):
        console.print("Without training images per class (--counts) there is no head, medium and tail.")
    if comparison is not None:
        console.print(differences(comparison))
    for analysis in analyses:
        for table in (confusion_table(analysis, top), worst_table(analysis, top)):
            if table.rows:
                console.print(plain(table))
        console.print(direction_text(analysis), soft_wrap=True)
        untested = sum(entry["test_count"] == 0 for entry in analysis.per_class)
        if untested:
            noun = "class without test images counts" if untested == 1 else "classes without test images count"
            console.print(f"{untested:,} {noun} nowhere.")


def accuracies(analyses: Sequence[Analysis]) -> RichTable:
    """One column per set of predictions: intervals are wide, and there are few sets."""
    table = RichTable(title="Accuracy in percent (95 % interval)", title_justify="left")
    table.add_column("")
    for analysis in analyses:
        table.add_column(analysis.predictions.name, justify="right")
    groups = analyses[0].metrics["groups"]
    for key in FIGURES:
        if key in GROUPS and all(analysis.metrics["groups"] is None for analysis in analyses):
            continue
        size = f" ({_classes(groups[key])})" if key in GROUPS and groups is not None else ""
        table.add_row(TITLES.get(key, key) + size, *(figure(analysis, key) for analysis in analyses))
    table.add_row("", *map(_worst, analyses))
    table.add_row("classes at 0", *(f"{analysis.metrics['zero_classes']:,}" for analysis in analyses))
    table.add_row(TITLES["bottom_10pct"], *(number(analysis.metrics["bottom_10pct"]) for analysis in analyses))
    if any(analysis.calibration is not None for analysis in analyses):
        table.add_row("calibration error", *(number(analysis.metrics["ece"]) for analysis in analyses))
    norms = [analysis.metrics["spectral_norm"] for analysis in analyses]
    if any(norm is not None for norm in norms):
        table.add_row("spectral norm", *(number(norm, 3) for norm in norms))
    return table


def _classes(count: int) -> str:
    return f"{count:,} class" if count == 1 else f"{count:,} classes"


def _worst(analysis: Analysis) -> str:
    others = analysis.tied - 1
    return f"{analysis.metrics['worst_test_class']}{f' and {others:,} more' if others else ''}"


def differences(comparison: Comparison) -> RichTable:
    """One column per set of predictions but the first."""
    base = comparison.analyses[0].predictions.name
    table = RichTable(title=f"Difference from {base} in points (95 % interval)", title_justify="left")
    table.add_column("")
    for pair in comparison.pairs:
        table.add_column(pair.name, justify="right")
    for key in comparison.pairs[0].differences:
        found = [pair.differences[key] for pair in comparison.pairs]
        if any(found):
            table.add_row(TITLES.get(key, key), *map(signed, found))
    table.add_row("McNemar p, exact", *(probability(pair.p_exact) for pair in comparison.pairs))
    for text, sign in (("classes clearly better", 1), ("classes clearly worse", -1)):
        counts = [
            sum(entry["significant"] and entry["difference"] * sign > 0 for entry in pair.per_class)
            for pair in comparison.pairs
        ]
        table.add_row(text, *(f"{count:,}" for count in counts))
    return table


def plain(table: Table) -> RichTable:
    found = RichTable(title=table.title, title_justify="left")
    for place, name in enumerate(table.header):
        found.add_column(name, justify="left" if place < table.words else "right")
    for row in table.rows:
        found.add_row(*row)
    return found
