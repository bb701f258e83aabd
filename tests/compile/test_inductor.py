"""Every method with the kernels that torch.compile makes, which takes a C++ compiler and its time."""

import types
from contextlib import suppress
from dataclasses import fields, replace
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from spectail import ClassCounts
from spectail.methods import METHODS, find_method
from spectail.testing import check_compiled, check_resume_compiled, settings
from spectail.testing.hardware import compiling_by, course
from spectail.training.loop import train

BACKEND = "inductor"
COUNTS = ClassCounts([24, 17, 12, 8, 6, 4])
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # its own


@pytest.mark.parametrize("method", METHODS)
def test_compiled_is_eager(method, tmp_path):
    check_compiled(method, tmp_path, BACKEND)


@pytest.mark.parametrize("method", METHODS)
def test_resumed_in_bf16(method, tmp_path):
    check_resume_compiled(method, tmp_path, BACKEND)


@pytest.mark.parametrize("model", ["small-cnn", "test_vit"])
def test_networks(model, tmp_path):
    """Convolutions with batch norm, and attention."""
    losses = []
    with compiling_by(BACKEND):
        for compiled in (False, True):
            config = settings("car", tmp_path / str(compiled), hardware={"compile": compiled},
                              model={"model": model, "img_size": 32})  # fmt: skip
            losses.append(course(config, 0).losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def choices(kind):
    """The values of an option that has few: those of a Literal, and both of a flag."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) is types.UnionType:
        return [value for part in get_args(kind) for value in choices(part)]
    return (False, True) if kind is bool else ()


def variants():
    """Every method with one option at a time at every other value it may have, and whether it can be compiled then."""
    for name in METHODS:
        kind = find_method(name).load()
        hints = get_type_hints(type(kind.options))
        for field in fields(kind.options):
            for value in choices(hints[field.name]):
                with suppress(ValueError):  # some values make no sense alone, and are refused
                    method = kind(COUNTS, replace(kind.options, **{field.name: value}), epochs=2)
                    if value != getattr(kind.options, field.name):
                        yield name, field.name, value, method.compiles


@pytest.mark.parametrize(("name", "option", "value", "compiles"), [*variants()])
def test_exactly_what_differentiates_twice_is_refused(name, option, value, compiles, tmp_path, monkeypatch):
    """A variant is refused if and only if torch.compile cannot do it. No kernels are needed to find out."""
    own = {option: value}
    if hasattr(find_method(name).load().options, "stage2_epochs"):
        own["stage2_epochs"] = 1
    config = settings(name, tmp_path / "run", options=own, hardware={"compile": True}, eval_train=False)
    if value == "val":
        config = replace(config, data=replace(config.data, val_fraction=0.3))
    with compiling_by("aot_eager"):
        if compiles:
            train(config)
            return
        with pytest.raises(ValueError, match="--compile"):
            train(config)
        monkeypatch.setattr(find_method(name).load(), "compiles", property(lambda self: True, lambda self, value: None))
        with pytest.raises(RuntimeError, match="double backward"):
            train(config)
