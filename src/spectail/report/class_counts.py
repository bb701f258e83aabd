"""The picture of a long tail: images per class, on a terminal and as PNG."""

from __future__ import annotations

from pathlib import Path

from matplotlib.ticker import MaxNLocator
from rich.text import Text

from ..counts import ClassCounts
from .figures import AMBER, BLUE, RED, new_figure, styled
from .figures import save as save_figure

COLOURS = {"head": BLUE, "medium": AMBER, "tail": RED}
STYLES = {"head": "blue", "medium": "green", "tail": "red"}
BLOCKS = " ▁▂▃▄▅▆▇█"
HEIGHT = 8


@styled
def save(path: Path, counts: ClassCounts, convention: str, title: str) -> None:
    """Bars of images per class, largest first, coloured by group, on a logarithmic scale."""
    figure, axes = new_figure(width=8, height=3.6)
    values = counts.tolist()
    order = sorted(range(len(values)), key=lambda label: -values[label])
    position = {label: rank for rank, label in enumerate(order)}
    for group, labels in counts.groups(convention).items():
        if labels:
            images = sum(values[label] for label in labels)
            text = f"{group}: {len(labels):,} classes, {images:,} images"
            heights = [values[label] for label in labels]
            axes.bar([position[label] for label in labels], heights, width=1.0, color=COLOURS[group], label=text)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.8)
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("classes, largest first")
    axes.set_ylabel("training images")
    axes.set_title(f"{title}: {counts.total:,} images, imbalance factor {counts.imbalance_factor:.4g}", loc="left")
    axes.legend()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    save_figure(figure, path)


def text(counts: ClassCounts, convention: str, width: int) -> Text:
    """The same picture in characters. More classes than columns: each column is the mean of its classes."""
    group_of = {label: group for group, labels in counts.groups(convention).items() for label in labels}
    values = counts.tolist()
    order = sorted(range(len(values)), key=lambda label: -values[label])
    axis = len(f"{max(values):,}") + 1
    columns = max(min(len(order), width - axis - 1), 1)
    repeat = max(min((width - axis - 1) // columns, 3), 1)  # few classes: wider bars
    picture = Text()
    parts = [order[i * len(order) // columns : (i + 1) * len(order) // columns] for i in range(columns)]
    means = [sum(values[label] for label in part) / len(part) for part in parts]
    for row in range(HEIGHT, 0, -1):
        mark = {HEIGHT: f"{max(values):,}", 1: "0"}.get(row, "")
        picture.append(mark.rjust(axis - 1) + " ")
        for part, mean in zip(parts, means, strict=True):
            filled = mean / max(values) * HEIGHT - (row - 1)
            level = min(max(round(filled * 8), 1 if row == 1 and mean > 0 else 0), 8)
            picture.append(BLOCKS[level] * repeat, STYLES[group_of[part[len(part) // 2]]])
        picture.append("\n")
    picture.append(" " * axis + "classes, largest first: ")
    for group, style in STYLES.items():
        picture.append(f"{group} ", style)
    return picture
