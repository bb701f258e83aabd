"""Flags from dataclasses: tyro parses them, and a help page shows them by concern, one sentence each."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro
from rich.console import Console

from .._utils.errors import one_line
from .._utils.names import nearest

T = TypeVar("T")
INDENT, COLUMN, WIDEST = 2, 26, 100  # of the page: flags, their sentences, its right edge
PLACEHOLDERS = {int: "N", float: "X", str: "NAME", Path: "PATH"}
EXPECTED = {"N": "a whole number", "X": "a number", "N ...": "whole numbers", "X ...": "numbers", "": "no value",
            "NAME": "a name", "N|auto": "a whole number or auto", "PATH": "a path"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """The model of a run, as several commands take it."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    post_hoc: Literal["logit-adjustment", "tau-norm"] | None = None
    """Adjust the logits of a model that was trained without an adjustment."""
    tau: float | None = None
    """Strength of the adjustment (default 1). Without --post-hoc it replaces the tau of the run."""
    adjust: Path | None = None
    """File of an adjustment that `spectail adjust` has chosen on predictions of this run."""
    trust: tuple[str, ...] = ()
    """Methods from elsewhere, as package.module:Class, whose code may run because the folder of a run names them."""


class Flag(NamedTuple):
    """A line of the help page."""

    name: str
    """As it is typed; of a positional argument, the word that stands for it."""
    placeholder: str
    text: str
    default: str
    group: str
    """The nested settings that it belongs to; empty for the command's own."""


def read_flags(kind: type[T], prog: str, arguments: list[str], hidden: Sequence[str] = ()) -> T:
    """The flags of a command, or its help page and the end of the program; ``hidden`` settings are not on the page.

    A mistake ends the program with one sentence.
    """
    found, unknown = read_own_flags(kind, prog, arguments, hidden)
    if unknown:
        raise unknown_flag(prog, unknown[0], flags_of(kind))
    return found


def read_own_flags(
    kind: type[T], prog: str, arguments: list[str], hidden: Sequence[str] = ()
) -> tuple[T, list[str]]:  # fmt: skip
    """The same for a command that hands what it does not know to another one."""
    if {"-h", "--help"} & set(arguments):
        flags = [flag for flag in flags_of(kind) if flag.group not in hidden]
        positional = [flag for flag in flags if not flag.name.startswith("-")]
        groups = {"Arguments": positional, "Options": [flag for flag in flags if flag not in positional]}
        print_page(f"{prog} {' '.join(flag.name for flag in positional)}".strip(), about(kind), (), groups)
        raise SystemExit(0)
    found, others = parse_known(kind, prog, arguments)
    if getattr(found, "trust", ()):
        from ..methods.registry import trust  # noqa: PLC0415 - torch is slow to import

        trust(*found.trust)  # type: ignore[attr-defined]
    return found, others


def parse_known(kind: type[T], prog: str, arguments: list[str], default: T | None = None) -> tuple[T, list[str]]:
    """What the arguments say about the flags of a dataclass, and what is left; a mistake as in :func:`read_flags`."""
    options: dict[str, Any] = {} if default is None else {"default": default}

    def parse(words: list[str]) -> tuple[T, list[str]]:
        with contextlib.redirect_stderr(io.StringIO()):  # what it says of a mistake fills a screen
            return tyro.cli(kind, args=words, return_unknown_args=True, add_help=False, **options)

    try:
        return parse(arguments)
    except SystemExit:  # a value is wrong or missing: which one?
        flags = {name.strip("[]"): flag for flag in flags_of(kind, default) for name in flag.name.split(", ")}
    positional = [flag for flag in flags.values() if flag.name.isidentifier()]  # one word, no default
    needed = [flag.placeholder.partition("|")[0] if "|" in flag.placeholder else flag.name for flag in positional]
    starts = [place for place, word in enumerate(arguments) if word.startswith("--")]
    for start, end in pairwise([*starts, len(arguments)]):
        try:
            parse([*needed, *arguments[start:end]])
        except SystemExit:
            name, equals, value = arguments[start].partition("=")
            if name.replace("_", "-") not in flags:
                raise unknown_flag(prog, name, flags.values()) from None
            raise wrong_value(prog, name, flags, [value] if equals else arguments[start + 1 : end]) from None
    first = next((name for name in flags if not name.startswith("-")), None)
    if first is None:  # each option is right by itself
        raise refused(prog, f"these options do not go together; see {prog} --help.")
    raise wrong_value(prog, first, flags, arguments[: starts[0] if starts else None])


def wrong_value(prog: str, name: str, flags: Mapping[str, Flag], values: list[str]) -> SystemExit:
    """Says what an option or a positional argument takes."""
    wanted = flags[name.replace("_", "-")].placeholder
    given = " ".join(values if wanted.endswith("...") else values[:1]) or "nothing"
    one_of = f"one of {wanted.replace('|', ', ')}" if "|" in wanted else wanted.removesuffix(" ...")
    return refused(prog, f"{name} takes {EXPECTED.get(wanted, one_of)}; got {given}.")


def unknown_flag(prog: str, word: str, flags: Iterable[Flag]) -> SystemExit:
    """Says that an argument is not known, and which option may be meant."""
    if not word.startswith("-"):
        return refused(prog, f"{word!r} belongs to no option; see {prog} --help.")
    name = word.partition("=")[0]
    known = names_of(flags)
    meant = nearest(name, known) if known else "there are none."
    return refused(prog, f"unknown option {name}; {meant} See {prog} --help.")


def refused(prog: str, sentence: str) -> SystemExit:
    print(f"{prog}: {one_line(ValueError(sentence))}", file=sys.stderr)
    return SystemExit(2)


def flags_of(kind: Any, default: Any = None, prefix: str = "", group: str = "") -> Iterator[Flag]:
    """Every flag that tyro makes of a dataclass, with the defaults of an instance if there is one."""
    hints, sentences = typing.get_type_hints(kind, include_extras=True), field_sentences(kind)
    for field in dataclasses.fields(kind):
        hint, *marks = typing.get_args(hints[field.name]) if _is_annotated(hints[field.name]) else (hints[field.name],)
        value = getattr(default, field.name) if default is not None else _default(field)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = prefix if tyro.conf.OmitArgPrefixes in marks else f"{prefix}{field.name}."
            yield from flags_of(type(value), value, inner, group or field.name)
            continue
        name = next((mark.name for mark in marks if getattr(mark, "name", None)), field.name.replace("_", "-"))
        flag = f"--{prefix}{name}"
        if tyro.conf.Positional in marks:
            flag = f"{name.upper()} ..." if typing.get_origin(hint) is tuple else name.upper()
            flag = f"[{flag}]" if value else flag
        elif value is True:
            flag += f", --{prefix}no-{name}"
        yield Flag(flag, placeholder(hint), sentences.get(field.name, ""), _shown(value), group)


def names_of(flags: Iterable[Flag]) -> list[str]:
    """Every way in which flags are typed, but for the --no- form of switches that are off."""
    return [name for flag in flags for name in flag.name.split(", ") if name.startswith("-")]


def field_sentences(kind: type) -> dict[str, str]:
    """What stands below the fields of a dataclass and of those it is derived from."""
    sentences: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                sentences[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return sentences


def placeholder(hint: Any) -> str:
    """What stands for the value of a flag: ``N``, ``PATH``, ``adamw|sgd``; nothing for a switch.

    Example:
        >>> placeholder(Literal["a", "b"] | None), placeholder(tuple[int, ...]), placeholder(bool)
        ('a|b', 'N ...', '')
    """
    if _is_annotated(hint):
        return placeholder(typing.get_args(hint)[0])
    inside = [one for one in typing.get_args(hint) if one is not type(None)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return "True|False" if inside == [bool] else "|".join(map(placeholder, inside))
    if typing.get_origin(hint) is Literal:
        return "|".join(map(str, inside))
    if typing.get_origin(hint) is tuple:
        return f"{placeholder(inside[0])} ..."
    return PLACEHOLDERS.get(hint, "")


def about(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def print_page(usage: str, description: str, examples: Sequence[str], groups: Mapping[str, Iterable[Flag]]) -> None:
    """A help page, as wide as the terminal."""
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
    width = min(shutil.get_terminal_size().columns, WIDEST)
    console.print(f"usage: {usage} [options]")
    for paragraph in description.split("\n\n"):
        console.print("\n" + textwrap.fill(" ".join(paragraph.split()), width))
    if examples:
        console.print("\n" + "\n".join(f"  {example}" for example in examples))
    for title, flags in groups.items():
        lines = [line for flag in flags for line in flag_lines(flag, width)]
        if lines:
            console.print(f"\n{title}", style="bold")
            console.print("\n".join(lines))


def flag_lines(flag: Flag, width: int) -> list[str]:
    """A flag with its sentence beside it, or below where it is long."""
    left = " " * INDENT + (f"{flag.name} {flag.placeholder}" if flag.name.startswith("-") else flag.name).strip()
    default = f"(default: {flag.default})".replace(" ", "\N{NO-BREAK SPACE}") if flag.default else ""
    wrapped = textwrap.wrap(f"{flag.text} {default}".strip(), width - COLUMN, break_on_hyphens=False)
    lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped]
    if len(left) > COLUMN - 2 or not lines:
        return [left, *(" " * COLUMN + line for line in lines)]
    return [f"{left:{COLUMN}}{lines[0]}", *(" " * COLUMN + line for line in lines[1:])]


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
