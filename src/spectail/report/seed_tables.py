"""Tables of several seeds: mean and spread of every method, and its difference from the first."""

from __future__ import annotations

from ..diagnosis.tables import TITLES, signed
from ..diagnosis.text_table import Table, number
from .seeds import DIFFERENCES, FIGURES, SeedPairing, SeedStudy, Spread

DIGITS = {"worst_ratio": 3}


def spread_text(found: Spread | None, digits: int = 1) -> str:
    """``63.1 \u00b1 0.4 (3)``: mean, standard deviation over seeds, and their number."""
    if found is None:
        return "n/a"
    if found.std is None:
        return f"{number(found.mean, digits)} (one seed)"
    return f"{number(found.mean, digits)} \u00b1 {number(found.std, digits)} ({found.number})"


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
    return [mean_table(study), Table(title, header, rows, words=2)]
