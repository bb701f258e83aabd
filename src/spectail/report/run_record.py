"""What a run folder tells about itself: settings, data identity, training curves, and the command that repeats it."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..car import CAR, PRESETS
from ..data.datasets import Data, load
from ..data.manifest import Manifest
from ..diagnosis.prediction_files import read_predictions
from ..diagnosis.predictions import Predictions, make_predictions
from ..methods.registry import find_method
from ..training.config import CARConfig, TrainConfig
from ..training.config_io import flat, from_dict, to_dict
from ..training.run_folder import MAY_DIFFER, RunFolder

if TYPE_CHECKING:
    from ..training.loop import RunResults

CAR_SETTINGS = ("beta", "r0", "alpha", "gamma")
"""The settings of CAR that are drawn as curves."""
NOT_COMPARED = MAY_DIFFER | {
    *("seed", "log_gradient", "log_cm_gap", "car.enabled"),
    *("data.root", "data.val_seed", "data.check", "data.in_memory"),
}
"""Settings in which runs may differ that differ in nothing but the seed."""


@dataclass(frozen=True)
class RunRecord:
    """One finished run, as its folder has it, or as it has just ended."""

    folder: Path
    config: TrainConfig
    results: dict[str, Any]
    manifest: Manifest
    curves: list[dict[str, Any]]
    """Rows of metrics.jsonl, one per epoch."""
    predicted: Predictions | None = None
    """Its predictions, where they are in memory."""
    loaded: Data | None = None
    """Its images, where they are in memory."""

    def predictions(self, name: str) -> Predictions:
        """What it predicts for the test images, under this name."""
        if self.predicted is None:
            return read_predictions(self.folder, name=name)
        return dataclasses.replace(self.predicted, name=name)

    @property
    def command(self) -> str:
        """The command that repeats the run; settings at their default are left out."""
        return " ".join(["spectail train", *self.flags])

    @property
    def flags(self) -> list[str]:
        """The flags of the command, each with its values, quoted for a shell."""
        return [shlex.join(flag) for flag in changed_flags(self.config)]

    @property
    def label(self) -> str:
        return label(self.results)

    @property
    def car_settings(self) -> dict[str, float] | None:
        """beta, r0, alpha and gamma as they were, presets and defaults filled in; None without CAR."""
        if not self.results.get("car"):
            return None
        preset = PRESETS[self.config.car.preset]
        usual = {name: entry.default for name, entry in inspect.signature(CAR).parameters.items()} | preset.options
        usual["alpha"] = preset.alpha
        given = {name: getattr(self.config.car, name) for name in CAR_SETTINGS}
        return {name: float(usual[name] if given[name] is None else given[name]) for name in CAR_SETTINGS}

    @property
    def settings(self) -> dict[str, Any]:
        """What runs share that differ in nothing but the seed, CAR's settings in full."""
        settings = {name: value for name, value in flat(to_dict(self.config)).items() if name not in NOT_COMPARED}
        settings |= {f"car.{name}": value for name, value in (self.car_settings or {}).items()}
        test = self.manifest.splits["test"]
        if self.config.data.val_seed is None:
            return settings | {"data": self.manifest.identity}
        # validation data cut by other seeds from the same images belong together
        return settings | {"data": f"{self.manifest.ranks} {test.content or test.index}"}

    @cached_property
    def data(self) -> Data:
        """The images of the run, loaded when they are first asked for.

        Raises:
            ValueError, OSError: they are not at hand, or are not those of the run.
        """
        if self.loaded is not None:
            return self.loaded
        config = self.config.data
        if not self.manifest.checks.get("broken"):  # which images count is then known without reading them
            config = dataclasses.replace(config, check="none", in_memory="no")
        data = load(config)
        self.manifest.require_same(data.manifest, f"the run in {self.folder}")
        return data


def read_run(folder: Path) -> RunRecord:
    """Read the folder of a finished run.

    Raises:
        FileNotFoundError: it holds no finished run.
        ValueError: one of its files cannot be read.
    """
    run = RunFolder(folder)
    run.require("results.json", "metrics.jsonl")
    results = run.results()
    assert results is not None
    curves = run.curves()
    return RunRecord(folder, run.config(), results, Manifest.load(folder / "manifest.json"), curves)


def ended_run(config: TrainConfig, results: RunResults) -> RunRecord:
    """The run that has just ended, from memory; what is not there is read when it is asked for."""
    folder, arrays, data = RunFolder(config.output), results.predictions, results.data
    if arrays is None or data is None:
        return read_run(config.output)
    predicted = make_predictions(
        arrays["labels"],
        arrays["logits"],
        class_names=arrays["class_names"].tolist(),
        class_counts=arrays["class_counts"],
    )
    if "paths" in arrays:
        predicted = dataclasses.replace(predicted, paths=tuple(arrays["paths"].tolist()))
    return RunRecord(config.output, config, results, data.manifest, folder.curves(), predicted, data)


def label(results: dict[str, Any]) -> str:
    """The method, with CAR where it was put on it, and the preset of CAR where it is not the method's own.

    Example:
        >>> label({"method": "focal", "car": {"preset": "classwise"}}), label({"method": "car", "car": {}})
        ('focal + car (classwise)', 'car')
    """
    name, car = str(results["method"]), results.get("car")
    if not car:
        return name
    own = find_method(name, from_file=True).load().required_settings.get("car", {}).get("preset", "paper")
    preset = car.get("preset", own)
    return (name if name.startswith("car") else f"{name} + car") + ("" if preset == own else f" ({preset})")


def run_names(runs: Sequence[RunRecord]) -> list[str]:
    """What to call runs: the method, with the seed or the folder only where that does not tell them apart."""
    methods = [run.label for run in runs]
    seeded = [f"{method}, seed {run.config.seed}" for method, run in zip(methods, runs, strict=True)]
    short = [f"{method} ({run.folder.name})" for method, run in zip(methods, runs, strict=True)]
    full = [f"{method} ({run.folder})" for method, run in zip(methods, runs, strict=True)]
    return next((names for names in (methods, seeded, short) if len(set(names)) == len(runs)), full)


def changed_flags(config: TrainConfig) -> list[list[str]]:
    """The flags of `spectail train` that differ from its defaults, each with its values."""
    default = from_dict({"method": config.method})
    flags: list[list[str]] = [["--method", config.method]]
    for field in dataclasses.fields(config):
        value, usual = getattr(config, field.name), getattr(default, field.name)
        if field.name == "car":
            flags += _car_flags(config)
        elif dataclasses.is_dataclass(value):
            flags += _changed(value, usual)
        elif value != usual and field.name != "method":
            flags.append(_flag(field.name, value))
    return flags


def _car_flags(config: TrainConfig) -> list[list[str]]:
    """Any of them switches CAR on, so there are none for a run without it."""
    if not (config.car.enabled or find_method(config.method).car):
        return []
    usual = dataclasses.replace(CARConfig(), enabled=config.car.enabled)
    changed = _changed(config.car, usual, "car.")
    return changed or [["--car"]] * config.car.enabled


def _changed(settings: Any, usual: Any, prefix: str = "") -> list[list[str]]:
    kinds = typing.get_type_hints(type(settings))
    return [
        _flag(prefix + field.name, getattr(settings, field.name), switch=kinds[field.name] is bool)
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != getattr(usual, field.name)
    ]


def _flag(name: str, value: Any, *, switch: bool = True) -> list[str]:
    """`--name value ...`; a switch that can only be on or off has no value."""
    parts = name.replace("_", "-").rpartition(".")
    if isinstance(value, bool) and switch:
        return [f"--{parts[0]}{parts[1]}{'' if value else 'no-'}{parts[2]}"]
    values = value if isinstance(value, tuple) else (value,)
    return ["--" + "".join(parts), *(repr(entry) if isinstance(entry, float) else str(entry) for entry in values)]
