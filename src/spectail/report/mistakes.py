"""Every mistake by name: which test image, what it is, what it was taken for, and how sure the classifier was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosis.analysis import Analysis
from ..diagnosis.predictions import Predictions
from ..diagnosis.tables import to_csv

COLUMNS = ("predictions", "position", "file", "true", "predicted", "true_class", "predicted_class", "confidence")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would carry out


def mistakes_csv(analyses: Sequence[Analysis]) -> str:
    """One line per test image that was taken for another class; the confidence is in percent, empty without scores."""
    return to_csv(COLUMNS, (row for analysis in analyses for row in _rows(analysis.predictions)))


def _rows(found: Predictions) -> Iterator[tuple[Any, ...]]:
    wrong = np.flatnonzero(found.predicted != found.labels)
    sure = confidence(found, wrong)
    for place, at in enumerate(wrong.tolist()):
        true, predicted = int(found.labels[at]), int(found.predicted[at])
        names = (found.class_names[true], found.class_names[predicted])
        shown = "" if sure is None else f"{100 * sure[place]:.1f}"
        yield (_safe(found.name), at, _safe(image_name(found, at)), true, predicted, *map(_safe, names), shown)


def image_name(found: Predictions, at: int) -> str:
    """The file of a test image, or where it stands."""
    return found.paths[at] if found.paths is not None else f"test image {at}"


def confidence(found: Predictions, places: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """The probability of the predicted class; None without scores."""
    if found.logits is None:
        return None
    logits = found.logits[places].astype(np.float64)
    shares = np.exp(logits - logits.max(1, keepdims=True, initial=-np.inf))
    return np.asarray(shares[np.arange(len(places)), found.predicted[places]] / shares.sum(1))


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text
