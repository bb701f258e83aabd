"""A comparison in one line: who wins on what, and what is level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comparison import Difference

JUDGED = {"overall": "overall", "tail": "tail", "bottom_10pct": "lowest 10 %"}
"""Figures of a verdict, and their names. The mean over classes follows from the others."""


def verdict(
    name: str,
    baseline: str,
    differences: Mapping[str, Difference | None],
    clear: Callable[[str], bool] | None = None,
) -> str:
    """Say which of two is better.

    Args:
        name: the one that is judged.
        baseline: the one it is compared with.
        differences: accuracy of the first minus that of the second, in points, by figure.
        clear: whether a difference is beyond chance; by default whether its interval leaves out 0.

    Example:
        >>> from spectail.diagnosis.comparison import Difference
        >>> gains = {"overall": Difference(0.2, -0.5, 0.9), "tail": Difference(50.6, 40.2, 61.0)}
        >>> verdict("balanced-softmax", "ce", gains)
        'balanced-softmax beats ce: tail +50.6 [+40.2, +61.0], overall level'
        >>> verdict("car", "ce", {"overall": Difference(0.2, -0.5, 0.9), "tail": None})
        'car and ce cannot be told apart: overall +0.2 [-0.5, +0.9]'
    """
    known = {key: gap for key in JUDGED if (gap := differences.get(key)) is not None}
    apart = {key for key, gap in known.items() if (clear(key) if clear is not None else gap.clear)}
    told = [f"{JUDGED[key]} {known[key].value:+.1f} [{known[key].low:+.1f}, {known[key].high:+.1f}]" for key in known
            if key in apart or not apart]  # fmt: skip
    level = [f"{JUDGED[key]} level" for key in known if apart and key not in apart]
    better, worse = (any(sign * known[key].value > 0 for key in apart) for sign in (1, -1))
    if better and worse:
        says = f"{name} gains and loses against {baseline}"
    elif better or worse:
        says = f"{name} {'beats' if better else 'is behind'} {baseline}"
    else:
        says = f"{name} and {baseline} cannot be told apart"
    return f"{says}: {', '.join([*told, *level])}"
