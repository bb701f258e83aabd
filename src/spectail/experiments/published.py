"""The numbers that the paper prints, as data."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Printed:
    """One printed number, and the cell of the table that holds it."""

    table: str
    setting: str
    dataset: str
    imbalance: float | None
    """None for a data set that is long-tailed by nature."""
    backbone: str
    method: str
    metric: str
    value: float

    @property
    def place(self) -> tuple[str, str, float | None, str, str]:
        return (self.setting, self.dataset, self.imbalance, self.backbone, self.method)


@cache
def printed() -> tuple[Printed, ...]:
    """All 847 of them, in the order of the paper.

    Example:
        >>> len(printed()), printed()[3].method, printed()[3].metric, printed()[3].value
        (847, 'CE', 'overall', 46.51)
    """
    text = (files(__package__) / "published.csv").read_text(encoding="utf-8")
    return tuple(
        Printed(
            row["table"].removeprefix("tab:").replace("_", "-"),
            row["setting"],
            row["dataset"],
            None if row["imbalance_factor"] == "natural" else float(row["imbalance_factor"]),
            row["backbone"],
            row["method"],
            row["metric"],
            float(row["value"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


def value_of(place: tuple[str, str, float | None, str, str], metric: str) -> float | None:
    """What the paper prints for a cell, in whichever table; None if it is nowhere.

    Example:
        >>> value_of(("scratch", "cifar100-lt", 100.0, "vit_small", "CAR"), "overall")
        51.85
    """
    return _index().get((*place, metric))


@cache
def _index() -> dict[tuple[str, str, float | None, str, str, str], float]:
    return {(*entry.place, entry.metric): entry.value for entry in reversed(printed())}  # the first print counts
