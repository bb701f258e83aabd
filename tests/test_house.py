"""The order of the house: what may import what, and what the outside may rely on."""

import ast
import graphlib
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

import spectail
from spectail import functional, spectral

SOURCE = Path(spectail.__file__).parent
CORE_MODULES = {"_core", "counts", "targets", "functional", "spectral", "car", "car_loss", "car_reference"}
ROOMS = (
    *("_utils", "core", "losses", "metrics", "theory", "data", "diagnosis", "models", "augment", "methods"),
    *("training", "testing", "report", "integrations", "experiments", "fit", "sklearn", "cli"),
)
DOORS = {"__init__", "__main__"}  # of the house; they open every room
LIGHT = ("core", "losses", "metrics")  # rooms that need torch and numpy only
OPTIONS = {
    "beta": 0.5,
    "r0": 0.2,
    "gamma": 0.0,
    "competitors": "all",
    "ema": "batch",
    "ema_start": "zero",
    "gate_grad": True,
    "weighting": "frequency",
    "normalize_weights": False,
    "prior_shift": 0.0,
    "surrogate": "full",
    "mixed": "masked",
    "temperature": 1.0,
    "baseline_grad": True,
    "norm": "spectral",
    "sharpness": 20.0,
    "solver": "auto",
    "sync": "auto",
    "on_empty": "error",
    "validate": "first",
    "ignore_index": -100,
}


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EVERYWHERE = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def for_types_only(node):
    test = node.test if isinstance(node, ast.If) else None
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"


def walk(tree):
    """All nodes, in functions too, but for what only a type checker reads."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.orelse if for_types_only(node) else ast.iter_child_nodes(node)


def modules_used(name, known):
    """Modules of the house that a module imports: ``from .a import b`` is a.b if that is a module, else a."""
    path = known[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names}
    return {other for other in found if other.split(".")[0] == "spectail"}


def room(name):
    """The top-level part of the house that a module belongs to; None for the house itself."""
    parts = name.split(".")
    if len(parts) == 1 or parts[1] in DOORS:
        return None
    return "core" if parts[1] in CORE_MODULES else parts[1]


def crossing(name, known):
    """Rooms that a module imports from although they come after its own."""
    own, used = room(name), {room(other) for other in modules_used(name, known)}
    return {other for other in used - {None} if ROOMS.index(other) > ROOMS.index(own)}


def test_every_module_has_a_room():
    assert {room(name) for name in EVERYWHERE} - {None} == {*ROOMS}


def test_a_room_imports_only_from_rooms_before_its_own():
    inside = [name for name in EVERYWHERE if room(name)]
    assert {name: crossing(name, EVERYWHERE) for name in inside if crossing(name, EVERYWHERE)} == {}
    assert not set().union(*(modules_used(name, EVERYWHERE) for name in inside)) - EVERYWHERE.keys()


def test_within_the_core_the_public_modules_have_an_order():
    order = ["spectail.counts", "spectail.targets", "spectail.functional", "spectail.car", "spectail.car_loss"]
    for place, name in enumerate(order):
        assert not modules_used(name, EVERYWHERE) & set(order[place + 1 :])
    assert not modules_used("spectail.spectral", EVERYWHERE) & set(order)


def packages_used(path):
    """Top-level packages that a module imports."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            packages.add(node.module.split(".")[0])
    return packages


def test_the_core_and_the_losses_need_torch_and_numpy_only():
    allowed = sys.stdlib_module_names | {"torch", "numpy", "spectail"}
    used = {name: packages_used(path) - allowed for name, path in EVERYWHERE.items() if room(name) in LIGHT}
    assert {name: packages for name, packages in used.items() if packages} == {}
    assert packages_used(EVERYWHERE["spectail.models.build"]) - allowed  # it does find what there is


def test_the_root_holds_what_users_import_only():
    wanted = {"__init__", "__main__", "counts", "targets", "functional", "spectral", "car", "car_loss"}
    assert {path.stem for path in SOURCE.glob("*.py")} == wanted | {"car_reference", "metrics", "sklearn"}


def test_methods_need_no_data_but_for_the_views_of_one():
    """A batch is three tensors in a file of its own: importing a method takes no torchvision."""
    assert not any(room(other) for other in modules_used("spectail.data.batch", EVERYWHERE))
    methods = {name for name in EVERYWHERE if room(name) == "methods"}
    used = {name: {one for one in modules_used(name, EVERYWHERE) if room(one) == "data"} for name in methods}
    assert {name for name, data in used.items() if data - {"spectail.data.batch"}} == {"spectail.methods.concutmix"}


def find_circle(known):
    graph = {name: modules_used(name, known) & known.keys() for name in known}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_no_module_of_any_room_imports_in_a_circle():
    assert find_circle(EVERYWHERE) is None


WORDING = {  # decisions by the words of an error, each of another library that has no type for it
    "spectail.models.build": 1,  # Python: an argument that a model of timm does not take
    "spectail._utils.errors": 1,  # torch: the memory of the host has run out
}
LOOKS = {"startswith", "endswith", "find", "index", "partition", "rpartition", "removeprefix", "removesuffix"}
SEARCHES = {"search", "match", "fullmatch", "findall"}


def wording_asked(path):
    """Lines that decide by the text of an error: ``x in str(error)``, ``str(error).startswith``, ``re.search``."""
    tree = ast.parse(path.read_text())
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name} | {"error"}
    texts = set()

    def of_error(node):
        if isinstance(node, ast.Name):
            return node.id in texts
        made = isinstance(node, ast.Call) and getattr(node.func, "id", None) in {"str", "repr", "first_line"}
        if made and node.args:
            return isinstance(node.args[0], ast.Name) and node.args[0].id in errors
        inner = node.func if isinstance(node, ast.Call) else node  # str(error).lower(), str(error)[:9], error.args[0]
        if isinstance(inner, ast.Attribute):
            return (inner.attr == "args" and getattr(inner.value, "id", None) in errors) or of_error(inner.value)
        return isinstance(inner, ast.Subscript) and of_error(inner.value)

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and of_error(node.value):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                continue
            if any(of_error(side) for side in (node.left, *node.comparators)):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            cut = node.func.attr in LOOKS or (node.func.attr == "split" and node.args)
            searched = node.func.attr in SEARCHES and any(of_error(value) for value in node.args)
            if (cut and of_error(node.func.value)) or searched:
                yield node.lineno


def test_nothing_is_decided_by_the_wording_of_an_error_of_our_own():
    found = {name: list(wording_asked(path)) for name, path in EVERYWHERE.items()}
    assert {name: len(lines) for name, lines in found.items() if lines} == WORDING, found


@pytest.mark.parametrize(
    ("line", "decides"),
    [
        ("if 'root' in str(error): pass", True),
        ("text = str(error)\n    if 'root' in text: pass", True),
        ("if str(error).startswith('Caught'): pass", True),
        ("shown = str(error).split('. Replace')[0]", True),
        ("number = re.search('[0-9]+', str(error))", True),
        ("same = str(error).lower() == 'away'", True),
        ("if 'root' in error.args[0]: pass", True),
        ("raise ValueError(f'{path}: {error}')", False),
        ("text = ' '.join(str(error).split())", False),
        ("first = str(error).splitlines()[0]", False),
        ("if error.errno == 28: pass", False),
    ],
)
def test_the_rule_about_wording_finds_what_it_looks_for(tmp_path, line, decides):
    (tmp_path / "one.py").write_text(f"try:\n    pass\nexcept ValueError as error:\n    {line}\n")
    assert bool(list(wording_asked(tmp_path / "one.py"))) == decides


@pytest.fixture
def small_house(tmp_path):
    def build(**files):
        known = {}
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text)
            known[f"spectail.{name.replace('__', '.')}"] = path
        return known

    return build


def test_the_rules_find_what_they_look_for(small_house):
    """The checks above on a house with faults, or their silence would prove nothing."""
    known = small_house(
        losses__a="from ..metrics import Metrics",
        metrics="from .losses.a import b\nimport torch",
        data__x="def f():\n    from . import y\n    from .. import cli\n    import spectail.training.loop",
        data__y="from .x import f",
        _core__x="from ..losses import a",
        models__z="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..cli.main import main",
        cli__main="from ..models.z import z\nfrom ..data import x",
    )
    assert modules_used("spectail.data.x", known) == {"spectail.data.y", "spectail", "spectail.training.loop"}
    assert modules_used("spectail.cli.main", known) == {"spectail.models.z", "spectail.data.x"}
    assert modules_used("spectail.models.z", known) == set()
    assert crossing("spectail.losses.a", known) == {"metrics"}
    assert crossing("spectail.metrics", known) == set()
    assert crossing("spectail.data.x", known) == {"training"}
    assert crossing("spectail._core.x", known) == {"losses"}
    assert crossing("spectail.cli.main", known) == set()
    assert set(find_circle(known)) in (
        {"spectail.data.x", "spectail.data.y"},
        {"spectail.metrics", "spectail.losses.a"},
    )


def run(*arguments, path=None):
    """A fresh Python; warnings are errors there too."""
    places = [str(place) for place in (path, SOURCE.parent) if place]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def without_torch(tmp_path):
    """A folder to put first on the path: there, torch and numpy end the process."""
    for name in ("torch", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    return tmp_path


@pytest.mark.parametrize("argument", ["--help", "--version", "-h", "nonsense"])
def test_the_command_line_answers_without_torch(without_torch, argument):
    done = run("-m", "spectail", argument, path=without_torch)
    wanted = {"--version": spectail.__version__, "nonsense": "unknown command"}.get(argument, "usage: spectail COMMAND")
    assert done.returncode == (2 if argument == "nonsense" else 0), done.stderr
    assert wanted in done.stdout + done.stderr
    assert "was imported" not in done.stdout + done.stderr


def test_the_package_imports_without_torch(without_torch):
    code = "import spectail; print(spectail.__version__, dir(spectail)); {}"
    done = run("-c", code.format(""), path=without_torch)
    assert done.returncode == 0, done.stderr
    assert spectail.__version__ in done.stdout
    assert "'CARLoss'" in done.stdout
    asked = run("-c", code.format("spectail.CAR"), path=without_torch)
    assert "torch was imported" in asked.stderr  # the stand-in does stop what needs torch


SCRIPTS = [
    path for folder in ("benchmarks", "docs") for path in sorted((Path(__file__).parents[1] / folder).glob("*.py"))
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_what_exists(path):
    """No test runs a whole benchmark, so a module that moves would break it unseen."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "spectail":
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}"), name.name


def test_everything_is_imported_when_it_is_used():
    """Step by step in one fresh Python: names, then the core as after `pip install spectail`, then the flags of
    training, whose mistakes are answered soon: torchvision, timm and Accelerate, which take seconds, are not there yet.
    """
    code = """
import sys, spectail
assert not [name for name in sys.modules if name.startswith("spectail.") or name in ("torch", "numpy")]
import torch
before = set(sys.modules)  # what torch needs may be there

def brought(names):
    return {name.split(".")[0] for name in set(sys.modules) - before} & set(names.split())

assert spectail.CAR is spectail.CAR
assert spectail.CAR.__module__ == "spectail.car"
assert spectail.functional.soft_confusion and spectail.spectral.top_singular
from spectail import CARLoss, ClassCounts, MixedTarget
assert set(dir(spectail)) >= set(spectail.__all__)
try:
    spectail.CarLoss
except AttributeError as error:
    assert str(error) == "module 'spectail' has no attribute 'CarLoss'", error
else:
    raise AssertionError("a name that does not exist")

import spectail.losses, spectail.metrics
extras = "torchvision timm PIL pyarrow matplotlib tyro rich accelerate safetensors yaml sklearn torchmetrics ray"
found = brought(extras + " lightning transformers")
assert not found, f"the core imports {found}"

from spectail.cli.train import parse
parse(["--method", "cmo", "--car", "--epochs", "3"])
found = brought("accelerate matplotlib timm torchvision")
assert not found, f"reading flags imports {found}"
print("done")
"""
    done = run("-c", code)
    assert done.stdout.strip() == "done", done.stderr


def test_the_surface():
    assert set(spectail.__all__) >= {"CAR", "CARLoss", "ClassCounts", "MixedTarget", "functional", "spectral"}
    assert all(hasattr(spectail, name) for name in spectail.__all__)
    assert isinstance(spectail.__version__, str)


def defaults(fn):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(fn).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def test_options_of_car():
    parameters = inspect.signature(spectail.CAR).parameters
    assert next(iter(parameters)) == "class_counts"
    assert defaults(spectail.CAR).items() >= OPTIONS.items()
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in OPTIONS)


def test_options_of_the_loss():
    parameters = inspect.signature(spectail.CARLoss).parameters
    assert list(parameters)[:3] == ["class_counts", "alpha", "base"]
    assert (
        defaults(spectail.CARLoss).items() >= {"alpha": 0.5, "base": None, "start_step": 0, "warmup_steps": 0}.items()
    )
    assert any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    criterion = spectail.CARLoss([2, 1], **OPTIONS)
    assert isinstance(criterion.car, spectail.CAR)


@pytest.mark.parametrize(
    ("fn", "names", "wanted"),
    [
        (
            functional.soft_confusion,
            ["logits", "target", "gamma", "competitors", "gate_grad", "surrogate", "mixed"],
            {"gamma": 0.0, "competitors": "all", "gate_grad": True, "surrogate": "full", "mixed": "masked"},
        ),
        (functional.confusion, ["pred", "target", "num_classes"], {}),
        (functional.margin_confusion, ["logits", "target", "gamma"], {}),
        (functional.class_weights, ["class_counts", "r0", "normalize"], {"r0": 0.2, "normalize": False}),
        (functional.worst_class_error, ["confusion", "weights"], {}),
        (spectral.top_singular, ["A"], {}),
        (spectail.MixedTarget, ["a", "b", "lam"], {}),
    ],
)
def test_signatures(fn, names, wanted):
    assert list(inspect.signature(fn).parameters)[: len(names)] == names
    assert defaults(fn).items() >= wanted.items()


@pytest.mark.parametrize("owner", [spectail.CAR, spectail.CARLoss])
@pytest.mark.parametrize("preset", ["reference", "classwise"])
def test_presets_take_counts_and_options(owner, preset):
    assert list(inspect.signature(getattr(owner, preset)).parameters) == ["class_counts", "options"]
    assert isinstance(getattr(owner, preset)([2, 1], r0=0.5), owner)


def test_everything_public_is_documented():
    public = [getattr(spectail, name) for name in spectail.__all__]
    public += [
        getattr(functional, name) for name in ("soft_confusion", "confusion", "margin_confusion", "class_weights")
    ]
    assert all(inspect.getdoc(thing) for thing in public)
