"""Everything that others may rely on, in one file that a review can read: ``tests/public_api.txt``.

That is what the pages of the reference name, the flags of the commands, and the names of methods, data sets and so on.
A change of a name, a parameter, a default, a field or a flag shows there as a line. If it is meant, write the file
anew: ``python tests/test_public_api.py --update``.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import re
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

import spectail

ROOT = Path(__file__).parent.parent
SNAPSHOT = Path(__file__).with_name("public_api.txt")
HOW = "If the change is meant, run `python tests/test_public_api.py --update` and commit tests/public_api.txt."
PAGES = ROOT / "docs" / "api"
FRAMEWORKS = ("huggingface", "lightning", "timm", "torchmetrics")  # read, not imported: their frameworks may be absent
LISTS = ("CHECKS",)  # names in capitals are otherwise settings of a module
SPECIAL = ("__call__", "__getitem__", "__iter__", "__len__")
LONG = 110


# values, parameters, members


def shown(value):
    """A default as text that is the same on every machine."""
    if isinstance(value, Path):
        return repr(value.as_posix())
    if isinstance(value, tuple | list):
        inside = ", ".join(map(shown, value)) + "," * (isinstance(value, tuple) and len(value) == 1)
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(one)}" for key, one in value.items()) + "}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, type | types.FunctionType):
        return value.__qualname__ if value.__name__ != "<lambda>" else "a lambda"
    if type(value).__module__ == "torch":  # torch.float32 and the like
        return str(value)
    return f"<{type(value).__name__}>"


def annotated(name, annotation, default=inspect.Parameter.empty):
    text = name
    if annotation is not inspect.Parameter.empty:
        text += f": {annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"
    if default is not inspect.Parameter.empty:
        text += (" = " if ":" in text else "=") + shown(default)
    return text


def signature(fn, *, bound=False):
    """``(a: int, *, b: str = 'x') -> None``; of a method without its first parameter."""
    found = inspect.signature(fn)
    parameters = list(found.parameters.values())[bound:]
    parts, last = [], None
    for one in parameters:
        kind = one.kind
        if last is inspect.Parameter.POSITIONAL_ONLY and kind is not last:
            parts.append("/")
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(kind, "")
        alone = kind is inspect.Parameter.KEYWORD_ONLY and last not in (kind, inspect.Parameter.VAR_POSITIONAL)
        parts += ["*"] * alone + [annotated(star + one.name, one.annotation, one.default)]
        last = kind
    if last is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    result = annotated("", found.return_annotation).removeprefix(": ")
    return parts, f" -> {result}" if result else ""


def call(before, parts, after="", indent=""):
    """A line, or a line per parameter where that would be long."""
    line = f"{indent}{before}({', '.join(parts)}){after}"
    if len(line) <= LONG:
        return [line]
    return [f"{indent}{before}(", *(f"{indent}    {part}," for part in parts), f"{indent}){after}"]


def is_ours(thing):
    return thing.__module__.split(".")[0] == "spectail"


def describe_class(name, kind, listed, shown_members=None):
    """The class, its fields or how it is made, and its public members.

    Members that it inherits are left out if the class they come from is listed itself, or belongs to someone else.
    A page may show some members only.
    """
    bases = ["NamedTuple" if base is tuple else base.__name__ for base in kind.__bases__ if base is not object]
    lines = [f"class {name}" + (f" < {', '.join(bases)}" if bases else "")]
    own = set()
    if dataclasses.is_dataclass(kind):
        lines += [f"    {line}" for line in fields(kind)]
        own = {one.name for one in dataclasses.fields(kind)}
    elif hasattr(kind, "_fields") and issubclass(kind, tuple):
        own, empty = set(kind._fields), inspect.Parameter.empty
        for one in kind._fields:
            text = annotated(one, named(kind.__annotations__[one]), kind._field_defaults.get(one, empty))
            lines.append(f"    {text}")
    elif inspect.isfunction(kind.__init__) and is_ours(kind.__init__):
        lines += call("made by ", signature(kind.__init__, bound=True)[0], indent="    ")
    members = {}
    for base in reversed(kind.__mro__):
        if is_ours(base) and (base is kind or base not in listed):
            members |= base.__dict__
    for member, value in sorted(members.items()):
        public = not member.startswith("_") or member in SPECIAL
        if member not in own and (public if shown_members is None else member in shown_members):
            lines += describe_member(member, value)
    return lines


def named(annotation):
    """NamedTuple wraps the text of an annotation."""
    return getattr(annotation, "__forward_arg__", annotation)


def fields(kind):
    for one in dataclasses.fields(kind):
        default = one.default
        if one.default_factory is not dataclasses.MISSING:
            yield f"{annotated(one.name, one.type)} = {shown(one.default_factory)}()"
        else:
            yield annotated(one.name, one.type, inspect.Parameter.empty if default is dataclasses.MISSING else default)


def describe_member(name, value):
    if isinstance(value, property | functools.cached_property):
        read = value.fget if isinstance(value, property) else value.func
        return [f"    .{name}{signature(read)[1]}"]
    kind = {classmethod: "classmethod ", staticmethod: "staticmethod "}.get(type(value), "")
    fn = getattr(value, "__func__", value)
    if inspect.isfunction(fn):
        parts, result = signature(fn, bound=not isinstance(value, staticmethod))
        return call(f"{kind}.{name}", parts, result, indent="    ")
    return []  # an attribute: fields are listed already, and buffers are in the docstring


# modules


def aliases(module):
    """Types that are given a name, by what stands behind it; and the few lists that are part of the interface."""
    for node in ast.parse(inspect.getsource(module)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            name = getattr(target, "id", "_")
            if isinstance(node, ast.Assign | ast.AnnAssign) and name[0] != "_" and not name.isupper():
                yield name, ast.unparse(node.value)


def public_names(module):
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    things = {
        name: value for name, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)
    }
    defined = {name for name, value in things.items() if value.__module__ == module.__name__}
    defined |= {name for name, _ in aliases(module)} | (vars(module).keys() & set(LISTS))
    return sorted(name for name in defined if not name.startswith("_"))


def describe(place, name, listed, shown_members=None):
    module = import_module(place)
    value = getattr(module, name)
    if isinstance(value, types.ModuleType):
        return [f"module {name}"]
    if inspect.isclass(value) or inspect.isfunction(value):
        if inspect.isfunction(value):
            return call(f"def {name}", *signature(value))
        return describe_class(name, value, listed, shown_members)
    if isinstance(value, dict | tuple):
        return [f"{name}: {', '.join(getattr(one, '__name__', str(one)) for one in value)}"]
    return [f"{name} = {dict(aliases(module))[name]}"]


def on_the_pages():
    """Each name of the reference with the members that its page shows; None for all of them."""
    entry = re.compile(r"^::: (\S+)\n(?:    options:\n(?:      members: \[(.*)\]\n)?)?", re.MULTILINE)
    for page in sorted(PAGES.glob("*.md")):
        for name, members in entry.findall(page.read_text(encoding="utf-8")):
            yield name, members.split(", ") if members else None


def is_module(name):
    place = Path(spectail.__file__).parent.parent / Path(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def module_lines():
    places = {}
    for name, members in on_the_pages():
        if is_module(name):
            places.setdefault(name, {}).update(dict.fromkeys(public_names(import_module(name))))
        elif not name.startswith("spectail.integrations."):
            place, _, last = name.rpartition(".")
            places.setdefault(place, {})[last] = members
    things = [getattr(import_module(place), name) for place, names in places.items() for name in names]
    listed = {one for one in things if inspect.isclass(one)}
    for place, names in places.items():
        yield from ("", f"== {place}", "")
        for name, members in sorted(names.items()):
            yield from describe(place, name, listed, members)


def framework_lines():
    for name in FRAMEWORKS:
        source = (Path(spectail.__file__).parent / "integrations" / f"{name}.py").read_text("utf-8")
        yield from ("", f"== spectail.integrations.{name}", "")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield from call(f"def {node.name}", *written(node))
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield f"class {node.name} < {', '.join(map(ast.unparse, node.bases)) or 'object'}"
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                        yield from call("made by ", written(one, bound=True)[0], indent="    ")
                    elif isinstance(one, ast.FunctionDef) and (one.name in SPECIAL or not one.name.startswith("_")):
                        yield from call(f".{one.name}", *written(one, bound=True), indent="    ")


def written(node, bound=False):
    """The signature of a function as it stands in the source, without what its annotations name."""
    code = f"from __future__ import annotations\ndef found({ast.unparse(node.args)})"
    code += f" -> {ast.unparse(node.returns)}: ..." if node.returns else ": ..."
    space = {}
    exec(compile(code, "<signature>", "exec"), space)
    return signature(space["found"], bound=bound)


# commands and names


def flag_lines(kind, prefix="", without=()):
    """``--name type = default`` for each field; settings inside settings as the parser names them."""
    for one in dataclasses.fields(kind):
        text, inner = str(one.type), one.default_factory
        if one.name in without:
            continue
        if inspect.isclass(inner) and dataclasses.is_dataclass(inner):
            apart = kind.__name__ == "TrainConfig" and one.name == "car"  # of TrainConfig only CAR keeps its name
            yield from flag_lines(inner, f"{prefix}{one.name}." if apart else prefix)
            continue
        given = re.search(r"arg\(name='([\w-]+)'\)", text)
        positional = re.match(r"tyro\.conf\.Positional\[(.*)\]$", text)
        text = positional[1] if positional else re.sub(r"Annotated\[(\w+), .*\]$", r"\1", text)
        default = "" if one.default is dataclasses.MISSING else f" = {shown(one.default)}"
        name = one.name.upper() if positional else f"--{prefix}{given[1] if given else one.name}".replace("_", "-")
        yield f"  {name} {text}{default}"


def command_lines():
    from spectail.cli.main import COMMANDS

    for command, (module, _) in COMMANDS.items():
        module = import_module(f"spectail.cli.{module}")
        source = inspect.getsource(module)
        parsers = re.findall(r'(?:tyro\.cli|read_flags|read_own_flags)\((\w+), (?:prog=)?"([^"]+)"', source)
        known = len(re.findall(r"(?:tyro\.cli|read_flags|read_own_flags)\(", source))
        assert len(parsers) == known, f"{module.__name__} has a parser that is written differently"
        for kind, program in parsers:
            yield from ("", f"== {program}", "", *flag_lines(getattr(module, kind)))
        if not parsers:
            yield from ("", f"== spectail {command}", "")
            yield from train_lines() if command == "train" else flags_in(module.USAGE)


def train_lines():
    from spectail.cli.train import Printing, Sources
    from spectail.methods.registry import ENTRIES
    from spectail.training.config import TrainConfig

    yield from flag_lines(Sources)
    yield from flag_lines(Printing)
    yield from flag_lines(TrainConfig, without=("options",))
    for entry in ENTRIES:
        yield f"  with --method {entry.name}"
        yield from (f"  {line}" for line in flag_lines(type(entry.load().options)))


def flags_in(text):
    return [f"  {flag}" for flag in sorted(set(re.findall(r"--[a-z-]+", text)))]


def registry_lines():
    from spectail.car import PRESETS as CAR_PRESETS
    from spectail.counts import CONVENTIONS
    from spectail.data.catalog import ENTRIES, OWN
    from spectail.data.longtail import PROFILES, SELECTIONS
    from spectail.data.samplers import SAMPLERS
    from spectail.data.transforms import PRESETS as TRANSFORMS
    from spectail.experiments.catalog import EXPERIMENTS
    from spectail.experiments.scales import SCALES
    from spectail.methods.registry import ALIASES, METHODS
    from spectail.models.build import MODELS
    from spectail.training.config import PRESETS
    from spectail.training.recipe_table import RECIPES
    from spectail.training.recipes import BASE_LOSS, SAME_AS

    names = {
        "methods": [*METHODS, *(f"{name} is {other}" for name, other in ALIASES.items())],
        "data sets": [entry.name for entry in [*ENTRIES, *OWN]],
        "models": MODELS,
        "presets": [f"{name}: {shown(settings)}" for name, settings in PRESETS.items()],
        "presets of CAR": [f"{name}: alpha {alpha}, {shown(more)}" for name, (alpha, more, _) in CAR_PRESETS.items()],
        "recipes": [f"{name}: {', '.join(methods)}" for name, methods in RECIPES.items()],
        "recipes of others": [f"{name} as {other}" for name, other in (BASE_LOSS | SAME_AS).items()],
        "transforms": TRANSFORMS,
        "samplers": SAMPLERS,
        "profiles": PROFILES,
        "selections": SELECTIONS,
        "groups": CONVENTIONS,
        "experiments": EXPERIMENTS,
        "scales": SCALES,
    }
    for title, entries in names.items():
        yield from ("", f"== names: {title}", "", *(f"  {entry}" for entry in entries))


def snapshot():
    names = list(registry_lines())  # before spectail.testing adds a model of its own
    head = "What others may rely on, as written by tests/test_public_api.py --update: a change here is one for users."
    lines = [head, *module_lines(), *framework_lines(), *command_lines(), *names]
    return "\n".join(line.rstrip() for line in lines) + "\n"


# the tests


def test_nothing_that_others_rely_on_has_changed():
    """In a process of its own: other tests add methods and models to the lists."""
    from forked import PYTHON

    found = subprocess.run(
        [PYTHON, __file__, "--print"], capture_output=True, encoding="utf-8", timeout=300,
        check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    before, after = SNAPSHOT.read_text(encoding="utf-8").splitlines(), found.stdout.splitlines()
    changes = list(difflib.unified_diff(before, after, "tests/public_api.txt", "the code", lineterm="", n=1))
    if changes:
        pytest.fail("\n".join(["the public interface has changed:", *changes, HOW]), pytrace=False)


def test_the_file_is_the_same_on_every_machine():
    text = SNAPSHOT.read_text(encoding="utf-8")
    assert not re.search(r"0x[0-9a-f]{4}|<locals>|<lambda>|\bat \d", text)
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
    sections = re.findall(r"^== (.*)$", text, re.MULTILINE)
    assert len(sections) == len(set(sections))
    assert {"spectail", "spectail.functional", "spectail train", "names: methods"} <= set(sections)


def test_everything_on_the_pages_of_the_reference_is_in_the_file():
    text = SNAPSHOT.read_text(encoding="utf-8")
    names = [name for name, _ in on_the_pages()]
    assert len(names) > 40
    for name in names:
        last = name.rpartition(".")[2]
        assert re.search(rf"^(class|def) {last}\b|^== {re.escape(name)}$", text, re.MULTILINE), name


def toy(source):
    """A module that stands for one of ours."""
    module = types.ModuleType("spectail")
    exec(compile("from __future__ import annotations\n" + source, "toy", "exec"), vars(module))
    return module


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a, b: int = 1, *, c: X | None = None) -> Y: ...", "(a, b: int = 1, *, c: X | None = None) -> Y"),
        ("def f(a, /, *rest: int, key=(1,), **more: Any): ...", "(a, /, *rest: int, key=(1,), **more: Any)"),
        ("def f(a, /): ...", "(a, /)"),
        ("def f(a=int, b={'x': {2, 1}}, c=object()): ...", "(a=int, b={'x': {1, 2}}, c=<object>)"),
    ],
)  # fmt: skip
def test_signatures_are_shown_whole(source, expected):
    parts, result = signature(toy(source).f)
    assert f"({', '.join(parts)}){result}" == expected
    assert written(ast.parse(source).body[0]) == (parts, result)


CLASS = """
from dataclasses import dataclass, field
from pathlib import Path
class Base:
    def inherited(self): ...
@dataclass
class Kind(Base):
    size: int = 3
    place: Path = Path("a/b")
    more: list[int] = field(default_factory=list)
    def run(self, steps: int = 2) -> int: ...
    @property
    def share(self) -> float: ...
    @classmethod
    def make(cls, x): ...
    def _hidden(self): ...
"""


def test_a_class_is_shown_with_fields_and_members():
    module = toy(CLASS)
    expected = ["class Kind < Base", "    size: int = 3", "    place: Path = 'a/b'", "    more: list[int] = list()",
                "    .inherited()", "    classmethod .make(x)", "    .run(steps: int = 2) -> int",
                "    .share -> float"]  # fmt: skip
    assert describe_class("Kind", module.Kind, set()) == expected
    assert describe_class("Kind", module.Kind, {module.Base}) == [line for line in expected if "inherited" not in line]


@pytest.mark.parametrize(
    ("before", "after"),
    [("steps: int = 2", "steps: int = 3"), ("size: int", "size: str"), ("def make", "def build"), ("-> float", "")],
)
def test_every_kind_of_change_is_seen(before, after):
    changed = CLASS.replace(before, after)
    assert changed != CLASS
    assert describe_class("Kind", toy(changed).Kind, set()) != describe_class("Kind", toy(CLASS).Kind, set())


def test_flags_are_named_as_the_parser_names_them(capsys):
    """Against the help that is printed, which for an experiment is tyro's."""
    import tyro

    from spectail.cli.experiment import PlanAction
    from spectail.cli.train import Printing, Sources, parse
    from spectail.methods.ldam_drw import LDAMDRW
    from spectail.training.config import TrainConfig

    with pytest.raises(SystemExit):
        tyro.cli(PlanAction, args=["--help"])
    check_flags(capsys.readouterr().out, flag_lines(PlanAction))
    with pytest.raises(SystemExit):
        parse(["--method", "ldam-drw", "--help", "all"])
    ours = [*flag_lines(TrainConfig, without=("options",)), *flag_lines(type(LDAMDRW.options))]
    check_flags(capsys.readouterr().out, [*ours, *flag_lines(Sources), *flag_lines(Printing)])


def check_flags(page, lines):
    printed = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", page))
    known = {line.split()[0] for line in lines if line.startswith("  --")}
    negative = {f"--no-{flag[2:]}" for flag in known} | {re.sub(r"\.([\w-]+)$", r".no-\1", flag) for flag in known}
    assert known <= printed, known - printed
    assert printed - known - negative - {"--help"} == set()


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        SNAPSHOT.write_text(snapshot(), encoding="utf-8")
        print(f"{SNAPSHOT.name}: {len(SNAPSHOT.read_text(encoding='utf-8').splitlines())} lines")
    elif sys.argv[1:] == ["--print"]:
        sys.stdout.write(snapshot())
    else:
        raise SystemExit("usage: python tests/test_public_api.py --update | --print")
