"""Names that come from anywhere, made harmless where they are shown: on terminals, in tables and spreadsheets."""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Codes that move a cursor, set a title, or turn text round; line breaks and tabs are none."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a cell begins that a spreadsheet would carry out, also in wide letters."""
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)


def visible(text: str) -> str:
    r"""Text for a terminal: codes that it would obey are written out.

    Example:
        >>> print(visible("cat\x1b[2J"))
        cat\x1b[2J
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def cell(value: object) -> object:
    """A cell that a spreadsheet shows and does not carry out; numbers stay numbers.

    Example:
        >>> cell("=1+1"), cell("-2"), cell(-2.5), cell("cat")
        ("'=1+1", '-2', -2.5, 'cat')
    """
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) and not NUMBER.fullmatch(text) else text
