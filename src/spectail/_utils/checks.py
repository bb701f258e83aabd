"""Values of options, refused in words."""

from __future__ import annotations

import math
from numbers import Real


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
    if value is None:
        return
    if not (low <= value <= high and not (open_low and value == low) and math.isfinite(value)):
        if math.isfinite(high) and open_low:
            raise ValueError(f"--{flag} must be more than {low:g} and at most {high:g}; got {value}.")
        if math.isfinite(high):
            raise ValueError(f"--{flag} must lie between {low:g} and {high:g}; got {value}.")
        finite = "" if math.isfinite(value) else " and finite"
        raise ValueError(f"--{flag} must be {'more than' if open_low else 'at least'} {low:g}{finite}; got {value}.")
