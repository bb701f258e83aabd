"""What `fit` found, in sentences and as a menu. Everything comes from fit.json, so that a report says the same."""

from __future__ import annotations

from typing import Any

from ..report.choice import FIGURES

MUCH = -10.0
"""Points of overall accuracy that hardly anybody would give without having asked for it."""


def sentences(record: dict[str, Any]) -> list[str]:
    """Three sentences: what was chosen, what it gains over cross entropy, what it costs."""
    goal, chosen, plain = record["goal"], record["chosen"], record["cross_entropy"]
    figure, gain = FIGURES[goal], record["differences"][goal]
    tried = len(record["trainings"])
    unit = record["unit"]
    how = f"on {unit} that no head had seen" if record["folds"] > 1 else f"on {unit} held out of everything"
    out_of = f"out of {tried} trainings judged {how}" if tried > 1 else f"the only training that was judged {how}"
    why = f"for the best {figure}" if record["floors_kept"] else "since it comes nearest to the floor"
    first = f"Chosen {why}: {chosen['title']}, {out_of}."
    same = chosen["title"] == record["cross_entropy"]["title"]
    if same:
        second = f"That is cross entropy itself: nothing else is clearly better ({chosen['figures'][goal]:.1f} %)."
    else:
        level = "" if gain["low"] > 0 or gain["high"] < 0 else ", which is no clear difference"
        second = (
            f"Its {figure} is {chosen['figures'][goal]:.1f} %, against {plain['figures'][goal]:.1f} % of cross "
            f"entropy: {gain['value']:+.1f} points [{gain['low']:+.1f}, {gain['high']:+.1f}]{level}."
        )
    return [first, second, _cost(record)]


def _cost(record: dict[str, Any]) -> str:
    if record["goal"] == "overall":
        balanced = record["chosen"]["figures"]["balanced"] - record["cross_entropy"]["figures"]["balanced"]
        return f"The mean class accuracy changes by {balanced:+.1f} points."
    cost = record["differences"]["overall"]
    interval = f"{cost['value']:+.1f} points [{cost['low']:+.1f}, {cost['high']:+.1f}]"
    if cost["high"] < 0:
        much = cost["value"] < MUCH and "overall" not in record["keep"]
        limit = " --keep overall= with a number of percent sets a limit to that." if much else ""
        return f"It costs overall accuracy on data that are as unbalanced as these: {interval}.{limit}"
    if cost["low"] > 0:
        return f"It costs nothing: overall accuracy on data that are as unbalanced as these rises too, by {interval}."
    return f"It costs nothing that can be measured: overall accuracy changes by {interval}."


def alternatives(record: dict[str, Any], command: str) -> list[str]:
    """If you care more about something else: what to take then, and how."""
    lines = []
    for goal, other in record["other_goals"].items():
        if other["title"] == record["chosen"]["title"]:
            continue
        better = other["figures"][goal] - record["chosen"]["figures"][goal]
        if better > 0:
            more = f"If you care more about {FIGURES[goal]} ({better:+.1f} points): {other['title']}."
            lines.append(f"{more} {command} --goal {goal} --method {other['method']}")
    return lines


def table_rows(record: dict[str, Any], most: int = 8) -> list[tuple[str, ...]]:
    """The best candidates, the chosen one, and cross entropy: title and figures in percent."""
    chosen = record["chosen"]
    rows = [(f"> {chosen['title']}", chosen["figures"])]
    rows += [(one["title"], one["figures"]) for one in record["menu"] if one["title"] != chosen["title"]][:most]
    if record["cross_entropy"]["title"] not in {title for title, _ in rows} | {chosen["title"]}:
        rows.append((record["cross_entropy"]["title"], record["cross_entropy"]["figures"]))
    return [(title, *(f"{figures[name]:.1f}" for name in FIGURES)) for title, figures in rows]
