"""Out-of-fold logits of many trainings: a first look on two folds, all folds for those that did well."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..counts import ClassCounts
from ..data.folds import ALWAYS_TRAINED
from ..data.samples import Samples
from ..experiments.runs import code_version
from ..experiments.task import Outcome
from ..models.feature_transform import FeatureTransform
from ..training.config import TrainConfig
from ..training.heads import train_head
from ..training.length import LADDER, find_length, least_steps
from .candidates import SHIFTS, TINY, Candidate, Training, shifted
from .figures import leads, nearly_right
from .goals import Goal, score_all

SHORT = LADDER[:4]
"""Lengths that dozens of trainings try: their learning rate is high enough for it."""
SHORTER = (60, 125, 250, 500)
"""Lengths for tens of rows, of which heads soon learn too much."""
FIRST_LOOK = 2
"""Folds on which all trainings are tried."""
ATTEMPTS = 3
"""Processes that may die of a head before that is its fault."""
KEPT = 1 / 3
"""Share of the trainings that goes on after the first look."""


@dataclass(frozen=True)
class Table:
    """Features with labels and class names, as cross-fitting needs them."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts(np.bincount(self.labels, minlength=len(self.names)), self.names)


@dataclass(frozen=True)
class Images:
    """What is known of the images behind the rows of a table, in their order."""

    paths: list[str]
    contents: NDArray[np.uint64] | None
    """Digests; None where not all images were read."""

    @classmethod
    def of(cls, samples: Samples, contents: NDArray[np.uint64] | None) -> Images:
        return cls([samples.name_of(at) for at in range(len(samples))], contents)

    def __add__(self, other: Images) -> Images:
        known = self.contents is not None and other.contents is not None
        return Images(self.paths + other.paths, np.concatenate([self.contents, other.contents]) if known else None)


@dataclass(frozen=True)
class HeadTask:
    """Train a head on some folds and predict what was held out. It knows its data by value."""

    title: str
    training: Training
    config: TrainConfig
    table: Table
    folds: NDArray[np.int64]
    held: tuple[int, ...]
    """Folds to hold out, one after the other."""
    steps: int | None = None
    """Length of training; None finds it on the first fold."""
    ladder: tuple[int, ...] = SHORT
    threads: int = 0
    processes: int = 1
    attempt: int = 1
    words: str = ""
    code: str = field(default_factory=code_version)

    def on_cores(self, cores: int) -> HeadTask:
        return self  # heads have no loaders to share cores with

    def carry_out(self) -> Outcome:
        if self.threads:
            torch.set_num_threads(self.threads)
        table, steps = self.table, self.steps
        features = prepared(table.features, self.training.features)
        losses: dict[int, float] = {}
        converged, rows = True, {}
        for fold in self.held:
            out, known = self.folds == fold, self.folds != fold
            inputs, labels, unseen = features[known], table.labels[known], features[out]
            if steps is None:
                length = find_length(inputs, labels, table.names, self.config, (unseen, table.labels[out]),
                                     ladder=self.ladder, least=least_steps(self.config))  # fmt: skip
                head, steps, losses, converged = length.head, length.steps, length.losses, length.converged
            else:
                head = train_head(inputs, labels, table.names, self.config, steps)
            rows[fold] = head.logits(unseen).numpy()
        return Outcome("done", results={"steps": steps, "losses": losses, "converged": converged, "logits": rows})


class Carrier(Protocol):
    """An engine for many runs."""

    def carry_out(self, waiting: deque[Any], begun: Callable[[Any], None]) -> Iterator[tuple[Any, Outcome]]: ...


class Here:
    """Carries tasks out in this process."""

    def carry_out(self, waiting: deque[Any], begun: Callable[[Any], None]) -> Iterator[tuple[Any, Outcome]]:
        while waiting:
            task = waiting.popleft()
            begun(task)
            yield task, task.carry_out()


@dataclass
class Fitted:
    """What is known of a training."""

    training: Training
    logits: NDArray[np.float32]
    """(N, K) out of fold; rows of images that were not held out yet are NaN."""
    steps: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    converged: bool = True
    folds: tuple[int, ...] = ()


@dataclass
class CrossFit:
    """Out-of-fold predictions of every training."""

    labels: NDArray[np.int64]
    counts: ClassCounts
    folds: NDArray[np.int64]
    """The fold in which each image is held out; see :func:`make_folds`."""
    fitted: dict[str, Fitted] = field(default_factory=dict)
    """By title."""
    out_of_time: bool = False

    @property
    def used(self) -> tuple[int, ...]:
        """Folds that hold images out."""
        return tuple(sorted(set(self.folds.tolist()) - {ALWAYS_TRAINED}))

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Images that are held out in one of the folds."""
        return np.asarray(self.folds != ALWAYS_TRAINED)

    def whole(self) -> list[Fitted]:
        """Trainings that have predicted every fold."""
        return [one for one in self.fitted.values() if len(one.folds) == len(self.used)]

    def candidates(self, only: Sequence[int] | None = None) -> tuple[list[Candidate], NDArray[np.floating[Any]]]:
        """Every training with every shift, and by how much (M, N) each is right; ``only`` looks at some folds."""
        known = self.judged if only is None else np.isin(self.folds, list(only))
        labels, sizes = self.labels[known], self.counts.counts
        shifts = SHIFTS if (sizes != sizes[0]).any() else (0.0,)  # the same for all classes is none
        rows: list[NDArray[np.floating[Any]]] = []
        candidates: list[Candidate] = []
        for one in self.whole() if only is None else self.fitted.values():
            logits = one.logits[known]
            for shift in shifts:
                candidates.append(Candidate(one.training, shift))
                rows.append(leads(shifted(logits, shift, self.counts), labels))
        return candidates, np.array(rows)


def ladder_for(rows: int) -> tuple[int, ...]:
    return SHORT if rows >= TINY else SHORTER


def prepared(features: NDArray[np.float32], kind: str) -> torch.Tensor:
    """Features as a head sees them. The statistics need no label, so that held-out images may be among them."""
    given = torch.from_numpy(np.ascontiguousarray(features))
    with torch.no_grad():
        made: torch.Tensor = FeatureTransform(kind, given.shape[1]).fit_(given)(given)
    return made


def cross_fit(
    result: CrossFit,
    table: Table,
    trainings: Sequence[Training],
    base: TrainConfig,
    goal: Goal,
    *,
    engine: Carrier | None = None,
    deadline: float = float("inf"),
    done: Callable[[int, int], None] = lambda done, total: None,
    ladder: tuple[int, ...] | None = None,
) -> None:
    """Predict every image by heads that have not seen it, and put that into ``result``.

    All trainings are tried on two folds, which also finds how long each must be; the best third go on to the others.
    The first one of the list predicts all folds before anything else, whatever the time: after ``deadline`` (of
    `time.monotonic`) nothing new is begun, but something there is.

    Args:
        result: with the folds; what is known already stays.
        table: features of the same images.
        ladder: lengths to try; None for those that suit the number of rows.
    """
    ladder = ladder or ladder_for(len(result.labels))
    first, rest = result.used[:FIRST_LOOK], result.used[FIRST_LOOK:]
    empty = np.full((len(result.labels), len(result.counts)), np.nan, dtype=np.float32)
    tasks = [
        HeadTask(one.title, one, one.config(base), table, result.folds, first if place else result.used,
                 ladder=ladder)
        for place, one in enumerate(trainings)
    ]  # fmt: skip
    kept = max(1, round(KEPT * len(tasks)))
    total = len(tasks) * len(first) + min(kept + 1, len(tasks)) * len(rest)
    progress = 0

    def carry_out(waiting: deque[HeadTask]) -> None:
        nonlocal progress

        def begun(task: HeadTask) -> None:
            if time.monotonic() > deadline and waiting:
                result.out_of_time = True
                waiting.clear()

        for task, outcome in (engine or Here()).carry_out(waiting, begun):
            if outcome.status == "stopped":  # by a signal, which the engine raises when all have stopped
                continue
            if outcome.status == "died" and task.attempt < ATTEMPTS:  # its process or its machine
                waiting.appendleft(replace(task, attempt=task.attempt + 1))  # the first must not become the last
                continue
            if outcome.results is None:
                raise ValueError(f"{task.title} failed: {outcome.error}")
            one = result.fitted.setdefault(task.title, Fitted(task.training, empty.copy()))
            for fold, logits in outcome.results["logits"].items():
                one.logits[result.folds == fold] = logits
            one.folds += task.held
            one.steps = outcome.results["steps"]
            if outcome.results["losses"]:
                one.losses, one.converged = outcome.results["losses"], outcome.results["converged"]
            progress += len(task.held)
            done(progress, total)

    carry_out(deque(tasks))
    if rest and not result.out_of_time:
        going_on = _best(result, goal, first, kept)
        carry_out(deque(
            replace(task, held=rest, steps=result.fitted[task.title].steps)
            for task in tasks[1:] if task.title in going_on
        ))  # fmt: skip


def _best(result: CrossFit, goal: Goal, first: tuple[int, ...], kept: int) -> set[str]:
    """Titles of the trainings whose best shift did best on the first folds."""
    candidates, lead = result.candidates(first)
    known = np.isin(result.folds, list(first))
    labels = result.labels[known]
    scores = score_all(goal, nearly_right(lead, labels), labels, result.counts)
    best: dict[str, float] = {}
    for candidate, score in zip(candidates, scores, strict=True):
        title = candidate.training.title
        best[title] = max(best.get(title, -np.inf), float(score))
    return set(sorted(best, key=lambda title: -best[title])[:kept])
