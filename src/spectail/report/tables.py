"""Tables of an analysis or a comparison, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .analysis import GROUPS, Analysis
from .comparison import Comparison, Difference

FIGURES = ("overall", "balanced", *GROUPS, "worst")
TITLES = {"balanced": "mean of classes", "worst": "worst class", "bottom_10pct": "lowest 10 % of classes"}
CSV_COLUMNS = (
    *("predictions", "index", "class", "group", "train_count", "test_count", "accuracy", "low", "high", "precision"),
    *(f"taken_for_{place}{part}" for place in (1, 2, 3) for part in ("", "_share")),
)
DASH, MINUS = "\u2013", "\u2212"
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", DASH: "--", MINUS: "$-$"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " "}
)
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\|*_`<>[]#"} | {"\n": " ", "\r": " "})


@dataclass(frozen=True)
class Table:
    """A table as text, in no format yet. The first columns are words, the others figures."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: int = 1
    """How many columns are words."""


def number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"


def with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    """``43.9 (42.9–44.9)``: a figure and its 95 % interval."""
    return number(value) if interval is None else f"{number(value)} ({interval[0]:.1f}{DASH}{interval[1]:.1f})"


def figure(analysis: Analysis, key: str) -> str:
    value = analysis.metrics["worst_test" if key == "worst" else key]
    return with_interval(value, analysis.intervals[key])


def signed(difference: Difference | None) -> str:
    if difference is None:
        return "n/a"
    value, low, high = (
        f"{bound:+.1f}".replace("-", MINUS) for bound in (difference.value, difference.low, difference.high)
    )
    return f"{value} ({low} to {high})"


def probability(p: float | None) -> str:
    return "n/a" if p is None else f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def accuracy_table(analyses: Sequence[Analysis]) -> Table:
    """One row per set of predictions."""
    header = ("", *(TITLES.get(key, key) for key in FIGURES), "classes at 0", "lowest 10 %", "ECE", "spectral norm")
    rows = []
    for analysis in analyses:
        metrics, norm = analysis.metrics, analysis.metrics["spectral_norm"]
        rows.append(
            (
                analysis.predictions.name,
                *(figure(analysis, key) for key in FIGURES),
                f"{metrics['zero_classes']:,}",
                number(metrics["bottom_10pct"]),
                number(metrics["ece"]),
                "n/a" if norm is None else f"{norm:.3f}",
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
    header = ("true class", "taken for", "test images", "% of the true class")
    return Table(f"Most frequent confusions of {analysis.predictions.name}", header, rows, words=2)


def worst_table(analysis: Analysis, top: int = 10) -> Table:
    """The classes with the lowest accuracy, and what they are taken for."""
    rows = []
    for label in analysis.worst[:top]:
        entry = analysis.per_class[label]
        train = "n/a" if entry["train_count"] is None else f"{entry['train_count']:,}"
        figures = with_interval(entry["accuracy"], (entry["low"], entry["high"]))
        rows.append((entry["name"], taken_for(analysis, label), train, f"{entry['test_count']:,}", figures))
    header = ("class", "taken for", "train", "test", "accuracy")
    return Table(f"Lowest classes of {analysis.predictions.name}", header, rows, words=2)


def taken_for(analysis: Analysis, label: int) -> str:
    names = analysis.predictions.class_names
    parts = [f"{names[entry.predicted]} {entry.share:.0f} %" for entry in analysis.per_class[label]["taken_for"]]
    return ", ".join(parts) or "nothing else"


def difference_table(comparison: Comparison) -> Table:
    """One row per set of predictions but the first: differences in points, McNemar's test, classes that changed."""
    keys = ("overall", "balanced", *GROUPS, "bottom_10pct")
    rows = []
    for pair in comparison.pairs:
        better = sum(entry["significant"] and entry["difference"] > 0 for entry in pair.per_class)
        worse = sum(entry["significant"] and entry["difference"] < 0 for entry in pair.per_class)
        figures = (signed(pair.differences[key]) for key in keys)
        rows.append((pair.name, *figures, probability(pair.p_exact), f"{better:,} / {worse:,}"))
    header = ("", *(TITLES.get(key, key) for key in keys), "McNemar p", "classes better / worse")
    base = comparison.analyses[0].predictions.name
    return Table(f"Difference from {base} in points, with 95 % intervals", header, rows)


def direction_text(analysis: Analysis) -> str:
    """The strongest direction of confusion, in words."""
    spectrum, names = analysis.spectrum, analysis.predictions.class_names
    if spectrum is None:
        return "Nothing is confused: every test image is recognised."
    values = spectrum.singular_values
    true, predicted = (
        [_quoted(names[label]) for label in part] for part in (spectrum.top_true, spectrum.top_predicted)
    )
    share = float(spectrum.energy[spectrum.top_true].sum())
    given = float((spectrum.left[spectrum.top_predicted] ** 2).sum()) * 100
    next_one = f", the next {values[1]:.2f}" if len(values) > 1 else ""
    unweighted = "" if analysis.predictions.class_counts is not None else " without class weights"
    return (
        f"The strongest direction of confusion (singular value {values[0]:.2f}{next_one}{unweighted}) leads from "
        f"{', '.join(true)} ({share:.0f} % of it) to {', '.join(predicted)} ({given:.0f} %)."
    )


def all_tables(analyses: Sequence[Analysis], comparison: Comparison | None = None, top: int = 10) -> list[Table]:
    tables = [accuracy_table(analyses)]
    if comparison is not None:
        tables.append(difference_table(comparison))
    for analysis in analyses:
        tables += [confusion_table(analysis, top), worst_table(analysis, top)]
    return tables


def markdown(analyses: Sequence[Analysis], comparison: Comparison | None = None, top: int = 10) -> str:
    """All tables as Markdown, each direction of confusion as a sentence."""
    parts = [to_markdown(table) for table in all_tables(analyses, comparison, top)]
    parts += [f"{_plain(entry.predictions.name)}: {_plain(direction_text(entry))}\n" for entry in analyses]
    return "\n".join(parts)


def latex(analyses: Sequence[Analysis], comparison: Comparison | None = None, top: int = 10) -> str:
    """All tables as LaTeX with booktabs rules."""
    head = "% needs \\usepackage{booktabs}\n"
    return head + "\n".join(to_latex(table) for table in all_tables(analyses, comparison, top))


def csv_text(analyses: Sequence[Analysis]) -> str:
    """One line per class and set of predictions, every figure in full."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for analysis in analyses:
        names = analysis.predictions.class_names
        for entry in analysis.per_class:
            figures = [entry[key] for key in CSV_COLUMNS[4:10]]
            taken = [part for confusion in entry["taken_for"] for part in (names[confusion.predicted], confusion.share)]
            row = [analysis.predictions.name, entry["index"], entry["name"], entry["group"], *figures, *taken]
            writer.writerow(row + [None] * (len(CSV_COLUMNS) - len(row)))
    return file.getvalue()


def to_markdown(table: Table) -> str:
    lines = [f"**{_plain(table.title)}**", "", _line(map(_plain, table.header))]
    lines.append(_line("---" if place < table.words else "---:" for place in range(len(table.header))))
    lines += [_line(map(_plain, row)) for row in table.rows]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    columns = "l" * table.words + "r" * (len(table.header) - table.words)
    lines = [" & ".join(cell.translate(LATEX) for cell in row) + r" \\" for row in (table.header, *table.rows)]
    return "\n".join(
        [
            f"% {' '.join(table.title.split())}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    return text.translate(MARKDOWN)


def _quoted(name: str) -> str:
    return f"“{name}”"
