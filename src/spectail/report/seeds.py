"""Several seeds of one method: which runs belong together, mean and spread, and what differs beyond chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosis.analysis import Analysis
from ..diagnosis.comparison import (
    DIFFERENCES,
    DRAWS,
    Difference,
    drawn_difference,
    gains_in_points,
    lowest_of,
    members_of,
    require_same,
)
from ..diagnosis.statistics import student
from ..diagnosis.tables import signed
from ..diagnosis.text_table import TITLES, Table, number

if TYPE_CHECKING:
    from .run_record import RunRecord

FIGURES = {"overall": "all", "head": "head", "medium": "medium", "tail": "tail", "worst_test": "worst class",
           "worst_ratio": "WR", "ece": "ECE"}  # fmt: skip
DIGITS = {"worst_ratio": 3}
ENOUGH = 3  # seeds that say something about others


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    name: str
    places: tuple[int, ...]
    """Of its runs among all."""
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    mean: float
    std: float | None
    """Standard deviation; None for one seed."""
    number: int
    """Of seeds in which the figure is known."""


@dataclass(frozen=True)
class SeedPairing:
    """A method against the first, seed by seed."""

    baseline: str
    name: str
    seeds: tuple[int, ...]
    """That both were run with."""
    differences: dict[str, Difference | None]
    """Mean differences; the intervals are over test images, and over seeds where there are three or more."""
    over_seeds: dict[str, Difference | None]
    """The same with Student's interval over the differences of the seeds; None for fewer than three."""
    per_class: list[dict[str, Any]]
    """index, name, and the means baseline, other and difference."""

    @property
    def judged(self) -> bool:
        """Whether there are enough seeds to say how another would come out."""
        return len(self.seeds) >= ENOUGH

    def clear(self, key: str) -> bool:
        """Whether every interval leaves out 0."""
        known = [entry for entry in (self.differences[key], self.over_seeds[key]) if entry is not None]
        return bool(known) and all(entry.clear for entry in known)


@dataclass(frozen=True)
class SeedStudy:
    """What :func:`study` finds."""

    groups: list[Group]
    figures: list[dict[str, Spread | None]]
    """Per group: overall, head, medium, tail, worst_test, worst_ratio and ece."""
    shown: list[int]
    """Per group the place of the run whose overall accuracy is the median (of two, the lower)."""
    pairs: list[SeedPairing]
    """Every group that shares a seed with the first, against the first."""
    unpaired: list[str]
    """Groups that share none."""
    draws: int


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs that differ in nothing but the seed, together; a seed that comes twice begins another group."""
    by_seed: dict[tuple[Any, ...], dict[int, int]] = {}
    settings: dict[tuple[Any, ...], dict[str, Any]] = {}
    for index, run in enumerate(runs):
        rest = run.settings
        same = tuple(sorted((name, repr(value)) for name, value in rest.items()))
        repeat = 0
        while run.config.seed in by_seed.setdefault((same, repeat), {}):
            repeat += 1
        by_seed[same, repeat][run.config.seed] = index
        settings[same, repeat] = rest
    firsts = [runs[next(iter(indices.values()))] for indices in by_seed.values()]
    names = _names(firsts, [settings[key] for key in by_seed])
    return [
        Group(name, tuple(indices[seed] for seed in sorted(indices)), tuple(sorted(indices)))
        for name, indices in zip(names, by_seed.values(), strict=True)
    ]


def what_differs(settings: list[dict[str, Any]]) -> list[str]:
    """For each of several runs or curves, the settings in which they differ."""
    names = sorted({name for entry in settings for name in entry})
    differ = [name for name in names if len({repr(entry.get(name)) for entry in settings}) > 1]
    return [", ".join(f"{name.rpartition('.')[2]} {entry.get(name)}" for name in differ) for entry in settings]


def _names(firsts: list[RunRecord], settings: list[dict[str, Any]]) -> list[str]:
    """Methods; where two are the same, with the settings in which they differ, or else the folder."""
    names = [run.label for run in firsts]
    for name in set(names):
        same = [index for index, other in enumerate(names) if other == name]
        if len(same) > 1:
            for index, differing in zip(same, what_differs([settings[index] for index in same]), strict=True):
                names[index] = f"{name} ({differing or firsts[index].folder.name})"
    return names if len(set(names)) == len(names) else [f"{names[at]} {at + 1}" for at in range(len(names))]


def study(
    analyses: Sequence[Analysis], runs: Sequence[RunRecord], groups: Sequence[Group], *, draws: int = DRAWS
) -> SeedStudy:
    """Means and spreads of groups of runs, and each group compared with the first.

    Runs are paired by seed. The interval of a mean difference comes from a bootstrap of two levels: test images are
    drawn within each class, the same for all runs, and seeds are drawn with replacement; as from n images n - 1, from
    n seeds n - 1 are drawn, which makes the spread right for few. Of one or two seeds nothing can be said about
    others: then only the images are drawn. From three seeds on there is also Student's interval over the differences
    of the seeds. There is no test over the images of all seeds together: they are the same images.

    There is one analysis per run, all of the same test images; ``draws`` are those of the bootstrap.
    """
    for other in analyses[1:]:
        require_same(analyses[0].predictions, other.predictions)
    base, pairs, unpaired = groups[0], [], []
    for group in groups[1:]:
        if set(group.seeds) & set(base.seeds):
            pairs.append(_pair(analyses, base, group, draws))
        else:
            unpaired.append(group.name)
    return SeedStudy(
        list(groups), [_figures(analyses, runs, group) for group in groups],
        [_median(analyses, group) for group in groups], pairs, unpaired, draws,
    )  # fmt: skip


def _figures(analyses: Sequence[Analysis], runs: Sequence[RunRecord], group: Group) -> dict[str, Spread | None]:
    spreads: dict[str, Spread | None] = {}
    for key in FIGURES:
        values = [(runs[index].results | analyses[index].metrics).get(key) for index in group.places]
        known = [float(value) for value in values if value is not None and math.isfinite(value)]
        std = statistics.stdev(known) if len(known) > 1 else None
        spreads[key] = Spread(statistics.fmean(known), std, len(known)) if known else None
    return spreads


def _median(analyses: Sequence[Analysis], group: Group) -> int:
    order = sorted(group.places, key=lambda index: (analyses[index].metrics["overall"], index))
    return order[(len(order) - 1) // 2]


def _pair(analyses: Sequence[Analysis], base: Group, other: Group, draws: int) -> SeedPairing:
    common = tuple(value for value in base.seeds if value in other.seeds)
    sides = [[analyses[group.places[group.seeds.index(value)]] for value in common] for group in (base, other)]
    labels = sides[0][0].predictions.labels
    order = np.argsort(labels, kind="stable")
    tested, starts, total = np.unique(labels[order], return_index=True, return_counts=True)
    right = np.array([[run.predictions.predicted == labels for run in runs] for runs in sides])[..., order]
    shares = np.add.reduceat(right, starts, axis=2, dtype=np.int64) / total
    position = {int(label): at for at, label in enumerate(tested)}
    members = {group: [position[label] for label in own] for group, own in members_of(sides[0][0]).items()}
    orders = np.argsort(shares, axis=2, kind="stable")
    value = _gains(shares, total, members, orders)
    generator = np.random.default_rng(0)
    drawn = np.maximum(total - 1, 1)
    first, size, ends = starts.repeat(drawn), total.repeat(drawn), np.concatenate([[0], np.cumsum(drawn)[:-1]])
    parts: dict[str, list[NDArray[np.float64]]] = {key: [] for key in value}
    for _ in range(draws):
        rows = first + (generator.random(len(first)) * size).astype(np.int64)
        again = np.add.reduceat(right[..., rows], ends, axis=2, dtype=np.int64) / drawn
        for key, gains in _gains(again, total, members, orders).items():
            parts[key].append(gains)
    judged = len(common) >= ENOUGH
    picked = generator.integers(len(common), size=(draws, len(common) - 1)) if judged else None
    differences: dict[str, Difference | None] = dict.fromkeys(DIFFERENCES)
    over_seeds: dict[str, Difference | None] = dict.fromkeys(DIFFERENCES)
    for key, gains in value.items():
        drawn_gains = np.array(parts[key])
        means = (drawn_gains if picked is None else np.take_along_axis(drawn_gains, picked, 1)).mean(1)
        mean = float(gains.mean())
        differences[key] = drawn_difference(mean, means)
        if judged:
            half = student(len(common) - 1) * float(gains.std(ddof=1)) / math.sqrt(len(common))
            over_seeds[key] = Difference(mean, mean - half, mean + half)
    return SeedPairing(base.name, other.name, common, differences, over_seeds, _per_class(sides))


def _gains(
    shares: NDArray[np.float64], total: NDArray[Any], members: dict[str, list[int]], orders: NDArray[Any]
) -> dict[str, NDArray[np.float64]]:
    """Differences in points for each seed, from accuracies (two methods, seeds, classes)."""
    ordered = np.take_along_axis(shares, orders, 2)
    means = {name: ordered[..., :amount].mean(2) for name, amount in lowest_of(len(total)).items()}
    bottom = {name: second - first for name, (first, second) in means.items()}
    return gains_in_points(shares[1] - shares[0], bottom, total, members)


def _per_class(sides: list[list[Analysis]]) -> list[dict[str, Any]]:
    entries = []
    for at, entry in enumerate(sides[0][0].per_class):
        first, second = ([run.per_class[at]["accuracy"] for run in runs] for runs in sides)
        means = (None, None) if entry["accuracy"] is None else (statistics.fmean(first), statistics.fmean(second))
        gap = None if means[0] is None or means[1] is None else means[1] - means[0]
        entries.append({"index": at, "name": entry["name"], "baseline": means[0], "other": means[1], "difference": gap})
    return entries


def spread_text(spread: Spread | None, digits: int = 1) -> str:
    """``63.1 \u00b1 0.4 (3)``: mean, standard deviation over seeds, and their number."""
    if spread is None:
        return "n/a"
    if spread.std is None:
        return f"{number(spread.mean, digits)} (one seed)"
    return f"{number(spread.mean, digits)} \u00b1 {number(spread.std, digits)} ({spread.number})"


def interval_of(pair: SeedPairing) -> str:
    """What the interval of a difference is over."""
    seeds = f"{len(pair.seeds)} seeds" if len(pair.seeds) > 1 else "one seed"
    return f"{seeds}, over test images {'and seeds' if pair.judged else 'only'}"


def mean_table(study: SeedStudy) -> Table:
    """One row per method."""
    rows = [
        (group.name, *(spread_text(figures[key], DIGITS.get(key, 1)) for key in FIGURES))
        for group, figures in zip(study.groups, study.figures, strict=True)
    ]
    title = "Accuracy in percent: mean and standard deviation over seeds, and their number"
    return Table(title, ("", *FIGURES.values()), rows)


def seed_tables(study: SeedStudy) -> list[Table]:
    """Means, and differences from the first method where there are any."""
    if not study.pairs:
        return [mean_table(study)]
    rows = []
    for pair in study.pairs:
        rows.append((pair.name, interval_of(pair), *(signed(pair.differences[key]) for key in DIFFERENCES)))
        if pair.judged:
            figures = (signed(pair.over_seeds[key]) for key in DIFFERENCES)
            rows.append((pair.name, f"{len(pair.seeds)} seeds, over seeds alone", *figures))
    header = ("", "95 % interval", *(TITLES.get(key, key) for key in DIFFERENCES))
    title = f"Mean difference from {study.groups[0].name} in points, runs paired by seed, with 95 % intervals"
    return [mean_table(study), Table(title, header, rows, text_columns=2)]
