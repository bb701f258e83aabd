"""`spectail fit WHAT`: from a folder or an array to the best classifier for a goal, in one command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .._utils.owner import Owner
from ..data.config import DataConfig
from ..experiments.engines import EngineOptions, Stopped
from ..models.build import ModelConfig
from .arguments import read_flags
from .console import ConsoleReporter, make_console

SHRUNK = (
    "worst classes and lowest 10 % are estimates: the accuracy of a class with few images is moved towards that of "
    "classes of its size, so they can be higher than the plain counts."
)
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Data(DataConfig):
    """What to learn from, and how it is cut."""

    dataset: tyro.conf.Positional[str] = "glyphs-lt"
    """A folder with a folder of images per class, a list (.csv, .txt), a .parquet or .npz file, or a name from
    `spectail list datasets`."""


@dataclass(frozen=True)
class Network(ModelConfig):
    """Which network to take features from, or to train."""

    model: str = "auto"
    """Name of the network. auto takes the best pretrained one whose weights are on this machine or can be downloaded;
    if there is none, or with a name such as small-cnn, a network is trained from scratch."""


@dataclass(frozen=True)
class FitCommand:
    """Find the best classifier for a goal. Heads with many losses and settings are trained on the features of a
    pretrained network and judged on images that they have not seen; the best one is then trained on all images.

    Only the data must be given. The result is the folder of an ordinary run, for `spectail predict`, `export` and
    `report`, with fit.json and advice.csv.
    """

    data: tyro.conf.OmitArgPrefixes[Data] = field(default_factory=Data)
    goal: Literal["balanced", "overall", "tail", "worst", "lowest10"] = "balanced"
    """What to make as large as possible: the mean of the class accuracies, the share of right predictions, or the mean
    accuracy of the tail classes, of the worst classes or of the lowest 10 % of the classes."""
    keep: tuple[str, ...] = ()
    """Floors in percent for other figures, such as overall=80."""
    budget: str | None = None
    """Time limit for everything, such as 90s, 5m or 2h. By default there is none."""
    method: tuple[str, ...] = ()
    """Methods to choose from; cross entropy is always tried. By default all that `fit` knows."""
    model: tyro.conf.OmitArgPrefixes[Network] = field(default_factory=Network)
    finetune: bool = False
    """Train the whole network at the end, by the method that is best on its features, and take it unless the head
    alone is better."""
    epochs: int | None = None
    """Epochs for which whole networks and the final head are trained; a network from scratch goes on with all images
    for a third of them. By default until the held-out loss stops falling."""
    folds: int = 5
    """Number of parts into which the training images are split for the choice."""
    seed: int = 0
    """Seed of the folds, the weights and the order of the images."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, cuda:N or mps."""
    engine: tyro.conf.OmitArgPrefixes[EngineOptions] = field(default_factory=lambda: EngineOptions(jobs="auto"))
    output: Path | None = None
    """Folder of the result. By default runs/fit-, followed by the names of the data and of the goal."""
    quiet: bool = False
    """Print the answer only."""
    report: bool = True
    """Write report.html."""


def run(arguments: list[str]) -> None:
    options = read_flags(FitCommand, "spectail fit", arguments)
    # the flags are read, and help is shown, without the engine
    from ..experiments.driver import make_engine  # noqa: PLC0415
    from ..fit.goals import Goal  # noqa: PLC0415
    from ..fit.run import Fit, fit  # noqa: PLC0415
    from ..training.config import TrainConfig  # noqa: PLC0415
    from ..training.hardware import check_device  # noqa: PLC0415
    from ..training.run_folder import RunFolder  # noqa: PLC0415
    from ..training.signals import Interrupted  # noqa: PLC0415

    goal = Goal.parse(options.goal, options.keep)
    budget = seconds(options.budget) if options.budget is not None else None
    check(options)
    options.engine.check()
    check_device(options.device)
    output = options.output or unused(Path("runs") / f"fit-{word(options.data.dataset)}-{options.goal}")
    if not stopped_early(output):
        if (output / "config.yaml").exists():
            raise ValueError(f"{output} already holds a run; choose another --output, or move it away.")
        RunFolder(output).check_free()
    data = DataConfig(**vars(options.data))
    config = TrainConfig(
        data, ModelConfig(**vars(options.model)), seed=options.seed, device=options.device, output=output
    )
    console = make_console()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    with ExitStack() as stack:
        owner = Owner(output / "fit")
        output.mkdir(parents=True, exist_ok=True)
        other = owner.take()
        if other is not None:
            raise ValueError(f"{output} is used by another process ({other}); wait until it has ended.")
        stack.callback(owner.release)
        stack.callback(leave_no_empty, output)
        bar = stack.enter_context(candidate_bar(console, quiet=options.quiet))
        engine = make_engine(options.engine, options.device, say)
        # said again in advice for another goal, which has an output of its own
        command = f"spectail fit {shlex.join(arguments)}"
        command = re.sub(r" --(goal|output|method)([ =](?!-)('[^']*'|\S+))+", "", command)
        asked = Fit(config, goal, options.method or None, options.folds, budget, options.epochs, options.finetune,
                    command)  # fmt: skip
        try:
            fitting = fit(asked, ConsoleReporter(console, quiet=options.quiet), engine, bar.advance_to)
        except Stopped as stop:
            say("spectail fit: stopped; features that were computed are in the cache.")
            raise SystemExit(128 + stop.number) from None
        except Interrupted:
            say("spectail fit: stopped in its last training. The same command chooses again and goes on with it.")
            raise SystemExit(130) from None
    show(console, fitting.record, output)
    if options.report:
        from ..report.run_record import read_run  # noqa: PLC0415 - matplotlib is slow to import
        from .report import report_or_say  # noqa: PLC0415

        report_or_say(lambda: [read_run(output)], output / "report.html", say)


def leave_no_empty(folder: Path) -> None:
    """Remove the folder of a fit that came to nothing: one that holds the signs of its owner only."""
    with suppress(OSError):
        there = list(folder.iterdir())
        if all(path.name.startswith(".fit.") for path in there):
            for path in there:
                path.unlink()
            folder.rmdir()


class candidate_bar:
    """A bar for all candidates, on a terminal; elsewhere a line every tenth of the way."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.console, self.quiet, self.said = console, quiet, 0
        self.bar: Progress | None = None

    def __enter__(self) -> candidate_bar:
        return self

    def advance_to(self, done: int, total: int) -> None:
        if self.quiet:
            return
        if not self.console.is_terminal:
            if 10 * done // total > self.said or done == total:
                self.said = 10 * done // total
                self.console.print(f"candidates: {done} of {total} heads trained")
            return
        if self.bar is None:
            columns = (TextColumn("candidates"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console, transient=True, speed_estimate_period=1e9)
            self.task = self.bar.add_task("", total=total)
            self.bar.start()
        self.bar.update(self.task, completed=done, total=total)
        if done == total:
            self.__exit__()

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def show(console: Console, record: dict[str, Any], output: Path) -> None:
    from ..fit.answer import table_rows  # noqa: PLC0415

    table = Table("out of fold, percent", "balanced", "overall", "tail", "worst classes", "lowest 10 %")
    for row in table_rows(record):
        table.add_row(*row)
    console.print(table)
    console.print(SHRUNK, soft_wrap=True)
    for note in record["notes"]:
        console.print(f"note: {note}", soft_wrap=True)
    why = [f"Why this one: {record['chosen']['why']}"] if record["floors_kept"] else []  # else a note has said it
    for line in (
        *record["answer"],
        *why,
        *tested(output, record["unit"]),
        *record["alternatives"],
        f"results in {output}",
    ):
        console.print(line, soft_wrap=True)


def tested(output: Path, unit: str) -> Iterator[str]:
    """What the model does on the test images or rows, what it still mixes up, and what can be done about the data."""
    from ..diagnosis.advice import Advice  # noqa: PLC0415
    from ..diagnosis.analysis import analyse  # noqa: PLC0415
    from ..diagnosis.prediction_files import read_predictions  # noqa: PLC0415
    from ..report.advice import AdviceView  # noqa: PLC0415

    found = analyse(read_predictions(output))
    rare = "" if found.metrics["tail"] is None else f", {found.metrics['tail']:.1f} % in rare classes"
    yield f"On {len(found.predictions):,} test {unit} it is right for {found.metrics['overall']:.1f} %{rare}."
    names = found.predictions.class_names
    mixed = [
        f"'{names[one.true]}' for '{names[one.predicted]}' ({'once' if one.count == 1 else f'{one.count} times'})"
        for one in found.top_confusions[:3]
    ]
    if mixed:
        yield f"Most often it takes {', '.join(mixed)}."
    advice = Advice.load(output)
    if advice is not None:
        yield f"What you can do: {AdviceView('', advice, {}).summary} All of it is in {output / 'advice.csv'}."


def check(options: FitCommand) -> None:
    from ..fit.candidates import LOSSES  # noqa: PLC0415

    known = [loss[1] for loss in LOSSES]
    for name in options.method:
        if name not in known:
            raise ValueError(f"--method {name}: fit chooses from {', '.join(dict.fromkeys(known))}.")
    if options.folds < 2:
        raise ValueError(f"--folds must be 2 or more; got {options.folds}.")
    if options.epochs is not None and options.epochs < 1:
        raise ValueError(f"--epochs must be 1 or more; got {options.epochs}.")
    if options.seed < 0:
        raise ValueError(f"--seed must be 0 or more; got {options.seed}.")


def seconds(text: str) -> float:
    """``90s``, ``5m``, ``2h``, or a number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--budget must be a time such as 90s, 5m or 2h; got {text!r}.")
    return float(found[1]) * UNITS[found[2] or "s"]


def unused(path: Path) -> Path:
    """The path, or with a number behind it where a run is there already."""
    names = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 10_000)))
    return next(one for one in names if stopped_early(one) or not (one / "config.yaml").exists())


def stopped_early(folder: Path) -> bool:
    """Whether a fit was stopped there in its last training."""
    return (folder / ".fit.lock").exists() and (folder / "config.yaml").exists() and not (folder / "fit.json").exists()


def word(dataset: str) -> str:
    """A data set as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", Path(dataset.partition(":")[2] or dataset).stem).strip("-") or "data"
