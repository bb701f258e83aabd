"""How CAR's settings move the result: accuracy against beta, r0, alpha and gamma, from finished runs.

Runs that differ only in one of the four settings (and in the seed) make a curve; runs of a grid make several.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..diagnosis.text_table import number
from .figures import AMBER, BLUE, RED, Drawing, check_format, new_figure, save, styled, to_svg
from .seeds import what_differs

if TYPE_CHECKING:
    from .run_record import RunRecord

SETTINGS = {
    "beta": "memory \N{GREEK SMALL LETTER BETA}",
    "r0": "smoothing r\N{SUBSCRIPT ZERO}",
    "alpha": "weight \N{GREEK SMALL LETTER ALPHA}",
    "gamma": "margin \N{GREEK SMALL LETTER GAMMA}",
}
MEASURES = {"overall": ("all", BLUE, "o"), "tail": ("tail", AMBER, "s"), "worst_test": ("worst class", RED, "^")}
STROKES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Point:
    """All runs with one value of a setting: per measure the mean, and the standard deviation over seeds."""

    value: float
    runs: int
    mean: dict[str, float | None]
    std: dict[str, float | None]
    """None for a single run."""


@dataclass(frozen=True)
class Curve:
    """Points in order of the setting. ``label`` says what tells this curve from the others; "" if there are none."""

    label: str
    points: list[Point]


@dataclass(frozen=True)
class Panel:
    """One setting, with a curve for every combination of the others."""

    setting: str
    curves: list[Curve]


def find_panels(runs: Sequence[RunRecord], *, validation: bool = False) -> list[Panel]:
    """A panel for every setting of CAR that varies while all others stay as they are.

    With ``validation`` the figures are those of the validation data, and "all" is the mean of the classes: data held
    out of the training set are as long-tailed as it is.
    """
    known = [(run, settings) for run in runs if (settings := run.car_settings) is not None]
    panels = []
    for name in SETTINGS:
        groups: dict[tuple[Any, ...], dict[float, list[RunRecord]]] = {}
        others: dict[tuple[Any, ...], dict[str, Any]] = {}
        for run, settings in known:
            rest = run.settings
            del rest[f"car.{name}"]
            key = tuple(sorted((entry, repr(value)) for entry, value in rest.items()))
            others[key] = rest
            groups.setdefault(key, {}).setdefault(settings[name], []).append(run)
        varied = {key: values for key, values in groups.items() if len(values) > 1}
        if varied:
            labels = what_differs([others[key] for key in varied])
            curves = [
                Curve(label, [_point(value, values[value], validation) for value in sorted(values)])
                for label, values in zip(labels, varied.values(), strict=True)
            ]
            panels.append(Panel(name, curves))
    return panels


def finding(panel: Panel) -> str:
    """One sentence: how much the setting matters, and which value did best."""
    spans, best, spread = [], (-math.inf, 0.0), []
    for curve in panel.curves:
        spread += [std for point in curve.points if (std := point.std["overall"]) is not None]
        values = [(mean, point.value) for point in curve.points if (mean := point.mean["overall"]) is not None]
        spans.append(max(values)[0] - min(values)[0])
        best = max(best, *values)
    chance = "; one seed each" if not spread else "; seeds alone move it as much" if max(spread) >= max(spans) else ""
    tried = sorted({point.value for curve in panel.curves for point in curve.points})
    return (
        f"{SETTINGS[panel.setting].capitalize()} from {tried[0]:g} to {tried[-1]:g} moves overall accuracy by "
        f"{'at most ' if len(spans) > 1 else ''}{number(max(spans))} points; the best value tried is {best[1]:g} "
        f"({number(best[0])} %){chance}."
    )


@styled
def drawings(panels: Sequence[Panel]) -> list[Drawing]:
    """The panels one by one, for the page."""
    drawn = []
    for panel in panels:
        figure, axes = new_figure(height=3.0)
        _draw(axes, panel)
        figure.legend(*_legend(axes), loc="outside upper left", ncols=3, fontsize=8, handlelength=2.2)
        svg = to_svg(figure, f"sweep-{panel.setting}", finding(panel))
        drawn.append(Drawing(svg, f"Accuracy against {SETTINGS[panel.setting]}"))
    return drawn


@styled
def save_curves(panels: Sequence[Panel], path: Path) -> None:
    """All panels in one figure, as PNG, SVG or PDF by the ending of ``path``."""
    check_format(path, "--curves")
    if not panels:
        raise ValueError(
            "there is no curve to draw: the runs must differ in CAR's beta, r0, alpha or gamma, and in nothing else "
            "but their seeds."
        )
    figure = Figure(figsize=(3.3 * len(panels) + 0.3, 3.2), layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(row, panels, strict=True):
        _draw(axes, panel)
    figure.legend(*_legend(row[0]), loc="outside upper center", ncols=3)
    save(figure, path)


def _point(value: float, runs: list[RunRecord], validation: bool) -> Point:
    mean: dict[str, float | None] = {}
    std: dict[str, float | None] = {}
    for measure in MEASURES:
        figures = [_figure(run.results, measure, validation) for run in runs]
        known = [figure for figure in figures if figure is not None]
        mean[measure] = statistics.fmean(known) if known else None
        std[measure] = statistics.stdev(known) if len(known) > 1 else None
    return Point(value, len(runs), mean, std)


def _figure(results: dict[str, Any], measure: str, validation: bool) -> float | None:
    if not validation:
        return results.get(measure)
    return (results.get("val") or {}).get("balanced" if measure == "overall" else measure)


def _draw(axes: Axes, panel: Panel) -> None:
    for index, curve in enumerate(panel.curves):
        for measure, (word, colour, marker) in MEASURES.items():
            points = [(point.value, mean, point.std[measure] or 0.0) for point in curve.points
                      if (mean := point.mean[measure]) is not None]  # fmt: skip
            if points:
                x, y, spread = zip(*points, strict=True)
                axes.errorbar(
                    x, y, yerr=spread if any(spread) else None, color=colour, marker=marker, markersize=4.5, capsize=3,
                    linestyle=STROKES[index % len(STROKES)], linewidth=1.6,
                    label=f"{word} ({curve.label})" if curve.label else word,
                )  # fmt: skip
    values = [point.value for curve in panel.curves for point in curve.points]
    if min(values) > 0 and max(values) / min(values) >= 30:
        axes.set_xscale("log")
        axes.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])
        axes.minorticks_off()
    axes.set_xlabel(SETTINGS[panel.setting])
    axes.set_ylabel("right, %")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _legend(axes: Axes) -> tuple[list[Any], list[str]]:
    handles, labels = axes.get_legend_handles_labels()
    return handles[:12], labels[:12]
