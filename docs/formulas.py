"""A hook of mkdocs: blocks that are marked as `math`, which GitHub typesets by itself, become pictures on the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
from docstrings import picture

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **others: Any) -> str:
    """One picture for each line of a block."""
    return BLOCK.sub(lambda found: "\n\n".join(map(drawn, found[1].strip().splitlines())), markdown)


def drawn(line: str) -> str:
    return picture(line.strip().removesuffix("\\\\").strip(), "block")
