"""Which column of a table holds what, by its name and by the labels it must go with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .predictions import Raw, nearest, whole_numbers

LABELS = ("label", "labels", "target", "targets", "true", "y_true", "true_label", "true_class", "ground_truth",
          "groundtruth", "gt", "actual", "class", "y")  # fmt: skip
PREDICTED = ("predicted", "pred", "preds", "prediction", "predictions", "y_pred",
             "predicted_label", "pred_label", "predicted_class", "pred_class")  # fmt: skip
SCORES = ("logits", "logit", "scores", "score", "probabilities", "probability", "probs", "prob", "y_score", "p",
          "class")  # fmt: skip
OTHERS = ("", "id", "index", "idx", "row", "file", "filename", "file_name", "path", "image", "image_id", "url", "split",
          "subset", "source", "fold", "confidence", "conf", "correct", "right", "loss", "entropy", "weight", "margin",
          "name", "seed", "epoch", "step", "batch", "timestamp", "time", "date", "datetime", "date_time", "latency",
          "duration", "runtime", "width", "height", "size", "fname", "filepath", "file_path", "img", "img_id", "sample",
          "sample_id", "uuid", "key", "hash", "group", "dataset", "domain", "comment", "note")  # fmt: skip
"""Columns that go with predictions and are neither labels nor scores; an index often has no name."""
INDEX = re.compile(r"unnamed: \d+|__index_level_\d+__|level_\d+", re.IGNORECASE)
"""What pandas calls an index that was written as a column."""
ADVICE = "List the classes with --names, or say with --scores how the names of the score columns begin."


@dataclass(frozen=True)
class Ask:
    """What the caller knows about a file."""

    label: str | None
    prediction: str | None
    scores: str | Path | Sequence[str] | None
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class Choice:
    """Columns that hold scores, in class order, and the class names that they give."""

    columns: list[str]
    names: list[str]
    bare: bool = False
    """They are what is left over: nothing in their names says that they hold scores."""


def score_columns(rest: list[str], ask: Ask, raw: Raw, numeric: Callable[[str], bool], path: Path) -> Choice:
    """The columns of scores among ``rest``; none if there are only predicted classes."""
    if isinstance(ask.scores, str | Path):
        start = str(ask.scores)
        begun = {name.removeprefix(start): name for name in rest if name.startswith(start)}
        if not begun:
            raise ValueError(f"{path} has no column that begins with {start!r}; others are {listed(rest)}.")
        return _in_order(begun)
    if ask.scores is not None:
        given = [pick(name, rest, (), "column", "scores", path) or "" for name in ask.scores]
        return Choice(given, given)
    if ask.names is not None and set(ask.names) <= set(rest):
        return Choice(list(ask.names), list(ask.names))
    for prefix in SCORES:  # logit_0, logit_1, ... or prob[cat], prob[dog], ... or one column of lists
        shape = re.compile(rf"{prefix}(?:[_\-. \[(:]+(.+?)[\])]?|(\d*))", re.IGNORECASE)
        matches = {name: shape.fullmatch(name) for name in rest}
        found = {match[1] or match[2]: name for name, match in matches.items() if match}
        if len(found) > 1 or (found and raw.predicted is None):
            return _in_order(found)
    numbered = {name: name for name in rest if name.isdecimal()}
    if len(numbered) > 1:
        return _in_order(numbered)
    labels = set(_texts(raw.labels))
    left = [name for name in rest if name in labels or not (_other(name) or not numeric(name))]
    if len(left) > 1 and (raw.predicted is None or labels <= set(left)):
        return Choice(left, left, bare=True)
    return Choice([], [])


def without_score(choice: Choice, ask: Ask, raw: Raw) -> str | None:
    """A label or predicted class that has no column of scores, as in a file of the k best; None if all have one."""
    if ask.names is not None:
        few = len(ask.names) - len(choice.columns)
        return None if few <= 0 else ask.names[-1]
    ordered = choice.names == list(map(str, range(len(choice.names))))
    by_name = not ordered and any(name.isdecimal() for name in choice.names)
    for values in (raw.labels, raw.predicted):
        unknown = [text for text in _texts(values) if text not in choice.names]
        numbers = None if by_name else _numbers(values)
        if unknown and (numbers is None or numbers.min() < 0 or numbers.max() >= len(choice.columns)):
            return unknown[-1]
    return None


def require_scores(scores: NDArray[Any], choice: Choice, raw: Raw, path: Path) -> None:
    """Refuse bare columns one of which may be anything: a class of its own would change every figure.

    They are scores if each is named by a label, if there are exactly as many as numbered labels, or if the rows are
    probabilities.
    """
    labels = set(_texts(raw.labels))
    stray = next((name for name in choice.columns if name not in labels), None)
    numbers = _numbers(raw.labels)
    if stray is None or (numbers is not None and numbers.max() + 1 == len(choice.columns)):
        return
    with np.errstate(invalid="ignore"):
        sums = scores.sum(1, dtype=np.float64)
        odd = bool((scores < 0).any()) or bool((np.abs(sums - 1) > 2e-2).any())
    if odd and np.isfinite(sums).all():
        raise ValueError(
            f"{path}: column {stray!r} would count as a class, but no label is {stray!r} and the rows are no "
            f"probabilities. {ADVICE}"
        )


def pick(given: Any, there: Sequence[str], known: Sequence[str], kind: str, flag: str, path: Path) -> str | None:
    """The column given, or the first with a usual name."""
    if given is None:
        usual = {_usual(name): name for name in reversed(there)}
        return next((usual[name] for name in known if name in usual), None)
    if str(given) not in there:
        hint = nearest(str(given), there)
        raise ValueError(f"{path} has no {kind} {str(given)!r} ({flag}){hint}; there are {listed(there)}.")
    return str(given)


def listed(names: Sequence[str]) -> str:
    """Names for a message, twelve at most."""
    return (", ".join(map(repr, names[:12])) or "none") + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def _in_order(columns: dict[str, str]) -> Choice:
    """Numbered columns by number (text would put 10 before 2), others as they come."""
    names = list(columns)
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    return Choice([columns[name] for name in names], names)


def _usual(name: str) -> str:
    """``True Label`` and ``true-label`` are the same as ``true_label``."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower())


def _other(name: str) -> bool:
    return _usual(name) in OTHERS or INDEX.fullmatch(name.strip()) is not None


def _numbers(values: Any) -> NDArray[np.int64] | None:
    array = np.asarray(values)
    found = whole_numbers(array if array.dtype.kind == "i" else array.astype(str))
    return found if found is not None and len(found) else None


def _texts(values: Any) -> list[str]:
    return [str(entry).strip() for entry in np.unique(np.asarray(values).astype(str)).tolist()]
