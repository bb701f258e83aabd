"""Methods: one file each, saying only how it differs from plain training."""

from .base import Method, Options, Outcome, Stage, Step
from .registry import METHODS, find_method

__all__ = ["METHODS", "Method", "Options", "Outcome", "Stage", "Step", "find_method"]
