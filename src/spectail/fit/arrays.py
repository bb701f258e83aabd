"""The choice for a goal where features lie in an array: cross-fitting, the decision, and a temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..training.config import TrainConfig
from ..training.heads import LADDER
from .candidates import Candidate, Training, shifted
from .crossfit import Table, cross_fit
from .figures import GOALS, score
from .goals import Goal, decide
from .temperature import best_temperature


@dataclass(frozen=True)
class Chosen:
    """What to train on all rows, and what is known of it."""

    candidate: Candidate
    steps: int
    converged: bool
    temperature: float
    scores: dict[str, dict[str, float]]
    """Out-of-fold figures in percent, of what was chosen and of plain cross entropy."""
    floor_met: bool
    note: str
    """Why it was chosen, in a sentence."""


def choose_for(
    goal: Goal,
    table: Table,
    ways: Sequence[Training],
    base: TrainConfig,
    *,
    folds: int = 5,
    ladder: tuple[int, ...] = LADDER,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> Chosen:
    """Cross-fit all trainings, of which the first is plain cross entropy, and choose one with a shift of its logits.

    The temperature counts what the goal counts: all rows alike for ``overall``, all classes alike otherwise.
    """
    crossed = cross_fit(table, ways, base, goal, folds=folds, seed=base.seed, ladder=ladder, done=done)
    candidates, right = crossed.candidates(goal)
    labels, counts = table.labels[crossed.judged], table.counts
    choice = decide(goal, right, labels, counts, [one.simplicity for one in candidates], seed=base.seed)
    chosen = candidates[choice.index]
    found = crossed.fitted[chosen.training.title]
    logits = shifted(found.logits[crossed.judged], chosen.shift, counts)
    plain = crossed.fitted[ways[0].title].logits[crossed.judged]
    scores = {
        title: {name: score(name, rows.argmax(1) == labels, labels, counts) for name in GOALS}
        for title, rows in (("chosen", logits), ("cross entropy", plain))
    }
    temperature = best_temperature(logits, labels, by_class=goal.name != "overall")
    return Chosen(chosen, found.steps, found.converged, temperature, scores, choice.floor_met, choice.note)
