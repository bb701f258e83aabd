"""Tables of an analysis or a comparison, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._utils.plain_text import cell
from ..metrics import LOWEST
from .analysis import GROUPS, STANDS_OUT, Analysis
from .comparison import DIFFERENCES, Comparison, Difference
from .text_table import DASH, MINUS, TITLES, Table, number, plain, to_latex, to_markdown

FIGURES = ("overall", "balanced", *GROUPS, "worst")
CSV_COLUMNS = (
    *("predictions", "index", "class", "group", "train_count", "test_count", "accuracy", "low", "high", "precision"),
    *(f"taken_for_{rank}{part}" for rank in (1, 2, 3) for part in ("", "_share")),
)


def with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    """``43.9 (42.9–44.9)``: a figure and its 95 % interval."""
    return number(value) if interval is None else f"{number(value)} ({number(interval[0])}{DASH}{number(interval[1])})"


def figure(analysis: Analysis, key: str) -> str:
    value = analysis.metrics["worst_test" if key == "worst" else key]
    return with_interval(value, analysis.intervals[key])


def signed(difference: Difference | None) -> str:
    if difference is None:
        return "n/a"
    value, low, high = (
        number(bound, sign=True).replace("-", MINUS) for bound in (difference.value, difference.low, difference.high)
    )
    return f"{value} ({low} to {high})"


def probability(p: float | None) -> str:
    return "n/a" if p is None else f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def accuracy_table(analyses: Sequence[Analysis], results: Sequence[Mapping[str, Any]] = ()) -> Table:
    """One row per set of predictions. ``results`` of runs add what only training knows: the worst class there."""
    training = {"worst_train": ("worst class in training", 1), "worst_ratio": ("WR", 3)}
    extra = [key for key in training if any(entry.get(key) is not None for entry in results)]
    header = (
        *("", *(TITLES.get(key, key) for key in FIGURES), *(training[key][0] for key in extra)),
        *("classes at 0", "lowest 10 %", "lowest 20 %", "macro F1", "ECE", "spectral norm"),
    )
    rows = []
    for at, analysis in enumerate(analyses):
        metrics = analysis.metrics
        rows.append(
            (
                analysis.predictions.name,
                *(figure(analysis, key) for key in FIGURES),
                *(number(results[at].get(key), training[key][1]) for key in extra),
                f"{metrics['zero_classes']:,}",
                *(number(metrics[key]) for key in LOWEST),
                number(metrics["macro_f1"]),
                number(metrics["ece"]),
                number(metrics["spectral_norm"], 3),
            )
        )
    return Table("Accuracy in percent, with 95 % intervals", header, rows)


def confusion_table(analysis: Analysis, top: int = 10) -> Table:
    """The most frequent confusions."""
    names = analysis.predictions.class_names
    rows = [
        (names[entry.true], names[entry.predicted], f"{entry.count:,}", number(entry.share))
        for entry in analysis.top_confusions[:top]
    ]
    header = ("true class", "taken for", "times", "% of the true class")
    return Table(f"Most frequent confusions of {analysis.predictions.name}", header, rows, text_columns=2)


def worst_table(analysis: Analysis, top: int = 10) -> Table:
    """The classes with the lowest accuracy, and what they are taken for."""
    rows = []
    for label in analysis.worst[:top]:
        entry = analysis.per_class[label]
        train = "n/a" if entry["train_count"] is None else f"{entry['train_count']:,}"
        figures = with_interval(entry["accuracy"], (entry["low"], entry["high"]))
        rows.append((entry["name"], taken_for(analysis, label), train, f"{entry['test_count']:,}", figures))
    header = ("class", "taken for", "train", "test", "accuracy")
    return Table(f"Lowest classes of {analysis.predictions.name}", header, rows, text_columns=2)


def taken_for(analysis: Analysis, label: int) -> str:
    names = analysis.predictions.class_names
    parts = [f"{names[entry.predicted]} {number(entry.share, 0)} %" for entry in analysis.per_class[label]["taken_for"]]
    return ", ".join(parts) or "nothing else"


def difference_table(comparison: Comparison) -> Table:
    """One row per set of predictions but the first: differences in points, McNemar's test, classes that changed."""
    rows = []
    for pair in comparison.pairs:
        better = sum(entry["significant"] and entry["difference"] > 0 for entry in pair.per_class)
        worse = sum(entry["significant"] and entry["difference"] < 0 for entry in pair.per_class)
        figures = (signed(pair.differences[key]) for key in DIFFERENCES)
        rows.append((pair.name, *figures, probability(pair.p_exact), f"{better:,} / {worse:,}"))
    header = ("", *(TITLES.get(key, key) for key in DIFFERENCES), "McNemar p", "classes clearly better / worse")
    base = comparison.analyses[0].predictions.name
    return Table(f"Difference from {base} in points, with 95 % intervals", header, rows)


def direction_text(analysis: Analysis) -> str:
    """The strongest direction of confusion, in a sentence."""
    spectrum, names = analysis.spectrum, analysis.predictions.class_names
    if spectrum is None:
        return "Nothing is confused: every test image is recognised."
    values = spectrum.singular_values
    next_one = f", the next {number(values[1], 2)}" if len(values) > 1 else ""
    unweighted = "" if analysis.predictions.class_counts is not None else " without class weights"
    strength = f"(singular value {number(values[0], 2)}{next_one}{unweighted})"
    true, given = (
        f"{', '.join(f'“{names[label]}”' for label in part)} ({number(share, 0)} % of it)"
        if share >= STANDS_OUT
        else f"many classes, of which the first {len(part)} hold {number(share, 0)} %"
        for part, share in (
            (spectrum.top_true, spectrum.share_true), (spectrum.top_predicted, spectrum.share_predicted),
        )
    )  # fmt: skip
    if spectrum.share_true >= STANDS_OUT:
        return f"The strongest direction of confusion {strength} leads from {true} to {given}."
    return f"No small group stands out: the strongest direction of confusion {strength} leads from {true}, to {given}."


def all_tables(
    analyses: Sequence[Analysis], comparison: Comparison | None = None, top: int = 10,
    results: Sequence[Mapping[str, Any]] = (),
) -> list[Table]:  # fmt: skip
    tables = [accuracy_table(analyses, results)]
    if comparison is not None:
        tables.append(difference_table(comparison))
    for analysis in analyses:
        tables += [confusion_table(analysis, top), worst_table(analysis, top)]
    return tables


def markdown(tables: Sequence[Table], analyses: Sequence[Analysis]) -> str:
    """Tables as Markdown, and each direction of confusion as a sentence."""
    parts = [f"{plain(entry.predictions.name)}: {plain(direction_text(entry))}\n" for entry in analyses]
    return "\n".join([*map(to_markdown, tables), *parts])


def latex(tables: Sequence[Table]) -> str:
    """Tables as LaTeX with booktabs rules."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(map(to_latex, tables))


def csv_text(analyses: Sequence[Analysis]) -> str:
    """One line per class and set of predictions, every figure in full."""
    rows = []
    for analysis in analyses:
        names = analysis.predictions.class_names
        for entry in analysis.per_class:
            figures = [entry[key] for key in CSV_COLUMNS[4:10]]
            taken = [part for confusion in entry["taken_for"] for part in (names[confusion.predicted], confusion.share)]
            row = [analysis.predictions.name, entry["index"], entry["name"], entry["group"], *figures, *taken]
            rows.append(row + [None] * (len(CSV_COLUMNS) - len(row)))
    return to_csv(CSV_COLUMNS, rows)


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    return file.getvalue()
