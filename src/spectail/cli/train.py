"""`spectail train`: one run. Its settings are those of a preset, then of a YAML file, of a recipe, and of flags."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes

from ..data.catalog import find
from ..data.config import DataConfig
from ..data.paths import full_name
from ..methods.base import Options
from ..methods.deferred import LossOptions
from ..methods.registry import METHODS, find_method, trust
from ..methods.two_stage import scaled
from ..models.build import NO_MODEL, ModelConfig
from ..models.tuning import TuneConfig
from ..training.config import CARConfig, HardwareConfig, OptimConfig, TrainConfig
from ..training.config_io import from_dict, preset, read_yaml
from ..training.recipe_table import NAMED, Recipe
from ..training.recipes import OWN, USUAL_LOSS, find_recipe
from ..training.settle import settled
from .arguments import Flag, about, flags_of, names_of, parse_known, print_page, unknown_flag

PROG = "spectail train"
EXAMPLES = (
    "spectail train --method car --epochs 10",
    "spectail train photos --method balanced-softmax --car",
)
TITLES = {
    "sources": "Method, and where settings come from",
    "data": "Data",
    "model": "Model",
    "tuning": "Model",
    "optim": "Optimisation",
    "hardware": "Device",
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
    "pretrained", "init", "tune", "epochs", "batch-size", "optimizer", "lr", "weight-decay", "precision", "car.preset",
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
    trust: tuple[str, ...] = ()
    """Methods from elsewhere, as package.module:Class, whose code may run because --config names them."""
    recipe: str | None = None
    """Settings that the method was published with on this data set, or those of LIFT (--recipe lift)."""


@dataclass(frozen=True)
class Printing:
    """What a run prints, and the report."""

    resume: bool = False
    """Continue the run in --output, with its settings."""
    force: bool = False
    """Begin a new run even if --output holds something: that folder is moved aside, and nothing is deleted."""
    quiet: bool = False
    """Print the result only."""
    json: bool = False
    """Print results.json instead of a table."""
    report: bool = True
    """Write report.html into the folder of the run."""


@dataclass(frozen=True)
class Train(TrainConfig):
    """Train one method on one data set. Without any argument, cross entropy learns the embedded one."""

    data: OmitArgPrefixes[DataConfig] = field(default_factory=DataConfig)
    model: OmitArgPrefixes[ModelConfig] = field(default_factory=ModelConfig)
    tuning: OmitArgPrefixes[TuneConfig] = field(default_factory=TuneConfig)
    optim: OmitArgPrefixes[OptimConfig] = field(default_factory=OptimConfig)
    hardware: OmitArgPrefixes[HardwareConfig] = field(default_factory=HardwareConfig)
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
    resume: bool = False
    help: Annotated[tuple[Literal["all"], ...] | None, tyro.conf.arg(aliases=["-h"]), tyro.conf.DisallowNone] = None


@dataclass(frozen=True)
class CARFlags:
    """Flags each of which puts CAR on the method, unless --no-car takes it away."""

    car: CARConfig = field(default_factory=CARConfig)
    add_car: Annotated[bool, tyro.conf.arg(name="car")] = True


def run(arguments: list[str]) -> None:
    config, printing = parse(arguments)
    # the flags are read, and help is shown, without the engine
    from ..report.run_record import ended_run, label  # noqa: PLC0415
    from ..training.hardware import with_precision  # noqa: PLC0415
    from ..training.loop import train  # noqa: PLC0415
    from ..training.signals import Interrupted  # noqa: PLC0415
    from .console import ConsoleReporter, make_console, show_results  # noqa: PLC0415

    config = with_precision(config)
    console = make_console(stderr=printing.json)
    reporter = ConsoleReporter(console, quiet=printing.quiet or printing.json)
    try:
        results = train(config, resume=printing.resume, force=printing.force, reporter=reporter)
    except Interrupted as message:
        console.print(f"spectail train: {message}")
        raise SystemExit(130) from None
    if not reporter.is_main:
        return
    if printing.json:
        print(json.dumps(results, indent=1))
    else:
        show_results(console, {label(results): [results]})
        console.print(f"results in {config.output}", soft_wrap=True)
    if printing.report:
        from .report import report_or_say  # noqa: PLC0415 - matplotlib is slow to import, and a run may not need it

        def say(text: str) -> None:
            if not printing.json:
                console.print(text, soft_wrap=True)

        report_or_say(lambda: [ended_run(config, results)], config.output / "report.html", say)


def _usual_preset(dataset: str | None) -> str | None:
    """Where the data are features, a head is trained on them, for as long as it needs."""
    try:
        return "probe" if dataset is not None and find(full_name(dataset)).has_features else None
    except ValueError:  # said by the run, with what to do
        return None


def parse(arguments: list[str]) -> tuple[TrainConfig, Printing]:
    """The configuration that the flags describe, and what to print. ``--help`` shows a page and ends the program."""
    if arguments and not arguments[0].startswith("-"):
        arguments = _with_data(arguments, 0)
    arguments = _with_recipe(arguments)
    first, _ = parse_known(First, PROG, arguments)
    resumed = _resumed(first)
    name = first.sources.preset or (_usual_preset(first.dataset) if resumed is None else None)
    base = preset(name, first.dataset) if name is not None else TrainConfig()
    trust(*first.sources.trust, *([first.method] if first.method is not None else []))
    if resumed is not None:
        base = read_yaml(resumed)
    elif first.sources.config is not None:
        base = read_yaml(first.sources.config, base)
    asked_recipe = first.sources.recipe
    usual = base.method if asked_recipe is None else USUAL_LOSS.get(asked_recipe, base.method)
    base = from_dict({"method": usual if first.method is None else first.method}, base)
    recipe = find_recipe(base.method, first.dataset or base.data.dataset, asked_recipe) if asked_recipe else None
    if recipe is not None:
        base = from_dict(recipe.settings(), base)
    given, others = parse_known(CARFlags, PROG, arguments, CARFlags())
    if others != arguments:
        if not given.add_car and find_method(base.method).car:
            raise ValueError(f"--no-car: {base.method} is a method with CAR in it; choose another one, such as ce.")
        base = dataclasses.replace(base, car=dataclasses.replace(base.car, enabled=given.add_car))
    default = Train(**vars(base))
    if first.help is not None:
        _print_help(default, everything="all" in first.help, with_options=first.method is not None)
        raise SystemExit(0)
    flags, unknown = parse_known(Train, PROG, arguments, default)
    if len(unknown) == 1 and not unknown[0].startswith("-") and unknown[0] in arguments:  # the data set, behind options
        return parse(_with_data(arguments, len(arguments) - 1 - arguments[::-1].index(unknown[0])))
    if unknown:
        _check_other_methods(unknown, base.method)
        raise unknown_flag(PROG, unknown[0], flags_of(Train, default))
    settings = {name: value for name, value in vars(flags).items() if name not in ("sources", "printing")}
    config = TrainConfig(**settings | {"method": base.method})  # what an alias stands for
    if recipe is not None:
        config = _shortened(config, recipe, first)
    config = settled(config)
    asked = first.output is not None or base.output != TrainConfig.output
    config = config if asked else dataclasses.replace(config, output=default_output(config))
    _check_resumed(config.output, first)
    return config, flags.printing


def _resumed(first: First) -> Path | None:
    """The settings of the run to be resumed; None where there is none, or the command itself says where they are."""
    sources = first.sources
    if not first.resume or first.output is None or sources.preset or sources.config or sources.recipe:
        return None
    path = first.output / "config.yaml"
    return path if path.is_file() else None


def _check_resumed(output: Path, first: First) -> None:
    """Refuse to resume nothing where nothing else was asked for: a new run is hardly what is meant."""
    sources = first.sources
    asked = (first.dataset, first.method, sources.preset, sources.config, sources.recipe)
    if not first.resume or any(one is not None for one in asked) or (output / "config.yaml").exists():
        return
    if first.output is None:
        raise ValueError("--resume needs the folder of the run: spectail train --resume --output FOLDER.")
    if not output.is_file():
        raise ValueError(
            f"{output} holds no run to resume: it has no config.yaml. Give the folder of a run, or leave out --resume "
            "to begin a new one there."
        )


def _with_recipe(arguments: list[str]) -> list[str]:
    """``--recipe`` may stand alone, for the method's own, or before a name; --no-recipe takes it back."""
    arguments = list(arguments)
    for place, word in enumerate(arguments):
        if word == "--recipe":
            named = arguments[place + 1 : place + 2]
            arguments[place] = f"--recipe={named[0] if named and named[0] in (*NAMED, OWN) else OWN}"
            if arguments[place] != f"--recipe={OWN}" or named == [OWN]:
                arguments[place + 1] = ""
        elif word == "--no-recipe":
            arguments[place] = "--recipe=None"
    return [word for word in arguments if word]


def _with_data(arguments: list[str], place: int) -> list[str]:
    """The word at a place names the data set, or the run to resume."""
    word, others = arguments[place], arguments[:place] + arguments[place + 1 :]
    named = {other.partition("=")[0] for other in others}
    if "--resume" in named and "--output" not in named and (Path(word) / "config.yaml").is_file():
        return ["--output", word, *others]  # the folder of a run
    if "--dataset" in named:
        raise ValueError(f"{word!r} and --dataset both name the data set; give one of them.")
    return ["--dataset", word, *others]


def default_output(config: TrainConfig) -> Path:
    name, _, path = config.data.dataset.partition(":")
    data = (Path(path).expanduser().resolve().stem if path else name) or name
    network = "" if config.model.model == NO_MODEL else f"-{config.model.model}"
    network += f"-{config.tuning.tune}" if config.tuning.tune != "full" else ""
    method = config.method + ("-car" if config.car.enabled and not find_method(config.method).car else "")
    method += f"-{config.car.preset}" if config.car.preset != "paper" else ""
    return Path("runs") / f"{data}{network}-{method}-seed{config.seed}"


def _shortened(config: TrainConfig, recipe: Recipe, given: First) -> TrainConfig:
    """Lengths of the recipe that no flag sets keep their share of a run with other epochs."""
    epochs, published = config.optim.epochs, recipe.optim["epochs"]
    if given.warmup_epochs is None:
        warmup = config.optim.warmup_epochs * epochs / published
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, warmup_epochs=warmup))
    if given.stage2_epochs is None and recipe.options.get("stage2_epochs") is not None:
        length = scaled(recipe.options["stage2_epochs"], published, epochs)
        config = dataclasses.replace(config, options=dataclasses.replace(config.options, stage2_epochs=length))  # type: ignore[call-arg]
    return config


def _check_other_methods(unknown: list[str], method: str) -> None:
    """Refuse a flag that only other methods have: the parser could not say which."""
    for word in unknown:
        typed = word.partition("=")[0]
        flag = typed.replace("_", "-")
        wanted = {flag, flag.replace("--no-", "--", 1)}
        kinds = {entry.name: entry.load().options for entry in METHODS.values()}
        owners = [name for name, options in kinds.items() if wanted & set(names_of(flags_of(type(options), options)))]
        if owners:
            raise ValueError(f"{method} has no option {typed}; it belongs to {', '.join(owners)}.")


def _print_help(default: Train, *, everything: bool, with_options: bool) -> None:
    """The page of `spectail train --help`: what most people need, or everything."""
    common = {f"--{name}" for name in COMMON}
    groups: dict[str, list[Flag]] = {title.format(method=default.method): [] for title in TITLES.values()}
    for flag in flags_of(Train, dataclasses.replace(default, output=default_output(default))):
        if everything or flag.name.split(",")[0] in common or (with_options and flag.group == "options"):
            group = "sources" if flag.name == "--method" else flag.group
            groups[TITLES[group].format(method=default.method)].append(flag)
    print_page(f"{PROG} [DATASET]", about(Train), EXAMPLES, groups)
    if not everything:
        print(MORE)
