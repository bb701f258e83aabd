"""Many runs from the command line: a bar for the whole plan, a line for each run that ends, failures at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .._utils.owner import Owner
from ..experiments.driver import Driver, make_engine
from ..experiments.engines import EngineOptions, Stopped
from ..experiments.index import Index
from ..experiments.task import Task
from ..training.hardware import check_device
from .console import make_console


def carry_out_all(
    tasks: Sequence[Task], options: EngineOptions, store: Path, folder: Path, device: str, console: Console, *,
    command: str, retry: bool = False, quiet: bool = False,
) -> Driver:  # fmt: skip
    """Train what is missing of a plan; the driver then knows what became of it. A signal ends the program."""
    with ExitStack() as stack:
        bar = None
        if console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar = stack.enter_context(Progress(*columns, console=console, transient=True, speed_estimate_period=1e9))
            whole = bar.add_task("runs", total=len(tasks))

        def say(text: str) -> None:
            if not quiet:
                console.print(text, soft_wrap=True)

        def settled(trained: bool) -> None:
            if bar is not None and trained:
                bar.advance(whole)
            elif bar is not None:  # what took no time says nothing about the time left
                bar.update(whole, total=(bar.tasks[0].total or 1) - 1)

        if options.engine == "local":
            check_device(device)
        engine = make_engine(options, device, say)  # before a store is made
        _own(folder, stack)
        index = stack.enter_context(Index(store, write=True))
        driver = Driver(index, engine, say, retry=retry, retries=options.retries, settled=settled)
        try:
            driver.work(tasks)
        except (Stopped, KeyboardInterrupt) as stop:
            number = stop.number if isinstance(stop, Stopped) else 2
            console.print(f"spectail {command}: stopped; run the same command to continue.", soft_wrap=True)
            raise SystemExit(128 + number) from None
    alike: dict[str, list[str]] = {}
    for title, reason in driver.tally.failures.values():
        alike.setdefault(reason, []).append(title)
    for reason, titles in alike.items():  # one error once, however many runs it has ended
        which = titles[0] if len(titles) == 1 else f"{len(titles)} runs, {', '.join(titles[:3])}"
        which += ", ..." if len(titles) > 3 else ""
        (make_console(stderr=True) if quiet else console).print(f"failed: {which}: {reason}", soft_wrap=True)
    return driver


def _own(folder: Path, stack: ExitStack) -> None:
    """Two drivers with stores of their own must not train the same runs in one folder."""
    owner = Owner(folder / "runs")
    folder.mkdir(parents=True, exist_ok=True)
    other = owner.take()
    if other is not None:
        raise ValueError(f"{folder} is used by another driver ({other}); wait until it has ended.")
    stack.callback(owner.release)
