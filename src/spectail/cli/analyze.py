"""`spectail analyze FILE...`: which classes a model confuses, from its predictions alone."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from .._utils.files import whole_file, write_json
from .._utils.names import nearest
from ..diagnosis.analysis import GROUPS, TOP, Analysis, analyse, summary
from ..diagnosis.comparison import Comparison, compare, comparison_summary
from ..diagnosis.prediction_files import read_predictions
from ..diagnosis.tables import all_tables, csv_text, latex, markdown
from .arguments import read_flags
from .console import make_console
from .outputs import check_output

FORMATS = (".html", ".json", ".csv", ".md", ".tex")
FLOORS = {
    "overall": ("overall", "overall accuracy"),
    "balanced": ("balanced", "mean class accuracy"),
    **{group: (group, f"accuracy on {group} classes") for group in GROUPS},
    "worst": ("worst_test", "accuracy of the worst class"),
    "lowest10": ("bottom_10pct", "accuracy on the lowest 10 % of the classes"),
    "f1": ("macro_f1", "macro F1"),
}
"""Figures that --fail-under knows: where they stand, and what they are called."""
HEAVY = 1 << 28  # bytes of scores that are not kept once they have been counted


@dataclass(frozen=True)
class Analyze:
    """Show which classes a model confuses, from its predictions alone. Several files are compared with the first.

    A file is the folder of a run, .npz (labels, and logits, probabilities or predicted), .csv or .parquet (a column
    of labels, and predicted classes or one column of scores per class), or .npy labels with --scores.
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Files of predictions, or folders of runs."""
    names: Path | None = None
    """Class names in label order: one per line, a JSON list, or a JSON mapping between numbers and names."""
    counts: Path | None = None
    """Training images per class, from which head, medium and tail follow: one per line, JSON, or .npy."""
    label_column: str | None = None
    """Column of the labels, if it has no usual name."""
    prediction_column: str | None = None
    """Column of the predicted classes, if it has no usual name."""
    scores: str | None = None
    """The .npy file that goes with .npy labels, or how the names of the score columns begin."""
    groups: str = "count"
    """Rule for head, medium and tail: count, oltr, if100, ranges or thirds."""
    output: Path | None = None
    """File to write: .html (the whole report), .json, .csv (classes), .md or .tex (tables)."""
    json: bool = False
    """Print everything as JSON."""
    top: int = 10
    """Number of confusions and of classes to show."""
    fail_under: tuple[str, ...] = ()
    """Floors in percent, such as worst=30 tail=50, for use in CI: the exit code is 1 if a figure is below its floor.
    Figures are overall, balanced, head, medium, tail, worst, lowest10 and f1."""


def run(arguments: list[str]) -> int:
    options = read_flags(Analyze, "spectail analyze", arguments)
    floors = _check(options)
    analyses = _distinct([_analysis(path, options) for path in options.files], options.files)
    console = make_console(stderr=options.json)
    comparison, reason = _compared(analyses)
    if options.output is not None:
        _write(options.output, analyses, comparison, options.top)
    if options.json:
        for analysis in analyses:
            for note in analysis.predictions.notes:
                console.print(f"{analysis.predictions.name}: {note}", soft_wrap=True)
        print(json.dumps(_content(analyses, comparison), ensure_ascii=False, allow_nan=False))
    else:
        from ..diagnosis.terminal import show  # noqa: PLC0415 - JSON does not need tables

        show(console, analyses, comparison, options.top)
    if reason:
        console.print(f"not compared: {reason}", soft_wrap=True)
    if options.output is not None:
        console.print(f"written to {options.output}", soft_wrap=True)
    elif not options.json:
        console.print("--output report.html writes the whole report.")
    missed = [line for analysis in analyses for line in _missed(analysis, floors)]
    for line in missed:
        print(f"spectail analyze: {line}", file=sys.stderr)
    return int(bool(missed))


def _check(options: Analyze) -> dict[str, float]:
    """What can be known to fail before anything is read; the floors, by figure."""
    if not options.files:
        raise ValueError("name at least one file of predictions, or the folder of a run.")
    if not 1 <= options.top <= TOP:
        raise ValueError(f"--top must lie in 1 to {TOP}; got {options.top}.")
    output = options.output
    if output is not None:
        read = [path for path in (*options.files, options.names, options.counts) if path is not None]
        check_output(output, FORMATS, read=[*read, Path(options.scores)] if options.scores else read)
    floors = {}
    for text in options.fail_under:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise ValueError(f"--fail-under takes a figure and a number of percent, such as worst=30; got {text!r}.")
        if name not in FLOORS:
            raise ValueError(f"--fail-under {text}: there is no figure {name!r}; {nearest(name, FLOORS)}")
        floors[name] = float(value)
    return floors


def _missed(analysis: Analysis, floors: dict[str, float]) -> Iterator[str]:
    """A sentence for each floor that is not kept."""
    for name, floor in floors.items():
        key, title = FLOORS[name]
        value = analysis.metrics[key]
        if value is None:
            why = " Pass the training images per class with --counts." if name in GROUPS else ""
            raise ValueError(f"--fail-under {name}={floor:g}: {analysis.predictions.name} has no such figure.{why}")
        if value < floor:
            which = f", class {analysis.metrics['worst_test_class']!r}" if name == "worst" else ""
            yield f"{analysis.predictions.name}: {title} is {value:.1f} %{which}, below the floor of {floor:g} %."


def _analysis(path: Path, options: Analyze) -> Analysis:
    predictions = read_predictions(
        path, names=options.names, counts=options.counts, label_column=options.label_column,
        prediction_column=options.prediction_column, scores=options.scores,
    )  # fmt: skip
    analysis = analyse(predictions, convention=options.groups)
    if predictions.logits is not None and predictions.logits.nbytes > HEAVY:
        analysis = replace(analysis, predictions=predictions.without_logits())
    return analysis


def _distinct(analyses: list[Analysis], files: tuple[Path, ...]) -> list[Analysis]:
    """Files of one name in different folders are told apart by the path."""
    seen = Counter(analysis.predictions.name for analysis in analyses)
    return [
        replace(analysis, predictions=replace(analysis.predictions, name=str(file)))
        if seen[analysis.predictions.name] > 1
        else analysis
        for analysis, file in zip(analyses, files, strict=True)
    ]


def _compared(analyses: list[Analysis]) -> tuple[Comparison | None, str]:
    """The comparison, or why there is none: predictions on different images can still be shown side by side."""
    if len(analyses) < 2:
        return None, ""
    try:
        return compare(analyses), ""
    except ValueError as error:
        return None, str(error)


def _content(analyses: list[Analysis], comparison: Comparison | None) -> dict[str, Any]:
    return {
        "analyses": [summary(analysis) for analysis in analyses],
        "comparison": None if comparison is None else comparison_summary(comparison),
    }


def _write(path: Path, analyses: list[Analysis], comparison: Comparison | None, top: int) -> None:
    kind = path.suffix.lower()
    if kind == ".html":
        from ..report.page import write_report  # noqa: PLC0415 - the other formats do without matplotlib and jinja2

        write_report(analyses, path, comparison=comparison)
        return
    if kind == ".json":
        write_json(path, _content(analyses, comparison))
        return
    tables = all_tables(analyses, comparison, top)
    text = {".csv": csv_text(analyses), ".md": markdown(tables, analyses), ".tex": latex(tables)}[kind]
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
