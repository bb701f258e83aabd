"""Figures of experiments: trade-off curves, worst classes, sweeps, CAR's diagnostics."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..report.figures import AMBER, BLUE, INK, MUTED, RED, VIOLET, styled
from ..training.run_folder import RunFolder
from .grids import DIAGNOSTICS, REFERENCE, is_plain, is_reference, on_line, swept
from .measures import TITLES
from .tables import Row

GREEN, PALE, TEAL = "#2f7d4f", "#c2a15a", "#1f8a9c"
COLOURS = (BLUE, MUTED, RED, VIOLET, AMBER, PALE, GREEN, TEAL)
MARKERS = ("o", "v", "s", "^", "D", "x", "P", "*")
FIRST = ("Balanced Softmax", "CAR", "CAR class-wise", "car-balanced", "car-worst")
"""Methods that look the same in every figure."""


@styled
def trade_off(rows: Sequence[Row], title: str = "", marked: Sequence[str] = ()) -> Figure:
    """Overall accuracy against tail and worst classes: up and to the right is better.

    A thin line is what a run reaches by shifting its logits after training, the reference has a thick one, and markers
    are runs as they were trained. Runs without such lines (older ones) are joined along the setting that moves.
    Points far below cross entropy leave the frame, and the figure says how many. Cells that are ``marked`` get a ring.
    """
    known = [row for row in rows if row.seeds]
    if not known:
        raise ValueError("there is nothing to draw: no run of the trade-off is done. Run it first.")
    val = any(figure.metric.startswith("val_") for figure in known[0].figures)
    prefix, whole = ("val_", "val_balanced") if val else ("", "overall")  # held-out data are long-tailed themselves
    measures = {f"{prefix}tail": "tail, % right", f"{prefix}bottom_10pct": "lowest 10 % of the classes, % right",
                f"{prefix}bottom_20pct": "lowest 20 % of the classes, % right"}  # fmt: skip
    if not val:  # of held-out data the worst class is a class of one image
        measures["worst_test"] = "worst class, % right"
    measures = {name: words for name, words in measures.items() if name.endswith("tail") or _varies(known, name)}
    plain = next((row for row in known if is_plain(row.cell)), None)
    floor, below = _floor(known, plain, whole)
    across = 2 if len(measures) == 4 else len(measures)
    down = len(measures) // across
    figure = Figure(figsize=(4.3 * across, 3.6 * down + 1), layout="constrained")
    panels = figure.subplots(down, across, sharey=True, squeeze=False)
    methods = _methods(known)
    styles = _styles(methods)
    for axes, (measure, words) in zip(panels.flat, measures.items(), strict=True):
        for name, points in methods.items():
            colour, marker = styles[name]
            drawn = [row for row in points.values() if row.shifts]
            for row in drawn:
                _shifted(axes, row, (measure, whole), colour, floor)
            _points(axes, points, (measure, whole), name, colour, marker, joined=not drawn)
        if plain is not None:
            _shifted(axes, plain, (measure, whole), INK, floor)
            _point(axes, plain, (measure, whole))
        for row in known:
            if row.cell.label in marked:
                axes.plot(*(_mean(row, name)[0] for name in (measure, whole)), marker="o", markersize=13, color=INK,
                          fillstyle="none", linestyle="", label="chosen on validation data")  # fmt: skip
        axes.set_xlabel(words)
        if floor is not None:
            axes.set_ylim(bottom=floor)
    for axes in panels[:, 0]:
        axes.set_ylabel("mean of the classes, % right" if val else "all classes, % right")
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=8)
    if any(row.shifts for row in known):
        title += "; lines: logits shifted after training"
    if below:
        title += f"; {below} point{'s' if below > 1 else ''} below the frame"
    if title:
        figure.suptitle(title, fontsize=10, wrap=True)
    return figure


def _styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each method."""
    places: dict[str, int] = {}
    for name in names:
        method = name.partition(",")[0]
        if method in FIRST and FIRST.index(method) not in places.values():
            places[name] = FIRST.index(method)
    free = itertools.cycle([place for place in range(len(COLOURS)) if place not in places.values()])
    return {name: (COLOURS[place], MARKERS[place])
            for name in names for place in (places[name] if name in places else next(free),)}  # fmt: skip


def _varies(rows: Sequence[Row], metric: str) -> bool:
    """Whether a figure says anything: the worst class may be at 0 everywhere."""
    found = {_mean(row, metric)[0] for row in rows}
    lines = (line for row in rows for figure in row.figures if figure.metric == metric for line in figure.line)
    return len(found.union(*lines)) > 1


def _floor(rows: Sequence[Row], plain: Row | None, whole: str) -> tuple[float | None, int]:
    """Where to cut the picture so that settings which ruin a model do not hide the others, and how many that cuts.
    Lines always go below."""
    start = None if plain is None else _mean(plain, whole)[0]
    if start is None:
        return None, 0
    heights = [value for row in rows if (value := _mean(row, whole)[0]) is not None]
    floor = start - 0.15 * max(max(heights) - start, 4.0)
    below = sum(value < floor for value in heights)
    return (floor, below) if below or any(row.shifts for row in rows) else (None, 0)


def _methods(rows: Sequence[Row]) -> dict[str, dict[float, Row]]:
    """The rows of each method by the setting that moves; runs that draw a line of their own need none."""
    found: dict[str, dict[float, Row]] = {}
    for row in rows:
        place = on_line(row.cell) or ((row.cell.label, 0.0) if row.shifts and not is_plain(row.cell) else None)
        if place is not None:
            found.setdefault(place[0], {})[place[1]] = row
    plain = next((row for row in rows if is_plain(row.cell) and not row.shifts), None)
    if plain is not None and REFERENCE in found:
        found[REFERENCE].setdefault(0.0, plain)  # cross entropy is tau 0
    return found


def _shifted(axes: Axes, row: Row, measures: tuple[str, str], colour: str, floor: float | None) -> None:
    """The line of a row, mean over seeds at each shift, as far as shifting helps: beyond that both figures fall."""
    lines = {figure.metric: figure.line for figure in row.figures if figure.line}
    if not lines.keys() >= {*measures}:
        return
    x, y = (np.mean(lines[measure], axis=0) for measure in measures)
    seen = (np.arange(len(x)) <= x.argmax()) & (y >= (-np.inf if floor is None else floor))
    bold = is_reference(row.cell)
    axes.plot(x[seen], y[seen], color=colour, linewidth=2.4 if bold else 0.9, alpha=0.5 if bold else 0.8)


def _points(
    axes: Axes, rows: Mapping[float, Row], measures: tuple[str, str], name: str, colour: str, marker: str, *,
    joined: bool,
) -> None:  # fmt: skip
    """``rows`` by the value that moves along the line."""
    means = [(*_mean(row, measures[0]), *_mean(row, measures[1]), f"{value:g}") for value, row in sorted(rows.items())]
    points = [entry for entry in means if entry[0] is not None and entry[2] is not None]
    if not points:
        return
    x, dx, y, dy, names = zip(*points, strict=True)
    several = len(rows) > 1
    label = f"{name} along the line" if joined else f"{name} {', '.join(names)}" if several else _label(rows)
    axes.errorbar(x, y, xerr=dx, yerr=dy, color=colour, marker=marker, markersize=5, capsize=2, linewidth=1.4,
                  elinewidth=0.8, linestyle="-" if joined else "", label=label)  # fmt: skip
    for end in (0, len(names) - 1) if joined or several else ():
        axes.annotate(names[end], (x[end], y[end]), textcoords="offset points", xytext=(5, -9), fontsize=7,
                      color=colour)  # fmt: skip


def _label(rows: Mapping[float, Row]) -> str:
    return next(iter(rows.values())).cell.label


def _point(axes: Axes, row: Row, measures: tuple[str, str]) -> None:
    (x, dx), (y, dy) = (_mean(row, measure) for measure in measures)
    if x is not None and y is not None:
        axes.errorbar([x], [y], xerr=[dx], yerr=[dy], color=INK, marker="*", markersize=10, capsize=2, linestyle="",
                      label="CE")  # fmt: skip


def _mean(row: Row, metric: str) -> tuple[float | None, float]:
    """Mean over seeds, and half the length of its bar: the 95 % interval, of two seeds the range."""
    for figure in row.figures:
        if figure.metric == metric and figure.mean is not None:
            return figure.mean, figure.half if len(figure.values) > 2 else float(np.ptp(figure.values)) / 2
    return None, 0.0


@styled
def sweeps(rows: Sequence[Row], title: str = "") -> Figure:
    """A panel for each setting of CAR: the mean of the classes and the tail on validation data, one line per preset."""
    lines: dict[str, dict[str, list[tuple[float, Row]]]] = {}
    for row in rows:
        point = swept(row.cell)
        if row.seeds and point is not None:
            method, setting, value = point
            lines.setdefault(setting, {}).setdefault(method, []).append((value, row))
    if not lines:
        raise ValueError("there is nothing to draw: no run of the sweeps is done. Run it first.")
    figure = Figure(figsize=(3.3 * len(lines), 3.8), layout="constrained")
    measures = {"val_balanced": ("mean of the classes", BLUE), "val_tail": ("tail", AMBER)}
    for axes, (setting, methods) in zip(figure.subplots(1, len(lines), squeeze=False)[0], lines.items(), strict=True):
        values = sorted({value for points in methods.values() for value, _ in points})
        for (method, points), stroke in zip(sorted(methods.items()), ("-", "--", ":", "-."), strict=False):
            for metric, (words, colour) in measures.items():
                found = [
                    (values.index(value), *_mean(row, metric)) for value, row in sorted(points, key=lambda p: p[0])
                ]
                x, y, half = zip(*[point for point in found if point[1] is not None], strict=True)
                axes.errorbar(x, y, yerr=half, color=colour, linestyle=stroke, marker="o", markersize=4, capsize=2,
                              linewidth=1.4, elinewidth=0.7, label=f"{method}, {words}")  # fmt: skip
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values], fontsize=7)
        axes.set_xlabel(setting)
    figure.axes[0].set_ylabel("% right, validation data")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


@styled
def worst_bars(rows: Sequence[Row], title: str = "") -> Figure:
    """Worst class in training, worst class in test, and overall accuracy, method by method."""
    known = [row for row in rows if row.seeds]
    if not known:
        raise ValueError("there is nothing to draw: no run of the figure is done. Run it first.")
    figure = Figure(figsize=(max(5.0, 0.62 * len(known) + 1.5), 3.6), layout="constrained")
    axes = figure.subplots()
    bars = (("worst_train", "worst class, training", MUTED), ("worst_test", "worst class, test", RED),
            ("overall", "all classes, test", BLUE))  # fmt: skip
    for place, (metric, words, colour) in enumerate(bars):
        found = [_mean(row, metric) for row in known]
        heights = [value if value is not None else 0.0 for value, _ in found]
        positions = [index + 0.27 * (place - 1) for index in range(len(known))]
        axes.bar(positions, heights, 0.25, color=colour, label=words)
        spread = [half for _, half in found]
        if any(spread):
            axes.errorbar(positions, heights, yerr=spread, linestyle="", color="black", capsize=2, linewidth=0.8)
        for x, height in zip(positions, heights, strict=True):
            if height < 1:  # a bar of no height must not look like a missing one
                axes.annotate(f"{height:.0f}", (x, height), ha="center", va="bottom", fontsize=6, color=colour)
    axes.set_xticks(range(len(known)), [row.cell.label for row in known], rotation=40, ha="right", fontsize=8)
    axes.set_ylabel("% right")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=3)
    if title:
        axes.set_title(title, fontsize=9)
    return figure


@styled
def diagnostics(folders: Mapping[str, Sequence[Path]], title: str = "") -> Figure:
    """What CAR logged about itself, epoch by epoch: a line for each method, thin ones for its runs."""
    logs = {label: [_logged(folder) for folder in runs] for label, runs in folders.items()}
    measures = [name for name in DIAGNOSTICS if any(name in log for runs in logs.values() for log in runs)]
    if not measures:
        raise ValueError("there is nothing to draw: no finished run logged its diagnostics. Run `diagnostics` first.")
    figure = Figure(figsize=(4.0 * len(measures), 3.6), layout="constrained")
    for axes, measure in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        for (label, runs), colour in zip(logs.items(), COLOURS, strict=False):
            lines = [log[measure] for log in runs if measure in log]
            for line in lines if len(lines) > 1 else ():
                axes.plot(range(1, len(line) + 1), line, color=colour, linewidth=0.5, alpha=0.5)
            if lines:
                mean = np.mean([line[: min(map(len, lines))] for line in lines], axis=0)
                axes.plot(range(1, len(mean) + 1), mean, color=colour, marker=".", label=label)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(TITLES[measure])
        axes.set_ylim(bottom=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _logged(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in RunFolder(folder).curves():
        for name, value in row.items():
            if name in DIAGNOSTICS:
                found.setdefault(name, []).append(value)
    return found
