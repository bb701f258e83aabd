"""`spectail compare`: several methods and seeds on one data set. Finished runs are kept, unfinished ones go on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from .._utils.files import write_json
from ..car import PRESETS
from ..experiments.engines import EngineOptions
from ..methods.registry import find_method
from .arguments import read_own_flags
from .console import make_console, show_results
from .outputs import check_folder, check_output


@dataclass(frozen=True)
class Compare:
    """Train several methods with several seeds and show one table. The data set and all other flags are those of
    `spectail train`, as in `spectail compare photos --seeds 0 1 2`.

    A method is written NAME, NAME+car (with CAR), or NAME/classwise or NAME+car/reference (with a preset of CAR).
    """

    methods: tuple[str, ...] = ("ce", "balanced-softmax", "car", "car/classwise")
    """Methods to compare."""
    seeds: tuple[int, ...] = (0,)
    """Seeds to train each method with."""
    output: Path = Path("runs/compare")
    """Folder of all runs and of compare.json."""
    quiet: bool = False
    """Print the table only."""
    report: bool = True
    """Write report.html, which shows all runs side by side."""
    json: bool = False
    """Print compare.json instead of the table."""
    engine: tyro.conf.OmitArgPrefixes[EngineOptions] = field(default_factory=EngineOptions)


def run(arguments: list[str]) -> None:
    config, rest = read_own_flags(Compare, "spectail compare", arguments)
    listed = next((method for method in config.methods if "," in method), None)
    if listed is not None:
        raise ValueError(f"--methods are separated by spaces: --methods {' '.join(listed.replace(',', ' ').split())}.")
    for name, values in (("methods", config.methods), ("seeds", config.seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"--{name} must be given and different; got {' '.join(map(str, values)) or 'none'}.")
    config.engine.check()
    check_folder(config.output)
    check_output(config.output / "report.html")
    flags = {method: flags_of(method) for method in config.methods}  # a wrong name is said before anything runs
    from ..experiments.runs import code_version, content_hash, hash_of  # noqa: PLC0415 - torch is slow to import
    from ..experiments.task import Task  # noqa: PLC0415
    from ..training.config_io import to_dict  # noqa: PLC0415
    from ..training.run_folder import MAY_DIFFER, RunFolder  # noqa: PLC0415
    from .many_runs import carry_out_all  # noqa: PLC0415
    from .train import parse  # noqa: PLC0415

    tasks: dict[tuple[str, int], Task] = {}
    for seed in config.seeds:
        for method in config.methods:
            folder = str(folder_of(config.output, method, seed))
            one, _ = parse([*rest, *flags[method], "--seed", str(seed), "--output", folder])
            settings = {name: value for name, value in to_dict(one).items() if name not in MAY_DIFFER}
            if one.model.init is not None:
                settings["model"] |= {"init": content_hash(one.model.init)}
            RunFolder(one.output).check_resumable(one)  # a folder of other settings is refused before anything runs
            tasks[method, seed] = Task(f"{method} seed {seed}", hash_of(settings), code_version(), one,
                                       processes=config.engine.processes)  # fmt: skip
    console = make_console(stderr=config.json)
    device = next(iter(tasks.values())).config.device
    driver = carry_out_all(list(tasks.values()), config.engine, config.output / "runs.sqlite", config.output, device,
                           console, command="compare", retry=True, quiet=config.quiet or config.json)  # fmt: skip
    table: dict[str, list[dict[str, Any]]] = {method: [] for method in config.methods}
    folders = []
    for (method, _), task in tasks.items():
        outcome = driver.outcomes.get(task.name)
        if outcome is not None and outcome.results is not None:
            table[method].append(outcome.results)
            folders.append(task.config.output)
    write_json(config.output / "compare.json", table)
    if config.json:
        print(json.dumps(table))
    elif folders:
        show_results(console, {name: results for name, results in table.items() if results})
    if folders:
        from ..report.run_record import read_run  # noqa: PLC0415 - matplotlib is slow to import
        from .report import report_or_say  # noqa: PLC0415

        path = config.output / "report.html" if config.report else None
        report_or_say(lambda: list(map(read_run, folders)), path, lambda text: console.print(text, soft_wrap=True))
    if len(folders) < len(tasks):
        left = f" and {driver.tally.left} were left out" if driver.tally.left else ""
        raise ValueError(f"{len(driver.tally.failures)} of {len(tasks)} runs failed{left}; see above.")


def folder_of(output: Path, method: str, seed: int) -> Path:
    return output / f"{method.replace('/', '-').replace(':', '-')}-seed{seed}"


def flags_of(method: str) -> list[str]:
    """`balanced-softmax+car/classwise` as flags of `spectail train`."""
    name, _, car_preset = method.partition("/")
    base, plus, car = name.partition("+")
    entry = find_method(base)
    if plus and car != "car":
        raise ValueError(f"{method!r}: expected NAME, NAME+car, NAME/PRESET or NAME+car/PRESET.")
    if car_preset and not (entry.car or plus):
        raise ValueError(f"{method!r}: {base} has no CAR whose preset could be set; write {base}+car/{car_preset}.")
    if car_preset and car_preset not in PRESETS:
        raise ValueError(f"{method!r}: presets of CAR are {', '.join(PRESETS)}.")
    flags = ["--method", base] + ["--car"] * bool(plus)
    return flags + (["--car.preset", car_preset] if car_preset else [])
