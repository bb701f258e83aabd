"""What the page carries for its scripts and for download: every number, packed into JSON."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
from typing import Any

import numpy as np
from markupsafe import Markup

from .. import __version__
from .analysis import Analysis, summary
from .comparison import Comparison, comparison_summary
from .figures import cluster_order, matrix_cells
from .statistics import Pairs
from .tables import csv_text, latex, markdown

DETAILED = 6  # runs shown in full; more would make a page nobody scrolls through
CELLS = 250_000  # of a confusion matrix that are drawn


def hidden_cells(analysis: Analysis) -> int:
    """How many cells of the confusion matrix are not drawn because there are too many."""
    return 0 if analysis.confusion is None else max(int(np.count_nonzero(analysis.confusion)) - CELLS, 0)


def payload(analyses: list[Analysis], files: dict[str, tuple[str, str]]) -> Markup:
    """All numbers for the scripts of the page, as JSON that cannot end its element."""
    content = {
        "classes": analyses[0].predictions.class_names,
        "runs": [_run_data(analysis, whole=place < DETAILED) for place, analysis in enumerate(analyses)],
        "files": {name: _packed(text) for name, (_, text) in files.items()},
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _run_data(analysis: Analysis, *, whole: bool) -> dict[str, Any]:
    entries = analysis.per_class
    counted = analysis.predictions.class_counts is not None
    taken = [entry["taken_for"] for entry in entries]
    return {
        "name": analysis.predictions.name,
        "train": [entry["train_count"] for entry in entries] if counted else None,
        "group": [entry["group"] for entry in entries] if counted else None,
        "test": [entry["test_count"] for entry in entries],
        **{key: [_rounded(entry[key]) for entry in entries] for key in ("accuracy", "low", "high", "precision")},
        "taken": [[most[0].predicted, most[0].count] if most else None for most in taken],
        "confusion": matrix_cells(analysis.confusion, CELLS) if whole and analysis.confusion is not None else None,
        "orders": _orders(analysis) if whole and analysis.confusion is not None else None,
    }


def _orders(analysis: Analysis) -> dict[str, list[int]]:
    assert analysis.confusion is not None
    counts = analysis.predictions.class_counts
    orders = {"cluster": cluster_order(analysis.confusion), "label": list(range(analysis.predictions.num_classes))}
    return ({"count": np.argsort(-counts, kind="stable").tolist()} if counts is not None else {}) | orders


def download_files(analyses: list[Analysis], comparison: Comparison | None) -> dict[str, tuple[str, str]]:
    """What can be downloaded: name of the file, what it is, and its text."""
    numbers: dict[str, Any] = {"spectail": __version__, "analyses": [summary(analysis) for analysis in analyses]}
    if comparison is not None:
        numbers["comparison"] = comparison_summary(comparison)
    return {
        "classes.csv": ("Every class (CSV)", csv_text(analyses)),
        "confusions.csv": ("Every confusion (CSV)", _confusions(analyses)),
        "tables.md": ("Tables (Markdown)", markdown(analyses, comparison)),
        "tables.tex": ("Tables (LaTeX)", latex(analyses, comparison)),
        "report.json": ("All numbers (JSON)", json.dumps(numbers, ensure_ascii=False)),
    }


def _confusions(analyses: list[Analysis]) -> str:
    """One line per pair of classes that is confused at least once."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("predictions", "true", "predicted", "true_class", "predicted_class", "count"))
    for analysis in analyses:
        found = analysis.predictions
        wrong = Pairs.of(found.predicted, found.labels, found.num_classes).wrong()
        for true, predicted, count in zip(
            wrong.true.tolist(), wrong.predicted.tolist(), wrong.count.tolist(), strict=True
        ):
            names = found.class_names[true], found.class_names[predicted]
            writer.writerow((found.name, true, predicted, *names, count))
    return file.getvalue()


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode("ascii")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)  # shown with one decimal: rounding twice must not show
