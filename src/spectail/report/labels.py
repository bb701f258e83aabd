"""A run's method in words. Needs nothing but Python."""

from __future__ import annotations

from typing import Any

USUAL = {"car-balanced": "balanced"}
"""The preset of CAR that a method has by itself; all others have the paper's."""


def label(results: dict[str, Any]) -> str:
    """The method, with CAR where it was put on it, and the preset of CAR where it is not the usual one.

    Example:
        >>> label({"method": "focal", "car": {"preset": "classwise"}}), label({"method": "car", "car": {}})
        ('focal + car (classwise)', 'car')
    """
    name, car = str(results["method"]), results.get("car")
    if not car:
        return name
    usual = USUAL.get(name, "paper")
    preset = car.get("preset", usual)
    return (name if name.startswith("car") else f"{name} + car") + ("" if preset == usual else f" ({preset})")
