"""What stands behind the paper's numbers: what its released code runs under the names of its rows, and which rows are
impossible. Tables that print the numbers say it beside them."""

from __future__ import annotations

from collections.abc import Sequence

from .cells import Cell
from .published import printed, value_of

GROUPS = ("head", "medium", "tail")
BEHIND = {
    "CB": "cross entropy with beta 0.999",
    "LDAM-DRW": "margins on the logits of a linear head, no deferred weights",
    "BALMS": "Balanced Softmax alone, no meta sampler and no second stage",
    "WB": "one stage of AdamW with more decay on the head, whose vectors are rescaled to their mean length",
    "GML": "its loss on a new head for 10 epochs, averaged with the old one",
}
"""The paper's rivals in its released code (misswayguy/CAR), where that is not the method of that name as published."""
ABSENT = ("Focal", "ReMix", "BBN", "MetaSAug", "CMO", "SAFA", "ConCutMix", "LOS")
"""Rows of the paper whose method is not in its released code."""
BEST_EPOCH = "published: the released baselines report their best epoch on the test data"


def remarks(cell: Cell) -> tuple[str, ...]:
    """What a reader of the paper's numbers for a cell must know, to stand beside them.

    Example:
        >>> remarks(Cell("scratch", "cifar100-lt", 100.0, "vit_small", "balms", "BALMS"))[0]
        'published: the released code runs Balanced Softmax alone, no meta sampler and no second stage'
    """
    label = cell.place[-1]
    name, found = label.removeprefix("CAR + "), []
    if name in BEHIND:
        found.append(f"published: the released code runs {BEHIND[name]}")
    if name in ABSENT:
        found.append("published: the method is not in the released code")
    elif not label.startswith("CAR"):
        found.append(BEST_EPOCH)
    if impossible(cell.place):
        found.append("published: impossible, overall lies outside head, medium and tail")
    found += [f"published: the same numbers as {other}" for other in same_row(cell.place)]
    return tuple(found)


def impossible(place: tuple[str, str, float | None, str, str]) -> bool:
    """Whether the paper prints an overall accuracy that no mean of its groups can have."""
    overall, parts = value_of(place, "overall"), [value_of(place, group) for group in GROUPS]
    known = [value for value in parts if value is not None]
    return overall is not None and len(known) == len(GROUPS) and not min(known) <= overall <= max(known)


def same_row(place: tuple[str, str, float | None, str, str]) -> Sequence[str]:
    """Other methods for which the paper prints the very same figures, group by group."""
    metrics = ("overall", *GROUPS)
    row = [value_of(place, metric) for metric in metrics]
    if None in row:
        return ()
    others = {entry.method for entry in printed() if entry.place[:-1] == place[:-1]} - {place[-1]}
    return sorted(other for other in others if [value_of((*place[:-1], other), one) for one in metrics] == row)
