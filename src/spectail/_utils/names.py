"""Did you mean: what to say about a name that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 12  # names that a sentence can take


def nearest(name: object, known: Iterable[object], plural: str = "choose from") -> str:
    """The end of a sentence: the names that are closest, or those there are.

    Example:
        >>> nearest("focl", ["ce", "focal", "ldam-drw"])
        "did you mean 'focal'?"
        >>> nearest("zzz", ["ce", "focal"])
        'choose from ce, focal.'
    """
    names = [str(entry) for entry in known]
    close = difflib.get_close_matches(str(name), names, n=2, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{plural} {', '.join(names[:SHOWN])}{rest}."
