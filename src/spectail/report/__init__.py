"""Pages, figures and tables of runs. What they show is found in :mod:`spectail.diagnosis`, whose names are here too."""

from ..diagnosis import Analysis, Comparison, Predictions, analyse, compare, make_predictions, read_predictions, summary

__all__ = [
    "Analysis", "Comparison", "Predictions", "analyse", "compare", "make_predictions", "read_predictions",
    "summary",
]  # fmt: skip
