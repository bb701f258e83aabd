"""The report: one HTML file with every figure, table and number in it, which opens anywhere and fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .. import __version__
from .._utils.files import whole_file
from ..diagnosis.analysis import STANDS_OUT, Analysis
from ..diagnosis.comparison import Comparison
from ..diagnosis.text_table import number
from .advice import advice_views
from .choice import choice_view
from .curves import drawings, find_panels, finding
from .figures import SERIES, VARIABLES, gap_bars, reliability, singular_values, training_curves
from .hints import find_hints
from .payload import DETAILED, download_files, hidden_cells, payload, with_matrix
from .seeds import SeedStudy, interval_of, mean_table

if TYPE_CHECKING:
    from .run_record import RunRecord

SCRIPTS = ("base.js", "scatter.js", "matrix.js", "table.js", "downloads.js")
WORST_SHOWN = (8, 4)  # of one classifier, of each of several
BARS = 3  # runs whose bars fit side by side on a phone
GROUPS = {"head": "Frequent (head)", "medium": "Medium", "tail": "Rare (tail)"}
SECTIONS = {
    "choice": "The choice",
    "overall": "Overview",
    "advice": "What you can do",
    "rare": "Rare classes",
    "worst": "Worst classes",
    "confusion": "Confusions",
    "spectrum": "Pattern",
    "generalise": "New images",
    "calibration": "Confidence",
    "training": "Training",
    "settings": "Settings",
    "record": "The run",
    "classes": "Every class",
    "downloads": "Downloads",
}
FIGURES = {
    "balanced": ("mean over classes, %", 1, "every class counts the same, however many test images it has"),
    "zero_classes": ("classes never recognised", 0, "not one of their test images is right"),
    "bottom_10pct": ("lowest 10 % of the classes, %", 1, "mean accuracy of the tenth recognised least"),
    "bottom_20pct": ("lowest 20 % of the classes, %", 1, "the same for a fifth, which depends less on single images"),
    "worst_train": ("worst class in training, %", 1, "lowest accuracy of any class on the images it was trained on"),
    "worst_ratio": ("worst-class ratio", 3, "worst class in the test over worst class in training; 1 is ideal"),
    "harmonic_mean": ("harmonic mean, %", 1, "of the classes' accuracies; one class at zero makes it zero"),
    "geometric_mean": ("geometric mean, %", 1, "the same, a little milder"),
    "macro_f1": ("macro F1, %", 1, "mean over classes of F1, which also punishes a class that is named too often"),
    "ece": ("expected calibration error, points", 1, "mean gap between how sure it is and how often it is right"),
    "nll": ("negative log-likelihood", 3, "mean surprise at the true class; lower is better"),
    "brier": ("Brier score", 3, "mean squared error of the probabilities; lower is better"),
    "spectral_norm": ("spectral norm of the confusion", 3, "strength of the strongest pattern of mistakes"),
}  # fmt: skip


def write_report(
    analyses: Sequence[Analysis],
    path: Path,
    *,
    comparison: Comparison | None = None,
    runs: Sequence[RunRecord] = (),
    study: SeedStudy | None = None,
) -> None:
    """Write the report of one or several classifiers on the same classes.

    Args:
        analyses: from :func:`~spectail.diagnosis.analyse`.
        path: the HTML file; it is whole or not there.
        comparison: from :func:`~spectail.diagnosis.compare`, for several.
        runs: where the predictions come from, one per analysis, or none. They add training curves, example images
            and the command that repeats a run.
        study: from :func:`~spectail.report.seeds.study`, where there are several seeds of a method. The page then
            shows means over seeds, and in detail one run of each method.
    """
    if not analyses:
        raise ValueError("a report needs the analysis of one classifier or more; got none.")
    if runs and len(runs) != len(analyses):
        raise ValueError(f"a report needs one run per analysis: got {len(runs)} runs for {len(analyses)} analyses.")
    first = analyses[0].predictions
    for other in analyses[1:]:
        if other.predictions.class_names != first.class_names:
            raise ValueError(
                f"a report needs classifiers of the same classes: {first.name!r} and {other.predictions.name!r} differ "
                f"in class names or their order. Write one report each."
            )
    text = _render(list(analyses), comparison, list(runs), study)
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "replace"))  # names of files need not be UTF-8


def _render(
    analyses: list[Analysis], comparison: Comparison | None, runs: list[RunRecord], study: SeedStudy | None
) -> str:
    environment = Environment(
        loader=PackageLoader("spectail.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"whole": lambda value: f"{value:,}", "decimal": number}
    environment.filters |= {"coded": coded, "base": base_name}
    loader = environment.loader
    assert loader is not None
    style, *scripts = (loader.get_source(environment, name)[0] for name in ("style.css", *SCRIPTS))
    script = "\n".join(scripts)
    panels = find_panels(runs)
    titles = [analysis.predictions.name for analysis in analyses]
    shown = list(range(len(analyses)) if study is None else study.shown)[:DETAILED]
    advice = advice_views([(titles[index], runs[index]) for index in shown] if runs else [])
    hints = [find_hints(analyses[index], runs[index] if runs else None) for index in shown]
    files = download_files(analyses, comparison, runs, panels, study, advice)
    matrices = with_matrix(analyses, shown, study)
    headings = dict(zip(shown, _headings(titles, shown, study), strict=True))
    drawn = (list(range(len(runs))) if study is None else study.shown)[: len(SERIES)] if runs else []
    owners: dict[Any, RunRecord] = {}  # runs on the same data load it once
    images = {at: owners.setdefault((run.config.data, run.manifest.identity), run) for at, run in enumerate(runs)}
    context = {
        "style": Markup(style),
        "script": Markup(script),
        # only this script may run, whatever a name tries
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "payload": payload(analyses, files, matrices, study),
        "files": [(name, title) for name, (title, _) in files.items()],
        "version": __version__,
        "title": _title(analyses, study),
        "names": analyses[0].predictions.class_names,
        "analyses": analyses,
        "detailed": [
            _detail(index, analyses[index], images.get(index), analyses[shown[0]].view, headings[index], len(shown))
            for index in shown
        ],
        "matrices": [(index, titles[index]) for index in matrices],
        "stands_out": STANDS_OUT,
        "runs": runs,
        "comparison": comparison,
        "study": study,
        "seeds": None if study is None else {"table": mean_table(study), "interval_of": interval_of},
        "cards": _cards(analyses),
        "figures": _figures(analyses, runs),
        "gap": _gap([(titles[index], analyses[index], runs[index]) for index in shown] if runs else []),
        "curves": training_curves([(titles[index], runs[index].curves) for index in drawn]),
        "legend": [
            (titles[index], VARIABLES[colour], line) for index, (colour, _, line) in zip(drawn, SERIES, strict=False)
        ],
        "trained": [(titles[index], runs[index]) for index in drawn],
        "titles": titles,
        "advice": advice,
        "hints": best if not advice and (best := hints[_best([analyses[index] for index in shown])]) else None,
        "unfinished": [(one.name, one.unfinished) for one in hints if one.unfinished],
        "choice": choice_view(runs[0].folder) if len(runs) == 1 else None,
        "sweeps": list(zip(drawings(panels), map(finding, panels), strict=True)),
    }
    there = {"generalise": context["gap"], "training": context["curves"], "settings": context["sweeps"], "record": runs,
             "advice": advice or context["hints"], "choice": context["choice"]}  # fmt: skip
    context["sections"] = [(anchor, text) for anchor, text in SECTIONS.items() if there.get(anchor, True)]
    return environment.get_template("page.html").render(context)


def _best(analyses: list[Analysis]) -> int:
    """Where the one stands whose classes are recognised best: what others get wrong, it may have solved."""
    return max(range(len(analyses)), key=lambda at: analyses[at].metrics["balanced"])


def coded(text: str) -> Markup:
    """A sentence of ours in which commands stand between backticks."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else Markup("{}").format(part)
        for place, part in enumerate(parts)
    )


def base_name(path: str) -> str:
    """The last part of a path: folders stand in its title."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _detail(
    index: int, analysis: Analysis, run: RunRecord | None, view: list[int], heading: str, amount: int
) -> dict[str, Any]:
    """What the page says about one of ``amount`` classifiers, beyond the analysis itself."""
    shown = analysis.worst[: WORST_SHOWN[amount > 1]]
    shots: dict[int, Any] = {}
    missing = None
    if run is not None:
        from .examples import MORE, find_examples  # noqa: PLC0415 - predictions without a run need no image library

        shots, missing = find_examples(analysis, run, shown, more=MORE if amount == 1 else 0)
    spectrum, calibration = analysis.spectrum, analysis.calibration
    mistakes = int((analysis.predictions.predicted != analysis.predictions.labels).sum())
    return {
        "index": index,
        "analysis": analysis,
        "name": heading,
        "counted": analysis.predictions.class_counts is not None,
        "sizes": {group: _sizes(analysis, group) for group in GROUPS},
        "worst": [analysis.per_class[label] for label in shown],
        "shots": shots,
        "missing": missing,
        "mistakes": mistakes,
        "ten": _ten(analysis, view),
        "hidden": hidden_cells(analysis),
        "singular": singular_values(spectrum.singular_values.tolist(), f"sv{index}") if spectrum is not None else None,
        "reliability": reliability(calibration["bins"], f"rel{index}") if calibration is not None else None,
    }


def _headings(titles: list[str], shown: list[int], study: SeedStudy | None) -> list[str]:
    """What the runs shown in full are called, each with why it is the one of its method."""
    if study is None:
        return [titles[index] for index in shown]
    sizes = [len(group.places) for group in study.groups]
    return [
        f"{titles[index]} (median of {size} seeds)" if size > 1 else titles[index]
        for index, size in zip(shown, sizes, strict=False)
    ]


def _title(analyses: list[Analysis], study: SeedStudy | None) -> str:
    if study is not None and len(study.groups) == 1:
        return f"{study.groups[0].name}, {len(analyses)} seeds: what it gets right, and what it confuses"
    if study is not None:
        return f"{len(study.groups)} methods compared over {len(analyses)} runs"
    if len(analyses) == 1:
        return f"{analyses[0].predictions.name}: what it gets right, and what it confuses"
    return f"{len(analyses)} classifiers compared"


def _cards(analyses: list[Analysis]) -> list[dict[str, Any]]:
    """The figures on top: per card a title, what it means, and a row per classifier."""
    counted = analyses[0].predictions.class_counts is not None
    kinds = {"overall": ("All test images", "share that is recognised")}
    if counted:
        kinds |= {group: (title, _limits(analyses[0], group)) for group, title in GROUPS.items()}
    else:
        kinds |= {"balanced": ("Mean over classes", "every class counts the same")}
    kinds |= {"worst": ("Worst class", "the lowest accuracy of any class")}
    return [
        {
            "kind": kind, "title": title, "text": text,
            "rows": [
                {
                    "name": analysis.predictions.name,
                    "value": analysis.metrics["worst_test" if kind == "worst" else kind],
                    "interval": analysis.intervals[kind],
                    "label": analysis.worst[0] if kind == "worst" else None,
                    "others": analysis.tied - 1,
                }
                for analysis in analyses
            ],
        }
        for kind, (title, text) in kinds.items()
    ]  # fmt: skip


def _limits(analysis: Analysis, group: str) -> str:
    """Which classes are in a group, as text."""
    number = sum(entry["group"] == group for entry in analysis.per_class)
    if not number:
        return "there are none"
    return f"{number:,} class{'es' if number > 1 else ''} with {_sizes(analysis, group)} training images"


def _sizes(analysis: Analysis, group: str) -> str:
    """How many training images the classes of a group have."""
    counts = [entry["train_count"] for entry in analysis.per_class if entry["group"] == group]
    if not counts:
        return "none"
    low, high = min(counts), max(counts)
    between = f"{low:,} to {high:,}" if low < high else f"{low:,}"
    return {"head": f"{low:,} or more", "medium": between, "tail": f"{high:,} or fewer"}[group]


def _figures(analyses: list[Analysis], runs: list[RunRecord]) -> list[dict[str, Any]]:
    """The other figures of results.json, one row each."""
    figures = [analysis.metrics for analysis in analyses]
    if runs:
        figures = [run.results | metrics for run, metrics in zip(runs, figures, strict=True)]
    rows = []
    for key, (title, digits, text) in FIGURES.items():
        values = [entry.get(key) for entry in figures]
        if any(value is not None for value in values):
            rows.append({"title": title, "values": [number(value, digits) for value in values], "text": text})
    return rows


def _ten(analysis: Analysis, view: list[int]) -> dict[str, Any]:
    """The small confusion matrix in percent of each true class, rows predicted, and what went to all other classes."""
    labels, predicted = analysis.predictions.labels, analysis.predictions.predicted
    rows = np.zeros((len(view) + 1, len(view)))
    for column, label in enumerate(view):
        own = predicted[labels == label]
        rows[:-1, column] = [100 * float((own == other).mean()) if len(own) else 0.0 for other in view]
        rows[-1, column] = 100 - rows[:-1, column].sum() if len(own) else 0.0
    return {"view": view, "rows": rows.tolist()}


def _gap(known: list[tuple[str, Analysis, RunRecord]]) -> Any:
    rows = [
        (name, run.results.get("worst_train"), analysis.metrics["worst_test"], analysis.metrics["overall"])
        for name, analysis, run in known
    ]
    if not any(row[1] is not None for row in rows):
        return None
    size = math.ceil(len(rows) / math.ceil(len(rows) / BARS))  # four are two and two
    drawings = [gap_bars(rows[at : at + size], f"gap{at}", size) for at in range(0, len(rows), size)]
    return {"rows": rows, "drawings": drawings}
