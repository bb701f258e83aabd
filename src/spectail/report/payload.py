"""What the page carries for its scripts and for download: every number, packed into JSON."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Collection
from typing import Any

import numpy as np
from markupsafe import Markup

from ..diagnosis.analysis import Analysis
from .figures import cluster_order, matrix_cells
from .seeds import SeedStudy

DETAILED = 6  # runs shown in full; more would make a page nobody scrolls through
CELLS = 250_000  # of a confusion matrix that are drawn


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
