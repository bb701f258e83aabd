"""A case is something done to spectail; it fails if the answer is no sentence, comes too late, or is wrong."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from spectail.cli.main import COMMANDS, OUR_FAULT, main

PATIENCE = 60
"""Seconds after which a command hangs."""


@dataclass
class Row:
    """A line of the table."""

    title: str
    target: str
    least: int = 0
    cases: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, fault: str | None) -> None:
        self.cases += 1
        if fault is not None:
            self.failures.append(f"{name}: {fault}")
            print(f"  FAILED {name}: {fault}"[:600], file=sys.stderr, flush=True)


class Hang(BaseException):
    """Nothing in the code under attack may catch it."""


@contextlib.contextmanager
def patience(seconds: float = PATIENCE) -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Answer:
    code: int
    out: str
    err: str
    seconds: float
    fault: str | None
    """What no command may do, whatever it was asked: raise, fail by its own fault, hang, or say nothing."""


def command(*words: object, folder: Path | None = None) -> Answer:
    """A command in this process, as `spectail WORDS`."""
    out, err, start, here = io.StringIO(), io.StringIO(), time.monotonic(), os.getcwd()
    fault = None
    code = 1
    try:
        if folder is not None:
            os.chdir(folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patience():
            code = main([str(word) for word in words])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Hang:
        fault = f"hangs for {PATIENCE} s"
    except BaseException as error:
        fault = f"raises {type(error).__name__}: {traceback.format_exc().splitlines()[-1]}"
    finally:
        os.chdir(here)
    said = err.getvalue()
    if code == OUR_FAULT:
        fault = f"is our fault: {said.splitlines()[0] if said else ''}"
        for path in re.findall(r"trace in (\S+) help", said):
            fault += " | " + " ".join(Path(path).read_text().splitlines()[-3:])
    elif code not in (0, 1, 2, 130):
        fault = fault or f"exit code {code}"
    elif code in (1, 2) and not said.strip():
        fault = fault or "fails without a word"
    elif "Traceback" in said:
        fault = fault or "shows a traceback"
    elif len(said) > 5_000:
        fault = fault or f"says {len(said):,} characters"
    return Answer(code, out.getvalue(), said, time.monotonic() - start, fault)


class Child:
    """A process that does some work. A fork, because importing torch anew each time is slow."""

    def __init__(self, work: Callable[[], Any], *, log: Path | None = None) -> None:
        self.code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setsid()
                torch.set_num_threads(1)  # other threads are not there any more, and waiting for them would be for ever
                if log is not None:
                    with log.open("ab") as file:
                        os.dup2(file.fileno(), 1)
                        os.dup2(file.fileno(), 2)
                    sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115 - also where a test captures
                code = work() or 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def ended(self, options: int = os.WNOHANG) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, options)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """Its code; None, and its end, if it takes too long."""
        end = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < end:
            time.sleep(0.005)
        if self.code is None:
            self.signal(signal.SIGKILL)
            self.ended(0)
            return None
        return self.code

    def signal(self, number: int) -> None:
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number) if number == signal.SIGKILL else os.kill(self.pid, number)


def import_commands() -> None:
    """Import what commands need here once, and not in every fork."""
    for module, _ in COMMANDS.values():
        import_module(f"spectail.cli.{module}")
    for module in ("experiments.task", "report.page", "fit.run", "data.sets.parquet", "data.sets.features"):
        import_module(f"spectail.{module}")


def tests(row: Row, *words: str, **environment: str) -> None:
    """Tests of the project that do the same, a case each."""
    called = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *words]
    root, variables = Path(__file__).parents[1], os.environ | {"OMP_NUM_THREADS": "1"} | environment
    found = subprocess.run(called, cwd=root, env=variables, capture_output=True, text=True, check=False)
    for name, result in re.findall(r"::(\S+) (PASSED|FAILED|ERROR)", found.stdout):
        row.add(name, None if result == "PASSED" else "fails")
    if " passed" not in found.stdout:
        row.add(words[0], found.stdout[-300:] + found.stderr[-300:])


def leftovers(folder: Path) -> list[str]:
    """Temporary files that are still there."""
    return [path.name for path in folder.rglob(".*") if re.search(r"\.[a-z0-9_]{8}$", path.name)]


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """A folder and a cache of its own."""
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        yield Path(name)
