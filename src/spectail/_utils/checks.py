"""Values of options, refused in words."""

from __future__ import annotations

import functools
import math
import typing
from numbers import Real
from typing import Annotated, Any, NamedTuple

from .names import shown


class Limits(NamedTuple):
    """What a number must lie between. As a mark in the type of a field, :func:`check_limits` reads it."""

    low: float
    high: float = math.inf
    open_low: bool = False
    """Whether the number must be more than ``low``."""
    open_high: bool = False
    """Whether it must be less than ``high``."""

    def check(self, name: str, value: float) -> None:
        """Refuse anything but a finite number between the limits."""
        check_number(**{name: value})
        low, high, open_low, open_high = self
        inside = (value > low if open_low else value >= low) and (value < high if open_high else value <= high)
        if inside and math.isfinite(value):
            return
        if open_high:
            where = f"lie in [{low:g}, {high:g})"
        elif math.isfinite(high):
            low, high = (int(edge) if edge == int(edge) else edge for edge in (low, high))
            where = f"be more than {low} and at most {high}" if open_low else f"lie between {low} and {high}"
        else:
            finite = "" if math.isfinite(value) else " and finite"
            where = f"be {'more than' if open_low else 'at least'} {low:g}{finite}"
        raise ValueError(f"{name} must {where}; got {value}.")


Proportion = Annotated[float, Limits(0, 1)]
BelowOne = Annotated[float, Limits(0, 1, open_high=True)]
NotNegative = Annotated[float, Limits(0)]
Positive = Annotated[float, Limits(0, open_low=True)]
Natural = Annotated[int, Limits(0)]
AtLeastOne = Annotated[int, Limits(1)]
Seed = Annotated[int, Limits(0, 2**32 - 1)]
"""What every library takes."""


def check_limits(settings: Any, prefix: str = "") -> None:
    """Refuse a field of a dataclass that is outside the limits in its type; None, for a default, is always right."""
    for name, mark in _limits_of(type(settings)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(settings, name, None)
        if value is not None and not isinstance(value, str):
            mark.check(f"--{prefix}{name.replace('_', '-')}", value)


@functools.cache
def _limits_of(kind: type) -> list[tuple[str, Limits]]:
    """The limits of the fields of a class. Types that are written as text take long to read."""
    return [
        (name, mark)
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
        for part in (hint, *typing.get_args(hint))  # of `Positive | None` the first of two
        for mark in getattr(part, "__metadata__", ())
        if isinstance(mark, Limits)
    ]


def check_number(**options: object) -> None:
    """A number where a number is expected."""
    for name, value in options.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number; got {shown(value)}.")


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """One of a few values."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {shown(value)}.")
