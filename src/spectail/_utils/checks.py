"""Values of options, refused in words."""

from __future__ import annotations

import math
import typing
from numbers import Real
from typing import Annotated, Any, NamedTuple


class Limits(NamedTuple):
    """What a setting must lie between: a mark in the type of its field, which :func:`check_limits` reads."""

    low: float
    high: float = math.inf
    open_low: bool = False
    """Whether the setting must be more than ``low``."""


Proportion = Annotated[float, Limits(0, 1)]
NotNegative = Annotated[float, Limits(0)]
Positive = Annotated[float, Limits(0, open_low=True)]
AtLeastOne = Annotated[int, Limits(1)]


def check_limits(settings: Any) -> None:
    """Refuse a field of a dataclass that is outside the limits in its type; None, for a default, is always right."""
    for name, hint in typing.get_type_hints(type(settings), include_extras=True).items():
        for kind in (hint, *typing.get_args(hint)):  # of `Positive | None` the first of two
            for mark in getattr(kind, "__metadata__", ()):
                if isinstance(mark, Limits):
                    low, high, open_low = mark
                    within(name.replace("_", "-"), getattr(settings, name), low, high, open_low=open_low)


def check_number(**options: object) -> None:
    """A number where a number is expected."""
    for name, value in options.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number; got {value!r}.")


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """One of a few values."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def within(flag: str, value: float | None, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Refuse a value of a flag outside [low, high], or (low, high]. None, for a default, is always right."""
    if value is not None:
        check_range(f"--{flag}", value, low, high, open_low=open_low)


def check_range(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """A finite number in [low, high], or in (low, high]."""
    check_number(**{name: value})
    if not (low <= value <= high and not (open_low and value == low) and math.isfinite(value)):
        if math.isfinite(high) and open_low:
            raise ValueError(f"{name} must be more than {low:g} and at most {high:g}; got {value}.")
        if math.isfinite(high):
            raise ValueError(f"{name} must lie between {low:g} and {high:g}; got {value}.")
        finite = "" if math.isfinite(value) else " and finite"
        raise ValueError(f"{name} must be {'more than' if open_low else 'at least'} {low:g}{finite}; got {value}.")
