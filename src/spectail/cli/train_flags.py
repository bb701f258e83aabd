"""Flags to a TrainConfig: preset, then YAML file, then flags. Every training command shares them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..data.config import DataConfig
from ..methods.registry import METHODS, find_method
from ..methods.two_stage import scaled
from ..models.build import ModelConfig
from ..training.config import OptimConfig, TrainConfig
from ..training.config_io import from_dict, preset, read_yaml
from ..training.recipes import find_recipe

FLAT = {"data": DataConfig, "model": ModelConfig, "optim": OptimConfig}
OWN = """

  --method NAME        a name from `spectail list methods` (default ce)
  --preset NAME        start from demo, scratch, finetune or probe
  --config FILE        settings from a YAML file, over the preset
  --recipe             settings that the method was published with on this data set (spectail list recipes)
  --car                put CAR on the method; any --car.* implies it
"""


def parse(arguments: list[str], prog: str, description: str) -> TrainConfig:
    """The configuration that the flags describe."""
    rest, own = _own_flags(arguments)
    base = preset(own["preset"]) if own.get("preset") else TrainConfig()
    if own.get("config"):
        base = read_yaml(Path(own["config"]), base)
    base = from_dict({"method": own.get("method") or base.method}, base)
    recipe = find_recipe(base.method, _value(rest, "--dataset") or base.data.dataset) if own.get("recipe") else None
    if recipe is not None:
        base = from_dict(recipe.settings(), base)
    if own.get("car") or any(argument.startswith("--car.") for argument in rest):
        base = dataclasses.replace(base, car=dataclasses.replace(base.car, enabled=True))
    _refuse_options_of_others(rest, base)
    kind = _flag_class(type(base.options))
    default = kind(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)})
    found = tyro.cli(kind, prog=prog, description=description + OWN, args=rest, default=default)
    config = TrainConfig(**{field.name: getattr(found, field.name) for field in dataclasses.fields(base)})
    if recipe is not None and _value(rest, "--warmup-epochs") is None:  # keeps its share of a shorter run
        warmup = config.optim.warmup_epochs * config.optim.epochs / recipe.optim["epochs"]
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, warmup_epochs=warmup))
    if recipe is not None and "stage2_epochs" in recipe.options and _value(rest, "--stage2-epochs") is None:
        length = scaled(recipe.options["stage2_epochs"], recipe.optim["epochs"], config.optim.epochs)
        config = dataclasses.replace(config, options=dataclasses.replace(config.options, stage2_epochs=length))  # type: ignore[call-arg]
    asked = _value(rest, "--output") is not None or base.output != TrainConfig.output
    return config if asked else dataclasses.replace(config, output=default_output(config))


def _value(arguments: list[str], flag: str) -> str | None:
    """What a flag is given, before the arguments are parsed."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == flag:  # either spelling, as the parser takes them
            return value if equals else next(iter(arguments[place + 1 :]), None)
    return None


def _refuse_options_of_others(arguments: list[str], config: TrainConfig) -> None:
    """A flag that exists for other methods only: the parser could not say for which."""
    holders = (TrainConfig, *FLAT.values(), type(config.options))
    known = {field.name for holder in holders for field in dataclasses.fields(holder)}
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--").replace("-", "_").removeprefix("no_")
        if not argument.startswith("--") or name in known or name == "help" or "." in name:  # the last: CAR's
            continue
        others = [
            entry.name
            for entry in METHODS.values()
            if name in {field.name for field in dataclasses.fields(entry.load().options)}
        ]
        if others:
            flag = argument.partition("=")[0]
            raise ValueError(f"{config.method} has no option {flag}; it belongs to {', '.join(others)}.")


def default_output(config: TrainConfig) -> Path:
    data = config.data.dataset.split(":")[0] if ":" in config.data.dataset else config.data.dataset
    method = config.method + ("-car" if config.car.enabled and not find_method(config.method).car else "")
    method += f"-{config.car.preset}" if config.car.preset != "paper" else ""
    return Path("runs") / f"{data}-{config.model.model}-{method}-seed{config.seed}"


def _own_flags(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """What must be known before the rest can be read, taken out of the arguments."""
    rest: list[str] = []
    own: dict[str, Any] = {}
    waiting = iter(arguments)
    for argument in waiting:
        name, _, value = argument.removeprefix("--").partition("=")
        if argument in ("--car", "--recipe"):
            own[name] = True
        elif argument.startswith("--") and name in ("preset", "config", "method"):
            own[name] = value if "=" in argument else next(waiting, None)
            if not own[name]:
                raise ValueError(f"--{name} needs a value.")
        else:
            rest.append(argument)
    return rest, own


def _flag_class(options: type[Any]) -> type[Any]:
    """TrainConfig with nested settings as plain flags and the method's own added; CAR's keep their prefix."""
    nested = FLAT | {"options": options}
    fields: list[Any] = [
        (name, Annotated[kind, tyro.conf.OmitArgPrefixes], dataclasses.field(default_factory=kind))
        for name, kind in nested.items()
    ]
    fields.append(("method", Annotated[str, tyro.conf.Suppress], dataclasses.field(default="ce")))
    return dataclasses.make_dataclass("Train", fields, bases=(TrainConfig,), frozen=True)
