"""What the page carries for its scripts and for download: every number, packed into JSON."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from .. import __version__
from .._core.pairs import Pairs
from ..diagnosis.analysis import Analysis, summary
from ..diagnosis.comparison import Comparison, comparison_summary
from ..diagnosis.tables import all_tables, csv_text, latex, markdown, to_csv
from .advice import AdviceView
from .curves import Panel
from .figures import cluster_order, matrix_cells
from .mistakes import mistakes_csv
from .seeds import SeedStudy, seed_tables

if TYPE_CHECKING:
    from .run_record import RunRecord

DETAILED = 6  # runs shown in full; more would make a page nobody scrolls through
CELLS = 250_000  # of a confusion matrix that are drawn
TESTED = ("only_baseline", "only_other", "p", "p_holm", "significant")


def hidden_cells(analysis: Analysis) -> int:
    """How many cells of the confusion matrix are not drawn because there are too many."""
    return 0 if analysis.confusion is None else max(int(np.count_nonzero(analysis.confusion)) - CELLS, 0)


def with_matrix(analyses: list[Analysis], shown: list[int], study: SeedStudy | None) -> list[int]:
    """The runs whose confusion matrix the page has: those shown in full, and other seeds while there is room."""
    kept, room = list(shown), DETAILED * CELLS
    for index, analysis in enumerate(analyses if study is not None else []):
        room -= 0 if analysis.confusion is None else min(int(np.count_nonzero(analysis.confusion)), CELLS)
        if index not in kept and room >= 0:
            kept.append(index)
    return sorted(kept)


def payload(
    analyses: list[Analysis], files: dict[str, tuple[str, str]], whole: Collection[int], study: SeedStudy | None
) -> Markup:
    """All numbers for the scripts of the page, as JSON that cannot end its element.

    The confusion matrices are those of the runs in ``whole``.
    """
    content = {
        "classes": analyses[0].predictions.class_names,
        "runs": [_run_data(analysis, whole=index in whole) for index, analysis in enumerate(analyses)],
        "groups": None if study is None else [{"name": group.name, "runs": group.places} for group in study.groups],
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


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode("ascii")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)  # as text_table.number: scripts must round the same figure


def download_files(
    analyses: Sequence[Analysis],
    comparison: Comparison | None = None,
    runs: Sequence[RunRecord] = (),
    panels: Sequence[Panel] = (),
    study: SeedStudy | None = None,
    advice: Sequence[AdviceView] = (),
) -> dict[str, tuple[str, str]]:
    """What can be downloaded: name of the file, what it is, and its text. There is one run per analysis, or none."""
    numbers: dict[str, Any] = {"spectail": __version__, "analyses": [summary(analysis) for analysis in analyses]}
    titles = [analysis.predictions.name for analysis in analyses]
    if comparison is not None:
        numbers["comparison"] = comparison_summary(comparison)
    if study is not None:
        numbers["seeds"] = asdict(study)
    if runs:
        numbers["runs"] = [_run(run, name) for run, name in zip(runs, titles, strict=True)]
    if panels:
        numbers["settings"] = [asdict(panel) for panel in panels]
    tables = [] if study is None else seed_tables(study)
    tables += all_tables(analyses, comparison, results=[run.results for run in runs])
    files = {"classes.csv": ("Every class (CSV)", csv_text(analyses)),
             "confusions.csv": ("Every confusion (CSV)", _confusions(analyses)),
             "mistakes.csv": ("Every mistaken image by name (CSV)", mistakes_csv(analyses))}  # fmt: skip
    pairs = study.pairs if study is not None else comparison.pairs if comparison is not None else []
    if pairs:
        files["differences.csv"] = ("Differences of every class (CSV)", _differences(pairs))
    if any(run.curves for run in runs):
        files["training.csv"] = ("Every epoch (CSV)", _training(runs, titles))
    for place, view in enumerate(advice, 1):
        of = f" of {view.name}" if len(advice) > 1 else ""
        files[f"advice{place if of else ''}.csv"] = (f"What you can do{of} (CSV)", view.advice.csv_text())
    text = json.dumps(finite(numbers), ensure_ascii=False, allow_nan=False)
    return files | {
        "tables.md": ("Tables (Markdown)", markdown(tables, analyses)),
        "tables.tex": ("Tables (LaTeX)", latex(tables)),
        "report.json": ("All numbers (JSON)", text),
    }


def finite(value: Any) -> Any:
    """The same without NaN and infinities, which JSON does not have: they become null."""
    if isinstance(value, dict):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _run(run: RunRecord, name: str) -> dict[str, Any]:
    from ..training.config_io import to_dict  # noqa: PLC0415 - predictions without runs need no training code

    return {"name": name, "command": run.command, "identity": run.manifest.identity, "config": to_dict(run.config),
            "results": run.results, "epochs": run.curves}  # fmt: skip


def _training(runs: Sequence[RunRecord], titles: Sequence[str]) -> str:
    """One line per run and epoch, with whatever any of them logged; epochs are counted through all stages."""
    keys = list(dict.fromkeys(key for run in runs for row in run.curves for key in row))
    rows = (
        [name, row_number, *(_cell(row.get(key)) for key in keys)]
        for run, name in zip(runs, titles, strict=True)
        for row_number, row in enumerate(run.curves, 1)
    )
    return to_csv(["run", "row", *keys], rows)


def _cell(value: Any) -> Any:
    value = finite(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _differences(pairs: Sequence[Any]) -> str:
    """One line per class and pair; the tests are there where two runs were compared, not means over seeds."""
    tested = [key for key in TESTED if key in pairs[0].per_class[0]]
    rows = (
        [pair.baseline, pair.name, *(entry[key] for key in ("index", "name", "baseline", "other", "difference")),
         *(entry[key] for key in tested)]
        for pair in pairs
        for entry in pair.per_class
    )  # fmt: skip
    return to_csv(["baseline", "other", "index", "class", "baseline_accuracy", "other_accuracy", "difference", *tested],
                  rows)  # fmt: skip


def _confusions(analyses: Sequence[Analysis]) -> str:
    """One line per pair of classes that is confused at least once."""
    rows = []
    for analysis in analyses:
        predictions, names = analysis.predictions, analysis.predictions.class_names
        wrong = Pairs.of(predictions.predicted, predictions.labels, predictions.num_classes).wrong()
        for true, predicted, count in zip(
            wrong.true.tolist(), wrong.predicted.tolist(), wrong.count.tolist(), strict=True
        ):
            rows.append((predictions.name, true, predicted, names[true], names[predicted], count))
    return to_csv(("predictions", "true", "predicted", "true_class", "predicted_class", "count"), rows)
