"""Configurations as plain dictionaries and YAML. An unknown key is an error that names the nearest one."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import types
import typing
from pathlib import Path
from typing import Any

import yaml

from .._utils.digests import verify
from .._utils.files import read_regular, whole_file
from .._utils.names import nearest, shown
from ..methods.registry import find_method
from .config import LONGER, PRESETS, TrainConfig

FORMER = {"data.skip_broken"}
"""Settings of earlier versions that are passed over: broken images are now left out unless data.strict is set, and a
run that had ended without leaving any out had met none."""
_DISGUISED = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def to_dict(config: Any) -> dict[str, Any]:
    """All settings, as YAML and JSON can hold them."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def from_dict(content: dict[str, Any], base: TrainConfig | None = None, *, from_file: bool = False) -> TrainConfig:
    """A configuration from nested dictionaries; what they leave out comes from ``base``.

    What was read ``from_file`` cannot make code run, see :func:`~spectail.methods.registry.find_method`. Another method
    than that of ``base`` brings the settings without which it would not be itself.
    """
    base = base if base is not None else TrainConfig()
    before, entry = (
        base.method,
        find_method(content.get("method", base.method), from_file=from_file and "method" in content),
    )
    method, kind = entry.name, entry.load()  # an alias becomes the method's own name
    if "method" in content:
        content = content | {"method": method}
    if type(base.options) is not type(kind.options):
        base = dataclasses.replace(base, method=method, options=kind.options)
    if method != before:
        base = _merged(base, dict(kind.required_settings), "")
    return typing.cast(TrainConfig, _merged(base, content, ""))


def preset(name: str, dataset: str | None = None) -> TrainConfig:
    """The settings of a preset, with as many epochs as its protocol has on a data set."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; {nearest(name, PRESETS)}")
    config = from_dict(PRESETS[name])
    epochs = LONGER.get((name, dataset or ""), config.optim.epochs)
    return dataclasses.replace(config, optim=dataclasses.replace(config.optim, epochs=epochs))


def read_yaml(path: Path, base: TrainConfig | None = None) -> TrainConfig:
    content = raw_yaml(path)
    try:
        return from_dict(content, base, from_file=True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def raw_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file, as they are written. A file with a digest beside it must be as it was."""
    verify(path)
    try:
        content = copy.deepcopy(_parsed(read_regular(path).decode()))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save it as UTF-8.") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be settings.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"{path} must hold settings by name; got {type(content).__name__}.")
    return content or {}


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Any:
    """YAML takes far longer to read than to copy, and a run reads its settings at every checkpoint."""
    return yaml.load(text, Loader=_Strict)


class _Strict(yaml.SafeLoader):
    """YAML as people mean it: a key stands once, and 010 and 1:30 are no numbers in disguise."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if isinstance(key.value, str)]
        twice = next((key for at, key in enumerate(keys) if key.value in {one.value for one in keys[:at]}), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice.value!r} stands there twice", twice.start_mark)
        return super().construct_mapping(node, deep)


_Strict.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _DISGUISED]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Strict.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
_FLOAT = re.compile(r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|\.inf|\.nan)$", re.IGNORECASE)
_Strict.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def yaml_text(config: TrainConfig) -> str:
    return str(yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True))


def write_yaml(path: Path, config: TrainConfig) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(yaml_text(config), encoding="utf-8")


def differences(a: TrainConfig, b: TrainConfig) -> list[str]:
    """``name: value -> value`` for every setting that is not the same."""
    first, second = flat(to_dict(a)), flat(to_dict(b))
    return [
        f"{name}: {first.get(name)!r} -> {second.get(name)!r}"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in content.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return result


@functools.cache
def _types_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _merged(base: Any, content: dict[str, Any], path: str) -> Any:
    known = {field.name: field for field in dataclasses.fields(base)}
    hints = _types_of(type(base))  # type: ignore[arg-type]  # a class is hashable
    changes: dict[str, Any] = {}
    for name, value in content.items():
        if f"{path}{name}" in FORMER:
            continue
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"unknown setting '{path}{name}'; {nearest(name, known)}")
        current = getattr(base, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise ValueError(f"'{path}{name}' must hold settings by name; got {shown(value)}.")
            changes[name] = _merged(current, value, f"{path}{name}.")
        else:
            changes[name] = _converted(value, hints[name], f"{path}{name}")
    return dataclasses.replace(base, **changes)


def _converted(value: Any, kind: Any, name: str) -> Any:
    """A YAML value as the type that a setting has."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        if any(typing.get_origin(entry) is typing.Literal and value in typing.get_args(entry) for entry in arguments):
            return value  # a word in place of a number
        return _converted(value, next(entry for entry in arguments if entry is not type(None)), name)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"'{name}' must be one of {', '.join(map(str, arguments))}; got {shown(value)}.")
        return value
    if origin is tuple:
        values = [value] if not isinstance(value, list | tuple) else value
        return tuple(_converted(entry, arguments[0], name) for entry in values)
    wrong = ValueError(f"'{name}' must be {KINDS.get(kind, kind)}; got {shown(value)}.")
    if kind is Path:
        if not isinstance(value, str | Path):
            raise wrong
        return Path(value)
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as text
        except ValueError:
            raise wrong from None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise wrong
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value
