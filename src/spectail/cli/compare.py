"""`spectail compare`: several methods and seeds on one data set. Finished runs are kept, unfinished ones go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from .._utils.files import write_json
from ..car import PRESETS
from ..methods.registry import find_method
from .console import make_console, show_results


@dataclass(frozen=True)
class Compare:
    """Train several methods with several seeds and show one table. All other flags are those of `spectail train`.

    A method is written NAME, NAME+car (CAR on it), NAME/classwise or NAME+car/reference (a preset of CAR).
    """

    methods: tuple[str, ...] = ("ce", "balanced-softmax", "car", "car/classwise")
    seeds: tuple[int, ...] = (0,)
    jobs: int = 1
    """Runs at the same time."""
    threads: int = 0
    """CPU threads of each run; 0 leaves it to torch."""
    output: Path = Path("runs/compare")
    """Folder of all runs and of compare.json."""
    quiet: bool = False
    """Print the table only."""
    report: bool = True
    """Write report.html, all runs side by side."""
    json: Annotated[bool, tyro.conf.arg(help="Print compare.json instead of the table.")] = False


def run(arguments: list[str]) -> None:
    config, rest = tyro.cli(Compare, prog="spectail compare", args=arguments, return_unknown_args=True)
    for method in config.methods:
        flags_of(method)  # a wrong name is said before anything runs
    console = make_console(stderr=config.json)
    jobs = [(method, seed) for seed in config.seeds for method in config.methods]

    def one(job: tuple[str, int]) -> tuple[str, dict[str, Any] | None]:
        method, seed = job
        folder = folder_of(config.output, method, seed)
        command = [sys.executable, "-m", "spectail", "train", *rest, *flags_of(method), "--seed", str(seed),
                   "--output", str(folder), "--resume", "--quiet", "--no-report"]  # fmt: skip
        environment = dict(os.environ)
        if config.threads:
            environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(config.threads))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            console.print(f"{method} seed {seed} failed: {(done.stderr or done.stdout).strip()[-600:]}")
            return method, None
        results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        if not config.quiet:
            console.print(f"{method} seed {seed}: overall {results['overall']:.1f}, {results['seconds']:.0f} s")
        return method, results

    with ThreadPoolExecutor(max(config.jobs, 1)) as pool:
        found = list(pool.map(one, jobs))
    table: dict[str, list[dict[str, Any]]] = {
        method: [results for name, results in found if name == method and results is not None]
        for method in config.methods
    }
    write_json(config.output / "compare.json", table)
    if config.json:
        print(json.dumps(table))
    elif any(table.values()):
        show_results(console, {name: results for name, results in table.items() if results})
    folders = [
        folder_of(config.output, *job) for job, (_, results) in zip(jobs, found, strict=True) if results is not None
    ]
    if config.report and folders:
        from ..report.run_record import read_run  # noqa: PLC0415 - matplotlib is slow to import
        from .report import report_or_say  # noqa: PLC0415

        path = config.output / "report.html"
        report_or_say(lambda: list(map(read_run, folders)), path, lambda text: console.print(text, soft_wrap=True))
    if any(results is None for _, results in found):
        raise ValueError(f"{sum(results is None for _, results in found)} of {len(found)} runs failed; see above.")


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
