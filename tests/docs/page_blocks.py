"""What stands in the fenced blocks of a page: Python, commands, and the rest."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

# Commands that are not ours and are not run: they install, need hardware, or are targets of the Makefile.
OTHERS = ("pip install ", "make ")
LAUNCHERS = ("torchrun ", "accelerate launch ")


def blocks(page):
    """(info, content) of every fenced block of a page, in order."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def command_lines(page):
    """Lines of the blocks without a language that hold commands, with continuations joined and comments gone."""
    for info, content in blocks(page):
        if info not in ("", "bash"):
            continue
        lines = content.replace("\\\n", " ").splitlines()
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]  # the others are what is printed
        lines = typed or lines
        if any(is_command(line) for line in lines):
            for line in lines:
                text = re.sub(r"\s# .*| +#.*$", "", line).strip()
                yield from (part.strip() for part in re.split(r"\s{3,}(?=spectail )", text) if part.strip())


def is_command(line):
    return line.startswith(("spectail ", *OTHERS, *LAUNCHERS)) or line == "spectail"


def own_arguments(line):
    """Arguments of a `spectail` command line, also behind a launcher; None for commands of others."""
    words = shlex.split(line)
    if words[0] == "spectail":
        return [word for word in words[1:] if word != "..."]
    if line.startswith(LAUNCHERS):
        place = words.index("spectail")
        assert words[place - 1] == "-m", line
        return [word for word in words[place + 1 :] if word != "..."]
    return None
