"""A table as text, and its Markdown and LaTeX. Needs nothing but Python."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from html import escape

from .._utils.plain_text import visible

DASH, MINUS = "\u2013", "\u2212"
TITLES = {"balanced": "mean of classes", "worst": "worst class", "worst_test": "worst class", "macro_f1": "macro F1",
          "bottom_10pct": "lowest 10 % of classes", "bottom_20pct": "lowest 20 % of classes",
          "ece": "calibration error"}  # fmt: skip
"""What people call the figures of results.json; the others have their own names."""
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", DASH: "--", MINUS: "$-$"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " "}
)
MARKDOWN = str.maketrans(
    {character: f"\\{character}" for character in "\\|*_`<>[]#~$"} | {"&": "&amp;", "\n": " ", "\r": " "}
)


@dataclass(frozen=True)
class Table:
    """A table as text, in no format yet. The first columns are text, the others figures."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text_columns: int = 1
    """How many columns are text."""
    notes: str = ""
    """What stands below it."""


def number(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """A figure as the scripts of the page show it: halves are rounded up, and there is no -0.0.

    The sixth digit is as far as the page carries figures; what lies behind it is noise of the division.

    Example:
        >>> number(12.25), number(-0.04), number(0.5, 0), number(None), number(3.14159, 2, sign=True)
        ('12.3', '0.0', '1', 'n/a', '+3.14')
    """
    if value is None:
        return "n/a"
    if not math.isfinite(value):
        return str(value)
    rounded = Decimal(round(float(value), 6)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{rounded if rounded else abs(rounded):{'+' if sign else ''}f}"


def turned(table: Table) -> Table:
    """The same with rows for columns; what is known of nobody is left out.

    Example:
        >>> turned(Table("t", ("", "all", "tail"), [("a", "1", "n/a"), ("b", "2", "n/a")])).rows
        [('all', '1', '2')]
    """
    columns = list(zip(table.header, *table.rows, strict=True))
    rows = [column for column in columns[1:] if set(column[1:]) != {"n/a"}]
    return Table(table.title, columns[0], rows, notes=table.notes)


def to_markdown(table: Table) -> str:
    lines = [f"**{plain(table.title)}**", "", _line(map(plain, table.header))]
    lines.append(_line("---" if column < table.text_columns else "---:" for column in range(len(table.header))))
    lines += [_line(map(plain, row)) for row in table.rows]
    lines += ["", plain(table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def to_html(table: Table) -> str:
    """For notebooks, which bring their own style."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<p><b>{escape(table.title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def to_latex(table: Table) -> str:
    columns = "l" * table.text_columns + "r" * (len(table.header) - table.text_columns)
    lines = [" & ".join(latex_text(cell) for cell in row) + r" \\" for row in (table.header, *table.rows)]
    return "\n".join(
        [
            f"% {visible(' '.join(table.title.split()))}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *([rf"\par\smallskip{{\footnotesize {latex_text(table.notes)}}}"] if table.notes else []),
            "",
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    return visible(" ".join(text.splitlines())).translate(MARKDOWN)


def latex_text(text: str) -> str:
    return visible(" ".join(text.splitlines())).translate(LATEX)
