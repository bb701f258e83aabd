"""How a plan is carried out: by processes of this machine, or by the nodes of a Ray cluster."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from .._utils.names import nearest

if TYPE_CHECKING:
    from .task import Outcome, Task

Say = Callable[[str], None]
ENGINES = ("local", "ray")


class Stopped(Exception):
    """A signal asked for the end: every run has saved itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Engine(Protocol):
    """Carries tasks out, as many at once as fit, and yields what came of each."""

    def carry_out(self, waiting: deque[Task], begun: Callable[[Task], None]) -> Iterator[tuple[Task, Outcome]]:
        """Until none is left; tasks may be added meanwhile. Raises :class:`Stopped` after a signal."""
        ...


@dataclass(frozen=True)
class EngineOptions:
    """Where runs are carried out. Results differ by rounding at most, except that batch norm sees the images
    of one process only where a run has several."""

    engine: str = "local"
    """Where runs are trained: local, in processes of this machine; ray, on the nodes of a Ray cluster."""
    jobs: int | Literal["auto"] = 1
    """Number of local runs at the same time; auto is one per GPU, or one per core."""
    threads: int = 0
    """CPU threads of each training process; 0 divides the cores among them."""
    processes: int = 1
    """Training processes of each run (torchrun), each with a GPU of its own where there are GPUs."""
    retries: int = 2
    """How often a run whose process or node died is tried again."""
    address: str = "auto"
    """HOST:PORT of the Ray cluster; auto is the one that this machine belongs to."""
    cpus_per_run: float = 1.0
    """Cores that Ray reserves for a run."""
    gpus_per_run: float | None = None
    """GPUs that Ray reserves for a run; fractions let runs share one. By default one for each process, if the
    cluster has GPUs and --device allows it."""

    def check(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"unknown engine {self.engine!r}; {nearest(self.engine, ENGINES)}")
        least = {"jobs": 1, "threads": 0, "processes": 1, "retries": 0, "cpus_per_run": 0, "gpus_per_run": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value not in ("auto", None) and not low <= value < float("inf"):
                raise ValueError(f"--{name.replace('_', '-')} must be at least {low}; got {value}.")


class Listening:
    """While it is active, the signals that ask a program to stop are kept. A second one acts as usual."""

    def __enter__(self) -> Self:
        self.heard: int | None = None
        names = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not known everywhere
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        # what is ignored stays ignored: nohup does so with SIGHUP
        self._before = {number: signal.signal(number, self._hear) for number in numbers
                        if signal.getsignal(number) is not signal.SIG_IGN}  # fmt: skip
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.heard is not None:
            raise KeyboardInterrupt
        self.heard = number

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
