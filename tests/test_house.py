"""The order of the house: what may import what, and what the outside may rely on."""

import ast
import graphlib
import inspect
import sys
from pathlib import Path

import pytest

import spectail
from spectail import functional, spectral

SOURCE = Path(spectail.__file__).parent
MODULES = {path.stem: path for path in sorted(SOURCE.glob("*.py"))}
NOT_CORE = {"metrics", "theory"}  # may come with an extra
CORE = sorted(MODULES.keys() - NOT_CORE)
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
    "solver": "auto",
    "sync": "auto",
    "on_empty": "error",
    "validate": "first",
    "ignore_index": -100,
}


def imports(name):
    """Top-level packages a module imports, and the modules of spectail it imports."""
    packages, own = set(), set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            packages.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            own |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return packages, own & MODULES.keys()


@pytest.mark.parametrize("name", CORE)
def test_the_core_needs_torch_and_numpy_only(name):
    packages, _ = imports(name)
    assert packages <= sys.stdlib_module_names | {"torch", "numpy", "spectail"}


def test_no_module_imports_in_a_circle():
    graph = {name: imports(name)[1] for name in MODULES}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order[-1] == "__init__"
    assert "car" in graph["__init__"]


def test_the_rooms_stand_in_the_order_of_the_plan():
    order = ["counts", "targets", "functional", "car"]
    for place, name in enumerate(order):
        assert not imports(name)[1] & set(order[place + 1 :])
    assert not imports("spectral")[1] & set(order)


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
