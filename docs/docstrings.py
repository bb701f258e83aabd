"""Docstrings as Markdown for the API pages: formulas become pictures, roles become links, tables become tables.

mkdocstrings calls this extension of griffe. Formulas are drawn by matplotlib while the site is built, so that a page
needs no script from the network to show them.
"""

from __future__ import annotations

import base64
import html
import io
import re
from functools import cache
from typing import Any

import griffe
import matplotlib as mpl

mpl.use("agg")
from matplotlib import mathtext
from matplotlib.font_manager import FontProperties

# what matplotlib does not know, in its own words
WORDS = {r"\lVert": r"\Vert ", r"\rVert": r"\Vert ", r"\bigl": "", r"\bigr": "", r"\Big": "", r"\text": r"\mathrm",
         r"\le": r"\leq", r"\ne": r"\neq", r"\sqrt K": r"\sqrt{K}", r"\qquad": r"\quad\quad "}  # fmt: skip


class Markdown(griffe.Extension):
    """Translates every docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = translate(obj.docstring.value)


def translate(text: str) -> str:
    """The same docstring without the marks of reStructuredText."""
    text = re.sub(r"^( *)\.\. math::((?:.*\n)(?:\1 +\S.*(?:\n|$))*)", _block, text + "\n", flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", lambda found: picture(found[1], "in-text"), text)
    text = re.sub(r":(?:class|func|meth|mod):`~?([\w.]+)`", _link, text)
    text = re.sub(r"^( *)(=+(?: +=+)+)\n(.*?)\n\1\2$", _table, text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE).rstrip("\n")


def _block(found: re.Match[str]) -> str:
    return f"{found[1]}{picture(' '.join(found[2].split()), 'block')}\n"


def _link(found: re.Match[str]) -> str:
    place = found[1]
    name = place if place.startswith("spectail.integrations") else place.rpartition(".")[2]
    if "." not in place:
        return f"`{name}`"
    return f'<autoref identifier="{place}" optional><code>{name}</code></autoref>'


def _table(found: re.Match[str]) -> str:
    """Two columns that are set off by lines of equal signs."""
    indent, width = found[1], len(found[2].split()[0])
    rows = [line.removeprefix(indent) for line in found[3].splitlines()]
    cells = [f"{indent}| {row[:width].strip()} | {row[width:].strip()} |" for row in rows]
    return "\n".join([f"{indent}| name | what |", f"{indent}|---|---|", *cells])


@cache
def picture(formula: str, kind: str) -> str:
    """An image element with the formula in it."""
    drawn = formula.rstrip(",")
    for word, known in WORDS.items():
        drawn = re.sub(re.escape(word) + r"(?![A-Za-z])", known.replace("\\", r"\\"), drawn)
    size = 11 if kind == "in-text" else 13
    file = io.BytesIO()
    with mpl.rc_context({"mathtext.fontset": "stix", "svg.hashsalt": "spectail"}):
        mathtext.math_to_image(f"${drawn}$", file, prop=FontProperties(size=size), format="svg")
    data = base64.b64encode(_sized(file.getvalue().decode())).decode()
    alt = html.escape(formula, quote=True).replace("_", "&#95;").replace("*", "&#42;").replace("\\", "&#92;")
    return f'<img class="formula {kind}" alt="{alt}" src="data:image/svg+xml;base64,{data}">'


def _sized(svg: str) -> bytes:
    """Without the time at which it was drawn: the same text gives the same page."""
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL).encode()
