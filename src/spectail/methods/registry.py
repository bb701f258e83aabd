"""Methods by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module

from .base import Method


@dataclass(frozen=True)
class Entry:
    """A method of the registry."""

    name: str
    summary: str
    place: str
    """``module:class`` under ``methods``."""
    car: bool = False
    """CAR is part of the method."""
    prior_shift: bool = False
    """CAR sees the logits shifted by the method's tau."""

    def load(self) -> type[Method]:
        module, name = self.place.split(":")
        found: type[Method] = getattr(import_module(f".{module}", __package__), name)
        return found


BALANCED = "balanced_softmax:BalancedSoftmax"
ENTRIES = [
    Entry("ce", "cross entropy", "base:Method"),
    Entry("balanced-softmax", "prior added to the training logits (Ren et al. 2020)", BALANCED),
    Entry("car", "cross entropy + CAR", "base:Method", car=True),
    Entry("car-balanced", "Balanced Softmax + CAR on prior-shifted logits", BALANCED, car=True, prior_shift=True),
]
METHODS = {entry.name: entry for entry in ENTRIES}


def find_method(name: str) -> Entry:
    if not isinstance(name, str) or name not in METHODS:
        close = difflib.get_close_matches(str(name), METHODS, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(f"unknown method {name!r}; {hint}Known: {', '.join(METHODS)}.")
    return METHODS[name]
