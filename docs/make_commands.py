"""A page for every command of `spectail`, from its help.

python docs/make_commands.py              # write docs/cli again
python docs/make_commands.py --check      # exit code 1 if a page differs from the code
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from spectail.cli import arguments
from spectail.cli.main import COMMANDS

PAGES = Path(__file__).parent / "cli"
NOTE = "<!-- made by docs/make_commands.py from the code -->\n"
ALL = {"train": ["--help", "all"]}
SEE = {  # where more is said about a command
    "train": "[Training](../training.md), [methods](../methods/README.md), [settings of CAR](../options.md)",
    "fit": "[How it chooses](../fit.md)",
    "compare": "[Training](../training.md), [many machines](../distributed.md#many-runs-on-many-machines)",
    "adjust": "[Adjusting a trained model](../adjust.md)",
    "analyze": "[A diagnosis without training](../index.md#a-diagnosis-without-training)",
    "experiment": "[Experiments](../experiments.md)",
    "prepare": "[Your data](../data.md)",
    "predict": "[One command](../fit.md)",
    "export": "[Training](../training.md#after-training)",
}


def markdown(usage: str, text: str, examples: Sequence[str], groups: Mapping[str, Iterable[arguments.Flag]]) -> str:
    """What `arguments.print_page` prints, as Markdown."""
    parts = [f"```text\n{usage} [options]\n```", *(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))]
    parts += ["```\n" + "\n".join(examples) + "\n```"] if examples else []
    for title, flags in groups.items():
        rows = [f"| {typed(flag)} | {flag.text} | {f'`{flag.default}`' if flag.default else ''} |" for flag in flags]
        if rows:
            parts.append(f"**{title}**\n\n| option | what it does | default |\n|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


def typed(flag: arguments.Flag) -> str:
    """A flag as it is typed. A bar would end the cell, so that choices are listed."""
    if not flag.name.startswith("-"):
        return f"`{flag.name}`"
    choices = " or ".join(f"`{choice}`" for choice in flag.placeholder.split("|") if choice)
    return f"`{flag.name}` {choices}".strip()


def help_of(name: str, words: list[str]) -> str:
    """The help page of a command as Markdown, or as it is where a command prints it itself."""
    module, shown = import_module(f"spectail.cli.{COMMANDS[name][0]}"), []
    usual = arguments.print_page

    def keep(*page: Any) -> None:
        shown.append(markdown(*page))

    for place in (arguments, module):
        if hasattr(place, "print_page"):
            place.print_page = keep  # type: ignore[attr-defined]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            module.run(words)
    finally:
        for place in (arguments, module):
            if hasattr(place, "print_page"):
                place.print_page = usual  # type: ignore[attr-defined]
    return shown[0] if shown else f"```text\n{printed.getvalue().strip()}\n```"


def pages() -> dict[str, str]:
    found = {}
    rows = [f"| [`{name}`]({name}.md) | {text} |" for name, (_, text) in COMMANDS.items()]
    lines = ["Every command prints its options with `--help`.", "", "| command | what it does |", "|---|---|", *rows]
    found["index.md"] = "\n".join([NOTE, "# Commands\n", *lines])
    for name, (_, text) in COMMANDS.items():
        page = help_of(name, ALL.get(name, ["--help"]))
        parts = [NOTE, f"# spectail {name}\n", f"{text[0].upper()}{text[1:]}.\n", page]
        actions = re.findall(r"^  (\w+) ", page, re.MULTILINE) if name == "experiment" else []
        parts += [f"\n## {action}\n\n{help_of(name, [action, '--help'])}" for action in actions]
        if name in SEE:
            parts.append(f"\nMore: {SEE[name]}.")
        found[f"{name}.md"] = "\n".join(parts)
    return {name: text.rstrip() + "\n" for name, text in found.items()}


def main(words: Sequence[str]) -> int:
    made = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    if "--check" in words:
        stale = sorted(name for name in {*made, *there} if made.get(name) != there.get(name))
        if stale:
            print(f"docs/cli differs from the code ({', '.join(stale)}): python docs/make_commands.py", file=sys.stderr)
        return int(bool(stale))
    PAGES.mkdir(exist_ok=True)
    for name in {*there} - {*made}:
        (PAGES / name).unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
