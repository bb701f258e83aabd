"""spectail: classifiers that do not fail on rare classes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data, functional, spectral
    from .car import CAR
    from .car_loss import CARLoss
    from .car_reference import CARReference
    from .counts import ClassCounts
    from .targets import MixedTarget

__version__ = "0.1.0"

__all__ = ["CAR", "CARLoss", "CARReference", "ClassCounts", "MixedTarget", "data", "functional", "spectral"]

_HOMES = {"CAR": "car", "CARLoss": "car_loss", "CARReference": "car_reference"}
_HOMES |= {"ClassCounts": "counts", "MixedTarget": "targets"}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: `spectail --help` must not wait for torch."""
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
