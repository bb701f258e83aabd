"""The picture of what averaging does to CAR's gradient: measured beside predicted, for both kinds of averaging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from .._utils.files import whole_file
from ..theory import Stability

COLOURS = {"batch": "#d1495b", "class": "#33658a"}
LABELS = {"batch": 'ema="batch"', "class": 'ema="class"'}
MARKERS = {"batch": "o", "class": "s"}
Curves = Callable[[Stability, str], list[float]]


def save(path: Path, runs: Sequence[Stability], title: str) -> None:
    """Four panels over beta: mean of the runs as a line, their range as a band, the predictions dashed."""
    if not runs:
        raise ValueError("there is nothing to draw: pass at least one result of ema_stability.")
    first = runs[0]
    if any(run.betas != first.betas or run.measured.keys() != first.measured.keys() for run in runs):
        raise ValueError("the runs must share their betas and modes; measure them with the same settings.")
    figure = Figure(figsize=(9.5, 7.2), layout="constrained", dpi=120)
    panels = figure.subplots(2, 2).flat
    _panel(next(panels), runs, Stability.gain, "gradient norm, over that at β = 0", first.predicted_gain, "1 - β")
    _panel(
        next(panels), runs, Stability.variance, "gradient variance, over that at β = 0",
        first.predicted_variance, "(1 - β)²",
    )  # fmt: skip
    _panel(next(panels), runs, _noise, "variance over squared mean gradient")
    _panel(next(panels), runs, _gap, "relative CM gap")
    figure.suptitle(title, x=0.01, ha="left")
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _panel(
    axes: Axes,
    runs: Sequence[Stability],
    curves: Curves,
    what: str,
    predicted: list[float] | None = None,
    formula: str = "",
) -> None:
    betas = runs[0].betas
    kept = [1 - beta for beta in betas]
    if predicted is not None:
        axes.plot(kept, predicted, "--", color="0.35", label=f"predicted: {formula}")
        axes.set_yscale("log")
    for mode in runs[0].measured:
        values = list(zip(*(curves(run, mode) for run in runs), strict=True))
        mean = [sum(several) / len(several) for several in values]
        axes.plot(
            kept, mean, marker=MARKERS[mode], markersize=4, color=COLOURS[mode], label=f"measured: {LABELS[mode]}"
        )
        lowest, highest = [min(several) for several in values], [max(several) for several in values]
        axes.fill_between(kept, lowest, highest, color=COLOURS[mode], alpha=0.2, linewidth=0)
    if predicted is None:
        axes.set_ylim(bottom=0)
    axes.set_xscale("log")
    axes.invert_xaxis()  # more averaging to the right
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{beta:g}" for beta in betas])
    axes.set_xlabel("β (spaced by log(1 - β))")
    axes.set_title(what, loc="left", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _noise(run: Stability, mode: str) -> list[float]:
    return [point.noise for point in run.measured[mode]]


def _gap(run: Stability, mode: str) -> list[float]:
    return [point.gap for point in run.measured[mode]]
