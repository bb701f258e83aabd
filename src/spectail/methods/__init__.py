"""Methods: one file each, saying only how it differs from plain training."""

from .base import About, Method, Options, Outcome, Stage, Step, Stream
from .deferred import Deferrable, LossOptions
from .registry import METHODS, find_method
from .two_stage import TwoStage, TwoStageOptions

__all__ = [
    "METHODS", "About", "Deferrable", "LossOptions", "Method", "Options", "Outcome", "Stage", "Step",
    "Stream", "TwoStage", "TwoStageOptions", "find_method",
]  # fmt: skip
