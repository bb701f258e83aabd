"""What the page says about a choice by `spectail fit`: the answer, the trade-off as a picture, and the menu."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .figures import MUTED, RED, SERIES, Drawing, new_figure, styled, to_svg

NAME = "fit.json"
FIGURES = {
    "balanced": "mean class accuracy",
    "overall": "overall accuracy",
    "tail": "accuracy on rare classes",
    "worst": "accuracy on the worst classes",
    "lowest10": "accuracy on the lowest 10 % of the classes",
}
SHOWN = 15
"""Points of overall accuracy below the choice that are drawn: nobody would go further."""
DRAWN = 6
"""Trainings whose lines are drawn: more cannot be told apart."""


@dataclass(frozen=True)
class ChoiceView:
    """The record of a fit, as the page shows it."""

    record: dict[str, Any]
    picture: Drawing
    legend: list[tuple[str, str]]
    """Title and colour of each line."""

    figures = FIGURES


def choice_view(folder: Path) -> ChoiceView | None:
    """What `fit` wrote into the folder of a run; None if it is no result of it, or was damaged."""
    try:
        record = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return ChoiceView(record, trade_off(record), [line["title"] for line in _lines(record)])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The best trainings of the menu, cross entropy among them."""
    order = [one["training"] for one in record["menu"]]
    lines = sorted(record["lines"], key=lambda line: order.index(line["title"]))
    plain = [line for line in lines if line["title"] == record["cross_entropy"]["title"]]
    best = [line for line in lines if line not in plain][: DRAWN - len(plain)]
    return best + plain


@styled
def trade_off(record: dict[str, Any]) -> Drawing:
    """Every training as a line: its logits shifted by more and more of the log prior."""
    goal = record["goal"] if record["goal"] != "overall" else "balanced"
    figure, axes = new_figure(width=5.6, height=3.6)
    for line, (colour, _, dashes) in zip(_lines(record), SERIES, strict=False):
        axes.plot(line["overall"], line[goal], dashes, color=colour, linewidth=1.6, label=_short(line["title"]))
    chosen, plain = record["chosen"]["figures"], record["cross_entropy"]["figures"]
    axes.plot([plain["overall"]], [plain[goal]], "s", color=MUTED, markersize=6, label="cross entropy as it is")
    axes.plot([chosen["overall"]], [chosen[goal]], "*", color=RED, markersize=13, label="chosen", zorder=5)
    low = min(plain["overall"], chosen["overall"])
    axes.set_xlim(max(0.0, low - SHOWN), max(max(line["overall"]) for line in _lines(record)) + 1)
    axes.set_xlabel("overall accuracy on data like these, %")
    axes.set_ylabel(f"{FIGURES[goal]}, %")
    axes.legend(fontsize=7, loc="best")
    alt = (
        f"{FIGURES[goal]} against overall accuracy: cross entropy at {plain['overall']:.1f} and {plain[goal]:.1f} "
        f"percent, the choice at {chosen['overall']:.1f} and {chosen[goal]:.1f}."
    )
    return Drawing(to_svg(figure, "trade", alt), "The trade-off that each candidate offers")


def _short(title: str) -> str:
    return title.replace(" features", "").replace("weight decay", "decay")
