"""The drawings of the report that do not move, as SVG whose colours are those of the page; and what the others draw.

Every colour below stands for a variable of the style sheet, so a drawing follows the reader's light or dark scheme.
As a file it has these colours as they are.
"""

from __future__ import annotations

import functools
import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from .._utils.files import whole_file
from ..diagnosis.text_table import number

INK, MUTED, LINE, SOFT = "#1b2230", "#566072", "#dfe2e7", "#eef0f3"
BLUE, AMBER, RED, VIOLET = "#2563a8", "#966000", "#bb2d47", "#6b4fa0"
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", SOFT: "soft", BLUE: "blue", AMBER: "amber", RED: "red",
             VIOLET: "violet"}  # fmt: skip
SERIES = tuple((colour, marker, line) for lines in (("-", "--", "-.", ":"), ("--", ":", "-", "-."))
               for colour, marker, line in zip((BLUE, AMBER, RED, VIOLET), "os^D", lines, strict=True))  # fmt: skip
"""Colour, marker and line of the first, second, ... series: each tells them apart without the others."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "spectail",  # the same drawing is the same text
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}


FORMATS = (".png", ".svg", ".pdf")
DOTS = 200  # per inch of a PNG file

Make = TypeVar("Make", bound=Callable[..., Any])


def styled(make: Make) -> Make:
    """Draw in the style of the report, whatever the user's own matplotlib settings are."""

    @functools.wraps(make)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        with style.context(["default", STYLE]):
            return make(*arguments, **options)

    return cast(Make, wrapper)


@dataclass(frozen=True)
class Drawing:
    """One picture of the page, with a title."""

    svg: Markup
    title: str


@styled
def to_svg(figure: Figure, name: str, alt: str) -> Markup:
    """The drawing as text that can stand inside a page, with ids that start with ``name``."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    # its style sheet would style the whole page
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^<>]+>", lambda tag: _themed(tag[0], name), text)
    text = re.sub(r">\s+<", "><", text)
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r"\1>", text, count=1)
    opening = Markup('<svg role="img" aria-label="{}" stroke-linejoin="round" ').format(alt)
    return opening + Markup(text)  # matplotlib escapes the text in it


def _themed(tag: str, name: str) -> str:
    """A tag with the page's colours and font. Text between tags is left alone."""
    tag = re.sub(r' id="([^"]+)"', rf' id="{name}-\1"', tag)
    tag = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", tag).replace("xlink:href", "href")
    tag = re.sub(r"font-family: [^;\"]+;? ?", "", tag)
    tag = re.sub(r"\s*\n\s*", " ", tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, f"var(--{variable})")
    return tag


def check_format(path: Path, what: str = "a figure") -> None:
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{what} must end in {', '.join(FORMATS)}; got {str(path)!r}.")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of ``path``; the file is whole or not there."""
    check_format(path)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower()[1:], dpi=DOTS)


def new_figure(width: float = 4.4, height: float = 2.9) -> tuple[Figure, Axes]:
    """Small, so that it can be read on a phone without zooming."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


@styled
def singular_values(values: Sequence[float], name: str) -> Drawing:
    """The first singular values of the weighted confusion matrix, largest first."""
    figure, axes = new_figure(height=2.5)
    shown = [float(value) for value in values[:12]]
    axes.bar(range(1, len(shown) + 1), shown, color=[RED] + [BLUE] * (len(shown) - 1), width=0.72)
    axes.set_xlabel("direction, strongest first")
    axes.set_ylabel("singular value")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", visible=False)
    alt = "Bars of the singular values: " + ", ".join(f"{value:.2f}" for value in shown)
    return Drawing(to_svg(figure, name, alt), "Strength of each direction of confusion")


@styled
def gap_bars(
    rows: Sequence[tuple[str, float | None, float | None, float]], name: str, room: int | None = None
) -> Drawing:
    """Per run: worst class in training, worst class in the test, all test images.

    ``room`` is how many runs have a place: drawings of fewer runs have bars of the same width.
    """
    room = len(rows) if room is None else room
    figure, axes = new_figure(width=max(4.4, 1.4 * room + 1.6), height=3.0)
    kinds = (
        ("worst class, training", RED, "///"),
        ("worst class, test", VIOLET, "\\\\\\"),
        ("all test images", BLUE, ""),
    )
    for column, (kind, colour, hatch) in enumerate(kinds):
        values = [row[1:][column] for row in rows]
        at = [index + 0.27 * (column - 1) for index in range(len(rows))]
        bars = axes.bar(
            at, [value or 0.0 for value in values], width=0.25, label=kind,
            facecolor=SOFT if hatch else colour, edgecolor=colour, hatch=hatch,
        )  # fmt: skip
        texts = [number(value) for value in values]
        axes.bar_label(bars, texts, padding=2, fontsize=8, color=INK)
    axes.set_xticks(
        range(len(rows)), ["\n".join(textwrap.wrap(row[0], 18, max_lines=3, placeholder="…")) for row in rows]
    )
    axes.set_xlim(-0.55, room - 0.45)
    axes.set_ylim(0, 112)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.set_ylabel("right, %")
    axes.grid(axis="x", visible=False)
    figure.legend(loc="outside upper left", ncols=3, fontsize=8, handlelength=1.4, columnspacing=1.0)
    parts = [
        f"{row[0]}: " + ", ".join(f"{kind[0]} {number(value)}{'' if value is None else ' %'}"
                                  for kind, value in zip(kinds, row[1:], strict=True))
        for row in rows
    ]  # fmt: skip
    return Drawing(to_svg(figure, name, "Bars. " + "; ".join(parts)), "Worst class and overall")


@styled
def reliability(bins: Sequence[dict[str, Any]], name: str) -> Drawing:
    """How often a prediction is right (line) when the model is so sure, and how many predictions there are (bars)."""
    figure, axes = new_figure(height=3.2)
    known = [entry for entry in bins if entry["count"]]
    total = sum(entry["count"] for entry in known)
    x = [entry["confidence"] for entry in known]
    middle = [(entry["low"] + entry["high"]) / 2 for entry in known]
    width = [0.9 * (entry["high"] - entry["low"]) for entry in known]
    axes.bar(middle, [100 * entry["count"] / total for entry in known], width=width, color=SOFT, edgecolor=LINE,
             label="share of all predictions")  # fmt: skip
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=":", label="perfectly honest")
    axes.plot(x, [entry["accuracy"] for entry in known], color=BLUE, marker="o", markersize=4, label="right")
    axes.set(xlim=(0, 100), ylim=(0, 102), xlabel="how sure the model says it is, %", ylabel="%")
    figure.legend(loc="outside upper left", ncols=3, fontsize=8, handlelength=1.6, columnspacing=1.0)
    alt = "Confidence against how often it is right: " + ", ".join(
        f"{entry['confidence']:.0f} % sure, {entry['accuracy']:.0f} % right" for entry in known
    )
    return Drawing(to_svg(figure, name, alt), "Confidence against truth")


@styled
def curve(
    lines: Sequence[tuple[str, list[tuple[float, float]]]], title: str, name: str, *, changes: Sequence[float] = ()
) -> Drawing:
    """Lines over epochs; ``changes`` are the epochs at which another stage of training begins.

    A line without points draws nothing, and keeps its colour free: a run looks the same in every drawing.
    """
    figure, axes = new_figure(height=2.5)
    for index, (_, points) in enumerate(lines):
        colour, marker, line = SERIES[index % len(SERIES)]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, linewidth=1.7,
                      marker=marker if len(points) <= 30 else None, markersize=3.5)  # fmt: skip
    for change in changes:
        axes.axvline(change, color=MUTED, linewidth=0.8, linestyle=":")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    ends = ", ".join(f"{label} from {points[0][1]:.4g} to {points[-1][1]:.4g}" for label, points in lines if points)
    return Drawing(to_svg(figure, name, f"{title} over epochs: {ends}"), title)


def training_curves(runs: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[Drawing]:
    """What was logged in every epoch, one drawing per quantity, one line per run."""
    drawings = []
    for index, (key, title) in enumerate(LOGGED.items()):
        lines = [(label, _points(rows, key)) for label, rows in runs]
        if any(points for _, points in lines):
            stages = [row.get("stage") for row in runs[0][1]] if len(runs) == 1 else []
            changes = [at + 0.5 for at in range(1, len(stages)) if stages[at] != stages[at - 1]]
            drawings.append(curve(lines, title, f"curve{index}", changes=changes))
    return drawings


def _points(rows: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    """Epochs are counted through all stages; an epoch without the quantity is left out."""
    known = [(at + 1.0, row.get(key)) for at, row in enumerate(rows)]
    return [(at, float(value)) for at, value in known if isinstance(value, int | float) and math.isfinite(value)]


LOGGED = {
    "loss": "training loss",
    "lr": "learning rate",
    "spectral_norm": "CAR: spectral norm",
    "worst_error": "CAR: soft maximum of the class errors",
    "car": "CAR: term in the loss",
    "cm_gap_relative": "CAR: gap between its memory and the true confusion",
    "car_gradient_norm": "CAR: norm of its gradient",
    "val_overall": "validation: all images right, %",
    "val_tail": "validation: tail classes right, %",
    "test_overall": "test (used for selection): all images right, %",
    "test_tail": "test (used for selection): tail classes right, %",
}


def matrix_cells(confusion: NDArray[np.int32], most: int) -> dict[str, Any]:
    """What the page draws of a confusion matrix: steps from one entry to the next in reading order, and their counts.

    Of more than ``most`` entries the smallest are left out; ``hidden`` says how many.
    """
    flat = confusion.ravel()
    cells = np.flatnonzero(flat)
    hidden = max(len(cells) - most, 0)
    if hidden:
        cells = np.sort(cells[np.argsort(-flat[cells], kind="stable")[:most]])
    return {"steps": np.diff(cells, prepend=0).tolist(), "counts": flat[cells].tolist(), "hidden": hidden}


def cluster_order(confusion: NDArray[np.int32]) -> list[int]:
    """Classes in an order that puts those which are confused with each other side by side.

    Chains of classes are joined end to end, the most confused pair of classes first (in shares of both classes'
    images, added); a chain is turned round where that brings the pair closer.

    Example:
        >>> matrix = np.zeros((4, 4), dtype=np.int32)
        >>> matrix[0, 2] = matrix[3, 0] = 5
        >>> cluster_order(matrix)
        [2, 0, 3, 1]
    """
    share = confusion / np.maximum(confusion.sum(0), 1)
    np.fill_diagonal(share, 0)
    share = np.triu(share + share.T)
    first, second = np.nonzero(share)
    chains = [[label] for label in range(len(share))]
    for pair in np.argsort(-share[first, second], kind="stable").tolist():
        a, b = int(first[pair]), int(second[pair])
        left, right = chains[a], chains[b]
        if left is right:
            continue
        if left.index(a) < len(left) / 2 - 0.5:
            left.reverse()
        if right.index(b) > len(right) / 2 - 0.5:
            right.reverse()
        left += right
        for label in right:
            chains[label] = left
    seen: dict[int, list[int]] = {id(chain): chain for chain in chains}
    return [label for chain in seen.values() for label in chain]
