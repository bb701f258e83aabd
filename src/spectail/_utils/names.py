"""Did you mean: what to say about a name that nobody knows."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

SHOWN = 12  # names that a sentence can take
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


def shown(value: object) -> str:
    """A value for a message, however large or deep it is.

    Example:
        >>> shown("focl"), shown([[[["deep"]]]] * 1000)
        ("'focl'", '[[[...]], [[...]], [[...]], [[...]], [[...]], [[...]], ...]')
    """
    return _SHORT.repr(value)


def nearest(name: object, known: Iterable[object], plural: str = "choose from") -> str:
    """The end of a sentence: the names that are closest, or those there are.

    Example:
        >>> nearest("focl", ["ce", "focal", "ldam-drw"])
        "did you mean 'focal'?"
        >>> nearest("zzz", ["ce", "focal"])
        'choose from ce, focal.'
    """
    names = [str(entry) for entry in known]
    close = difflib.get_close_matches((name if isinstance(name, str) else shown(name))[:100], names, n=2, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{plural} {', '.join(names[:SHOWN])}{rest}."
