"""The diagnosis of any classifier's predictions: what it confuses, with which certainty. Needs no training code."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import Analysis, analyse, summary
    from .comparison import Comparison, compare
    from .prediction_files import read_predictions
    from .predictions import Predictions, make_predictions

__all__ = [
    "Analysis", "Comparison", "Predictions", "analyse", "compare", "make_predictions", "read_predictions",
    "summary",
]  # fmt: skip

_MODULES = {
    "analysis": ["Analysis", "analyse", "summary"],
    "comparison": ["Comparison", "compare"],
    "prediction_files": ["read_predictions"],
    "predictions": ["Predictions", "make_predictions"],
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: a text table does not need torch."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
