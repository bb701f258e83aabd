"""What the loop tells the outside while it runs. The engine prints nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Reporter:
    """Hears of everything and does nothing; the command line has one that shows it."""

    def start(self, text: str) -> None:
        """A line worth knowing: data, model, what was loaded, where a run goes on."""

    def track(self, items: Iterable[Any], description: str, total: int) -> Iterable[Any]:
        return items

    def begin_epoch(self, stage: str, epoch: int, epochs: int, steps: int, done: int) -> None: ...

    def step(self, done: int, figures: Callable[[], dict[str, float]]) -> None:
        """After each optimiser step. ``figures`` costs a wait for the device, so it is called only when shown."""

    def end_epoch(self, entry: dict[str, Any]) -> None: ...

    def finish(self, results: dict[str, Any]) -> None: ...


class Part(Reporter):
    """For a part of a whole that says for itself what it does: how far long work has come, and no lines."""

    def __init__(self, whole: Reporter, *, epochs: bool = False) -> None:
        self.track = whole.track  # type: ignore[method-assign]
        if epochs:
            self.begin_epoch, self.step, self.end_epoch = whole.begin_epoch, whole.step, whole.end_epoch  # type: ignore[method-assign]
