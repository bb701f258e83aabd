"""Flags to a TrainConfig: preset, then YAML file, then recipe, then flags. Every training command shares them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes

from ..data.config import DataConfig
from ..methods.base import Options
from ..methods.deferred import LossOptions
from ..methods.registry import METHODS, find_method
from ..methods.two_stage import scaled
from ..models.build import ModelConfig
from ..training.config import CARConfig, OptimConfig, TrainConfig
from ..training.config_io import from_dict, preset, read_yaml
from ..training.recipes import Recipe, find_recipe
from .arguments import Flag, about, flags_of, print_page

PROG = "spectail train"
EXAMPLES = (
    "spectail train --method car --epochs 10",
    "spectail train --dataset folder:photos --method balanced-softmax --car",
)
TITLES = {
    "sources": "Method, and where settings come from",
    "data": "Data",
    "model": "Model",
    "optim": "Optimisation",
    "options": "Options of {method}",
    "car": "CAR",
    "": "Run",
    "printing": "Run",
}
MORE = """
`spectail train --help all` shows every option, `spectail train --method NAME
--help` those of a method. Every switch has a --no- form that undoes it."""
COMMON = {
    "method", "car", "preset", "config", "recipe", "dataset", "root", "imbalance", "val-fraction", "model",
    "pretrained", "init", "epochs", "batch-size", "optimizer", "lr", "weight-decay", "precision", "car.preset",
    "car.alpha", "probe", "seed", "device", "select-on", "output", "resume", "quiet",
    "json", "report",
}  # fmt: skip


@dataclass(frozen=True)
class Sources:
    """The settings that all other flags change."""

    add_car: Annotated[bool, tyro.conf.arg(name="car")] = False
    """Add CAR to the method. Any --car.* option implies it."""
    preset: str | None = None
    """Start from the settings of demo, scratch, finetune, finetune-script or probe."""
    config: Path | None = None
    """Settings from a YAML file, such as config.yaml of a run. They replace those of the preset."""
    recipe: bool = False
    """Settings that the method was published with on this data set. See `spectail list recipes`."""


@dataclass(frozen=True)
class Printing:
    """What a run prints, and the report."""

    resume: bool = False
    """Continue the run in --output."""
    quiet: bool = False
    """Print the result only."""
    json: bool = False
    """Print results.json instead of a table."""
    report: bool = True
    """Write report.html into the folder of the run."""


@dataclass(frozen=True)
class Train(TrainConfig):
    """Train one method on one data set. Without any option, cross entropy learns the embedded data set."""

    data: OmitArgPrefixes[DataConfig] = field(default_factory=DataConfig)
    model: OmitArgPrefixes[ModelConfig] = field(default_factory=ModelConfig)
    optim: OmitArgPrefixes[OptimConfig] = field(default_factory=OptimConfig)
    options: OmitArgPrefixes[Options] = field(default_factory=LossOptions)
    sources: OmitArgPrefixes[Sources] = field(default_factory=Sources)
    printing: OmitArgPrefixes[Printing] = field(default_factory=Printing)


@dataclass(frozen=True)
class First:
    """Flags that must be known before the rest can be read; None for what is not given."""

    sources: OmitArgPrefixes[Sources] = field(default_factory=Sources)
    method: str | None = None
    dataset: str | None = None
    output: Path | None = None
    warmup_epochs: float | None = None
    stage2_epochs: int | None = None
    help: Annotated[tuple[Literal["all"], ...] | None, tyro.conf.arg(aliases=["-h"]), tyro.conf.DisallowNone] = None


@dataclass(frozen=True)
class CARFlags:
    """Flags each of which puts CAR on the method, unless --no-car takes it away."""

    car: CARConfig = field(default_factory=CARConfig)
    add_car: Annotated[bool, tyro.conf.arg(name="car")] = True


def parse(arguments: list[str]) -> tuple[TrainConfig, Printing]:
    """The configuration that the flags describe, and what to print. ``--help`` shows a page and ends the program."""
    first, _ = tyro.cli(First, prog=PROG, args=arguments, return_unknown_args=True, add_help=False)
    base = preset(first.sources.preset) if first.sources.preset is not None else TrainConfig()
    if first.sources.config is not None:
        base = read_yaml(first.sources.config, base)
    base = from_dict({"method": base.method if first.method is None else first.method}, base)
    recipe = find_recipe(base.method, first.dataset or base.data.dataset) if first.sources.recipe else None
    if recipe is not None:
        base = from_dict(recipe.settings(), base)
    given, others = tyro.cli(
        CARFlags, prog=PROG, args=arguments, default=CARFlags(), return_unknown_args=True, add_help=False
    )
    if others != arguments:
        if not given.add_car and find_method(base.method).car:
            raise ValueError(f"--no-car: {base.method} is a method with CAR in it; choose another one, such as ce.")
        base = dataclasses.replace(base, car=dataclasses.replace(base.car, enabled=given.add_car))
    default = Train(**_settings(base))
    if first.help is not None:
        _print_help(default, everything="all" in first.help, with_options=first.method is not None)
        raise SystemExit(0)
    flags, unknown = tyro.cli(
        Train, prog=PROG, args=arguments, default=default, return_unknown_args=True, add_help=False
    )
    if unknown:
        _check_other_methods(unknown, base.method)
        tyro.cli(Train, prog=PROG, args=arguments, default=default)  # says which flag is wrong, and ends the program
    config = TrainConfig(**_settings(flags) | {"method": base.method})  # what an alias stands for
    if recipe is not None:
        config = _shortened(config, recipe, first)
    asked = first.output is not None or base.output != TrainConfig.output
    return config if asked else dataclasses.replace(config, output=default_output(config)), flags.printing


def default_output(config: TrainConfig) -> Path:
    data = config.data.dataset.split(":")[0] if ":" in config.data.dataset else config.data.dataset
    method = config.method + ("-car" if config.car.enabled and not find_method(config.method).car else "")
    method += f"-{config.car.preset}" if config.car.preset != "paper" else ""
    return Path("runs") / f"{data}-{config.model.model}-{method}-seed{config.seed}"


def _settings(config: TrainConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}


def _shortened(config: TrainConfig, recipe: Recipe, given: First) -> TrainConfig:
    """Lengths of the recipe that no flag sets keep their share of a run with other epochs."""
    epochs, published = config.optim.epochs, recipe.optim["epochs"]
    if given.warmup_epochs is None:
        warmup = config.optim.warmup_epochs * epochs / published
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, warmup_epochs=warmup))
    if given.stage2_epochs is None and "stage2_epochs" in recipe.options:
        length = scaled(recipe.options["stage2_epochs"], published, epochs)
        config = dataclasses.replace(config, options=dataclasses.replace(config.options, stage2_epochs=length))  # type: ignore[call-arg]
    return config


def _check_other_methods(unknown: list[str], method: str) -> None:
    """Refuse a flag that only other methods have: the parser could not say which."""
    for flag in unknown:
        owners = [entry.name for entry in METHODS.values() if _takes(type(entry.load().options), flag)]
        if owners:
            raise ValueError(f"{method} has no option {flag.partition('=')[0]}; it belongs to {', '.join(owners)}.")


def _takes(options: type[Options], flag: str) -> bool:
    try:
        _, rest = tyro.cli(options, args=[flag], return_unknown_args=True, add_help=False, console_outputs=False)
    except SystemExit:  # it does, but a value is missing or wrong
        return True
    return not rest


def _print_help(default: Train, *, everything: bool, with_options: bool) -> None:
    """The page of `spectail train --help`: what most people need, or everything."""
    common = {f"--{name}" for name in COMMON}
    groups: dict[str, list[Flag]] = {title.format(method=default.method): [] for title in TITLES.values()}
    for flag in flags_of(Train, dataclasses.replace(default, output=default_output(default))):
        if everything or flag.name.split(",")[0] in common or (with_options and flag.group == "options"):
            group = "sources" if flag.name == "--method" else flag.group
            groups[TITLES[group].format(method=default.method)].append(flag)
    print_page(PROG, about(Train), EXAMPLES, groups)
    if not everything:
        print(MORE)
