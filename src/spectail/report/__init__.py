"""Pages, figures and tables of runs. What they show is found in :mod:`spectail.diagnosis`, whose names are here too."""

from typing import TYPE_CHECKING, Any

from .. import diagnosis

if TYPE_CHECKING:
    from ..diagnosis import (
        Analysis,
        Comparison,
        Predictions,
        analyse,
        compare,
        make_predictions,
        read_predictions,
        summary,
    )

__all__ = [
    "Analysis",
    "Comparison",
    "Predictions",
    "analyse",
    "compare",
    "make_predictions",
    "read_predictions",
    "summary",
]


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: a figure does not need torch, nor a diagnosis matplotlib."""
    if name in __all__:
        return getattr(diagnosis, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
