"""Two or more sets of predictions on the same test images: what differs by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import LOWEST
from .analysis import GROUPS, Analysis
from .predictions import Predictions
from .statistics import holm, mcnemar
from .text_table import TITLES, Table, number, to_html
from .verdict import verdict

DRAWS = 2_000
CELLS = 1 << 22  # outcomes drawn together, for the memory
LEVEL = 0.05
DIFFERENCES = ("overall", "balanced", *GROUPS, *LOWEST)


@dataclass(frozen=True)
class Difference:
    """Accuracy of the other minus that of the baseline, in points, with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Pairing:
    """One set of predictions against the baseline."""

    baseline: str
    name: str
    only_baseline: int
    """Test images that only the baseline gets right."""
    only_other: int
    """Test images that only the other gets right."""
    p_exact: float
    """Exact McNemar test over all test images, two-sided."""
    p_mid: float
    """Its mid-p version, which is less conservative."""
    differences: dict[str, Difference | None]
    """overall, balanced, head, medium, tail, bottom_10pct and bottom_20pct; None for groups without a tested class."""
    per_class: list[dict[str, Any]]
    """index, name, baseline, other, difference, only_baseline, only_other, p, p_holm, significant."""


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` finds."""

    analyses: tuple[Analysis, ...]
    pairs: list[Pairing]
    """Every analysis but the first against the first."""
    draws: int
    """Bootstrap draws."""

    def to_pandas(self) -> Any:
        """One row per set of predictions and figure: the difference from the first in points, with its interval."""
        import pandas as pd  # noqa: PLC0415 - not needed otherwise

        rows = [{"name": pair.name, "figure": key, **asdict(gap)}
                for pair in self.pairs for key, gap in pair.differences.items() if gap is not None]  # fmt: skip
        return pd.DataFrame(rows).set_index(["name", "figure"])

    def _repr_html_(self) -> str:
        """What a notebook shows: a verdict on each, and the differences."""
        lines = [f"<li>{escape(verdict(pair.name, pair.baseline, pair.differences))}</li>" for pair in self.pairs]
        rows = [(pair.name, *("" if (gap := pair.differences[key]) is None else
                              f"{number(gap.value, sign=True)} ({number(gap.low)} to {number(gap.high)})"
                              for key in DIFFERENCES)) for pair in self.pairs]  # fmt: skip
        header = ("", *(TITLES.get(key, key) for key in DIFFERENCES))
        title = f"difference from {self.analyses[0].predictions.name} in points, with 95 % intervals"
        return f"<ul>{''.join(lines)}</ul>{to_html(Table(title, header, rows))}"


def compare(analyses: Sequence[Analysis], *, draws: int = DRAWS, seed: int = 0) -> Comparison:
    """Compare predictions on the same test images; the first are the baseline.

    - **Test images**: exact and mid-p McNemar test on those that only one of the two gets right.
    - **Accuracies**: paired bootstrap. Test images are drawn with replacement within each class, the same for both,
      and the 2.5 and 97.5 % quantiles of the difference are its interval. From a class of n images n - 1 are drawn,
      which makes the spread of the class accuracies right for small n too. The lowest tenth and fifth of the classes
      (``bottom_10pct``, ``bottom_20pct``) are those observed for each of the two: drawn anew, they would be lower
      each time by chance alone. The interval says how much the *test images* could have decided, not how another
      training run would come out; classes with a single image add nothing to it.
    - **Classes**: exact McNemar test within each class, adjusted by Holm over the classes that have test images.

    Example:
        >>> from spectail.diagnosis import analyse, make_predictions
        >>> labels = [0] * 50 + [1] * 50
        >>> first = analyse(make_predictions(labels, [0] * 100, name="first"))
        >>> second = analyse(make_predictions(labels, [0] * 60 + [1] * 40, name="second"))
        >>> pair = compare([first, second]).pairs[0]
        >>> pair.only_other, pair.differences["overall"].value, [entry["significant"] for entry in pair.per_class]
        (40, 40.0, [False, True])
    """
    if len(analyses) < 2:
        raise ValueError(f"a comparison needs two sets of predictions or more; got {len(analyses)}.")
    base = analyses[0]
    for other in analyses[1:]:
        require_same(base.predictions, other.predictions)
    return Comparison(tuple(analyses), [_pair(base, other, draws, seed) for other in analyses[1:]], draws)


def comparison_summary(comparison: Comparison) -> dict[str, Any]:
    """All of a comparison, ready for JSON."""
    return {
        "baseline": comparison.analyses[0].predictions.name,
        "draws": comparison.draws,
        "pairs": [asdict(pair) for pair in comparison.pairs],
    }


def require_same(base: Predictions, other: Predictions) -> None:
    """Refuse predictions that are not of the same test images in the same order."""
    names = f"{base.name} and {other.name}"
    if len(base) != len(other):
        raise ValueError(
            f"{names} must be of the same test images; they have {len(base):,} and {len(other):,}. "
            "Analyse them one at a time."
        )
    if base.num_classes != other.num_classes:
        raise ValueError(
            f"{names} must have the same classes; they have {base.num_classes:,} and {other.num_classes:,}."
        )
    differ = np.flatnonzero(base.labels != other.labels)
    if len(differ):
        shuffled = np.array_equal(np.sort(base.labels), np.sort(other.labels))
        raise ValueError(
            f"{names} must have the same labels in the same order; row {differ[0]} is {base.labels[differ[0]]} in one "
            f"and {other.labels[differ[0]]} in the other"
            + (", though the numbers per class agree: write both without shuffling." if shuffled else ".")
        )


def _pair(base: Analysis, other: Analysis, draws: int, seed: int) -> Pairing:
    labels, size = base.predictions.labels, base.predictions.num_classes
    first, second = base.predictions.predicted == labels, other.predictions.predicted == labels
    # per class: both right, only the first, only the second, neither
    outcomes = np.stack(
        [
            np.bincount(labels, weights=cell, minlength=size).astype(np.int64)
            for cell in (first & second, first & ~second, ~first & second, ~first & ~second)
        ],
        axis=1,
    )
    one, two = int(outcomes[:, 1].sum()), int(outcomes[:, 2].sum())
    exact, mid = mcnemar(one, two)
    return Pairing(
        base.predictions.name, other.predictions.name, one, two, exact, mid,
        _differences(outcomes, members_of(base), draws, seed), _per_class(base, outcomes),
    )  # fmt: skip


def members_of(analysis: Analysis) -> dict[str, list[int]]:
    """Tested classes of each group."""
    members: dict[str, list[int]] = {group: [] for group in GROUPS}
    for entry in analysis.per_class:
        if entry["group"] is not None and entry["test_count"]:
            members[entry["group"]].append(entry["index"])
    return members


def _differences(
    outcomes: NDArray[np.int64], members: dict[str, list[int]], draws: int, seed: int
) -> dict[str, Difference | None]:
    seen = np.flatnonzero(outcomes.sum(1))
    position = {int(label): at for at, label in enumerate(seen)}
    groups = {group: [position[label] for label in labels] for group, labels in members.items()}
    tested = outcomes[seen]
    total = tested.sum(1)
    shares = tested / total[:, None]
    orders = [np.argsort(shares[:, 0] + shares[:, own], kind="stable") for own in (1, 2)]
    value = _gains(shares[None], total, groups, orders)
    generator, drawn = np.random.default_rng(seed), np.maximum(total - 1, 1)
    step = max(CELLS // tested.size, 1)
    parts = []
    for start in range(0, draws, step):
        number = min(step, draws - start)
        again = generator.multinomial(drawn, shares, size=(number, len(total))) / drawn[:, None]
        parts.append(_gains(again, total, groups, orders))
    differences: dict[str, Difference | None] = dict.fromkeys(DIFFERENCES)
    for key, observed in value.items():
        differences[key] = drawn_difference(observed[0], np.concatenate([part[key] for part in parts]))
    return differences


def _gains(
    shares: NDArray[np.float64], total: NDArray[Any], groups: dict[str, list[int]], orders: list[NDArray[np.int64]]
) -> dict[str, NDArray[np.float64]]:
    """Differences in points from (draws, classes, 4) shares of outcomes."""
    first, second = shares[..., 0] + shares[..., 1], shares[..., 0] + shares[..., 2]
    bottom = {
        name: second[:, orders[1][:amount]].mean(1) - first[:, orders[0][:amount]].mean(1)
        for name, amount in lowest_of(len(total)).items()
    }
    return gains_in_points(shares[..., 2] - shares[..., 1], bottom, total, groups)


def lowest_of(classes: int) -> dict[str, int]:
    """How many of so many classes the means of the lowest ones are over, by the names of these means."""
    return {name: math.ceil(classes / parts) for name, parts in LOWEST.items()}


def gains_in_points(
    gain: NDArray[np.float64], bottom: dict[str, NDArray[np.float64]], total: NDArray[Any], groups: dict[str, list[int]]
) -> dict[str, NDArray[np.float64]]:
    """Differences by what they are of, from the (draws, classes) gains in accuracy and those of the lowest classes."""
    gains = {
        "overall": gain @ (total / total.sum()),
        "balanced": gain.mean(1),
        **{group: gain[:, labels].mean(1) for group, labels in groups.items() if labels},
        **bottom,
    }
    return {key: 100 * values for key, values in gains.items()}


def drawn_difference(value: float, draws: NDArray[np.float64]) -> Difference:
    """A difference with the interval that its bootstrap draws give."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Difference(float(value), float(low), float(high))


def _per_class(base: Analysis, outcomes: NDArray[np.int64]) -> list[dict[str, Any]]:
    total = outcomes.sum(1)
    seen = np.flatnonzero(total)
    p_values = np.array([mcnemar(int(outcomes[label, 1]), int(outcomes[label, 2]))[0] for label in seen])
    adjusted = dict(zip(seen.tolist(), zip(p_values.tolist(), holm(p_values).tolist(), strict=True), strict=True))
    entries = []
    for label, (both, one, two, _) in enumerate(outcomes.tolist()):
        p, p_holm = adjusted.get(label, (None, None))
        images = int(total[label])
        entries.append(
            {
                "index": label,
                "name": base.predictions.class_names[label],
                "baseline": 100 * (both + one) / images if images else None,
                "other": 100 * (both + two) / images if images else None,
                "difference": 100 * (two - one) / images if images else None,
                "only_baseline": one,
                "only_other": two,
                "p": p,
                "p_holm": p_holm,
                "significant": p_holm is not None and p_holm < LEVEL,
            }
        )
    return entries
