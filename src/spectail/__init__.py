"""spectail: classifiers that do not fail on rare classes."""

from . import functional, spectral
from .car import CAR, CARLoss
from .counts import ClassCounts
from .targets import MixedTarget

__version__ = "0.1.0"

__all__ = ["CAR", "CARLoss", "ClassCounts", "MixedTarget", "functional", "spectral"]
