"""What can be taken from the page as files: every number and every table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import __version__
from .._core.pairs import Pairs
from ..diagnosis.analysis import Analysis, summary
from ..diagnosis.comparison import Comparison, comparison_summary
from ..diagnosis.tables import csv_text, latex, markdown, to_csv
from .curves import Panel
from .seeds import SeedStudy, seed_tables

if TYPE_CHECKING:
    from .run_record import RunRecord

TESTED = ("only_baseline", "only_other", "p", "p_holm", "significant")


def download_files(
    analyses: Sequence[Analysis],
    comparison: Comparison | None = None,
    runs: Sequence[RunRecord] = (),
    panels: Sequence[Panel] = (),
    study: SeedStudy | None = None,
) -> dict[str, tuple[str, str]]:
    """What can be downloaded: name of the file, what it is, and its text. There is one run per analysis, or none."""
    numbers: dict[str, Any] = {"spectail": __version__, "analyses": [summary(analysis) for analysis in analyses]}
    titles = [analysis.predictions.name for analysis in analyses]
    if comparison is not None:
        numbers["comparison"] = comparison_summary(comparison)
    if study is not None:
        numbers["seeds"] = asdict(study)
    before = [] if study is None else seed_tables(study)
    if runs:
        numbers["runs"] = [_run(run, name) for run, name in zip(runs, titles, strict=True)]
    if panels:
        numbers["settings"] = [asdict(panel) for panel in panels]
    results = [run.results for run in runs]
    files = {"classes.csv": ("Every class (CSV)", csv_text(analyses)),
             "confusions.csv": ("Every confusion (CSV)", _confusions(analyses))}  # fmt: skip
    pairs = study.pairs if study is not None else comparison.pairs if comparison is not None else []
    if pairs:
        files["differences.csv"] = ("Differences of every class (CSV)", _differences(pairs))
    if any(run.curves for run in runs):
        files["training.csv"] = ("Every epoch (CSV)", _training(runs, titles))
    text = json.dumps(finite(numbers), ensure_ascii=False, allow_nan=False)
    return files | {
        "tables.md": ("Tables (Markdown)", markdown(analyses, comparison, results=results, before=before)),
        "tables.tex": ("Tables (LaTeX)", latex(analyses, comparison, results=results, before=before)),
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
