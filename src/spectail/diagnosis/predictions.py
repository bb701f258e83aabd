"""Predictions of any classifier: true labels, and scores or predicted classes.

They come from everywhere, so this is the door where everything is checked; behind it labels are class indices and
scores are finite logits.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._utils.names import nearest, shown
from .class_labels import require_common_classes, require_known, whole_numbers

MOST_CLASSES = 1_000_000  # a larger label is an id of something else
FEW_CLASSES = 1_000  # any file may have so many; beyond, a tenth as many test images as classes are expected
LARGEST = float(np.finfo(np.float32).max)
BLOCK = 1 << 22  # scores looked at together: a second copy of all of them may not fit into memory


@dataclass(frozen=True)
class Predictions:
    """What a classifier predicted for a test set.

    Make one with :func:`make_predictions`, or :func:`~spectail.diagnosis.read_predictions` from a file.
    """

    labels: NDArray[np.int64]
    """(N,) true classes."""
    predicted: NDArray[np.int64]
    """(N,) predicted classes."""
    logits: NDArray[np.float32] | None
    """(N, K) scores; None where only predicted classes are known."""
    class_names: tuple[str, ...]
    """K names, "0", "1", ... if unknown."""
    class_counts: NDArray[np.int64] | None
    """(K,) training images per class; None if unknown."""
    name: str
    """What tables call it."""
    notes: tuple[str, ...] = ()
    """What the reader should know about how they were read, in sentences."""
    labelled: bool = True
    """Whether the true classes are known; if not, ``labels`` are all 0 and mean nothing."""
    paths: tuple[str, ...] | None = None
    """N names that lead to the test images, such as their paths; None if unknown."""

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.labels)

    def without_logits(self) -> Predictions:
        """The same without the scores, which take nearly all of the memory."""
        return replace(self, logits=None)


@dataclass
class RawPredictions:
    """What a file or a caller gave, before it is checked."""

    labels: Any
    predicted: Any = None
    scores: Any = None
    names: Sequence[str] | None = None
    counts: Any = None
    declared: bool = False  # the scores were called probabilities
    own: bool = False  # the scores may be changed in place
    labelled: bool = True  # False: the labels stand for nothing
    notes: tuple[str, ...] = ()
    paths: Sequence[str] | None = None


def make_predictions(
    labels: Any,
    scores_or_predicted: Any,
    *,
    class_names: Sequence[str] | None = None,
    class_counts: Any = None,
    name: str = "predictions",
) -> Predictions:
    """Predictions from lists, arrays or tensors.

    Args:
        labels: (N,) class indices, or class names.
        scores_or_predicted: (N, K) logits or probabilities, or (N,) predicted classes.
        class_names: K names; needed to read names in a given order.
        class_counts: training images per class; without them there are no head, medium and tail.
        name: what tables call it.

    Example:
        >>> predictions = make_predictions(["cat", "dog", "dog"], ["cat", "dog", "cat"])
        >>> predictions.class_names, predictions.predicted.tolist()
        (('cat', 'dog'), [0, 1, 0])
    """
    values = _array(scores_or_predicted, "scores")
    if values.ndim not in (1, 2):
        raise ValueError(f"scores must have shape (N, K), or predicted classes (N,); got shape {values.shape}.")
    counts = None if class_counts is None else getattr(class_counts, "counts", class_counts)
    names = class_names if class_names is not None else getattr(class_counts, "names", None)
    raw = RawPredictions(_array(labels, "labels"), names=names, counts=counts)
    if values.ndim == 2:
        raw.scores = values
    else:
        raw.predicted = values
    return checked(raw, name)


def checked(raw: RawPredictions, name: str, where: str = "") -> Predictions:
    """Predictions from what was found; ``where`` begins every message."""
    try:
        return _assembled(raw, name)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def _assembled(raw: RawPredictions, name: str) -> Predictions:
    labels = _flat(raw.labels, "labels")
    predicted = None if raw.predicted is None else _flat(raw.predicted, "predicted classes")
    scores = None if raw.scores is None else _array(raw.scores, "scores")
    if scores is not None and scores.ndim != 2:
        raise ValueError(f"scores must have shape (N, K), one row per test image; got shape {scores.shape}.")
    for what, values in (("predicted classes", predicted), ("rows of scores", scores)):
        if values is not None and len(values) != len(labels):
            raise ValueError(f"there must be as many {what} as labels; got {len(values):,} and {len(labels):,}.")
    if raw.paths is not None and len(raw.paths) != len(labels):
        raise ValueError(f"there must be as many paths as labels; got {len(raw.paths):,} and {len(labels):,}.")
    if not len(labels):
        raise ValueError("there is no prediction in it; expected at least one test image.")
    names = None if raw.names is None else tuple(str(entry) for entry in raw.names)
    both = [values for values in (labels, predicted) if values is not None]
    for what, values in zip(("labels", "predicted classes"), both, strict=False):
        require_known(values, what, names)
    if names is None and predicted is not None and scores is None:
        require_common_classes(labels, predicted)
    given = raw.counts
    if names is None and scores is None and any(whole_numbers(values) is None for values in both):
        found = {text.strip() for values in both for text in np.unique(values.astype(str)).tolist()}
        counted = map(str, given) if isinstance(given, Mapping) else ()  # a class without a test image is one too
        names = tuple(sorted(found.union(counted)))
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(
                "class counts are a plain list, and nothing says in which order the classes are; give the class names "
                'too, or counts by name, as {"cat": 120}.'
            )
    if isinstance(given, Mapping):
        names, given = _by_name(given, names, both, scores)
    counts = None if given is None else _counts(given)
    size = _size(both, scores, names, counts)
    names = names if names is not None else tuple(map(str, range(size)))
    for what, amount in (("class names", len(names)), ("class counts", size if counts is None else len(counts))):
        if amount != size:
            raise ValueError(f"there are {size:,} classes but {amount:,} {what}; give one for each class.")
    ids = [_class_ids(values, names, what) for values, what in zip(both, ("labels", "predicted classes"), strict=False)]
    logits, notes = None, raw.notes
    if scores is not None:
        logits, best, shares = _logits(scores, names, declared=raw.declared, own=raw.own)
        if shares:
            notes = (*notes, "The scores are 0 or more and sum to 1 in each row: they are used as probabilities.")
        if predicted is not None:
            _require_agreement(logits, best, ids[1], names)
        else:
            ids.append(best)
    if len(set(names)) < size:  # tables name classes; two of one name could not be told apart
        often = Counter(names)
        names = tuple(f"{entry} ({label})" if often[entry] > 1 else entry for label, entry in enumerate(names))
    paths = None if raw.paths is None else tuple(raw.paths)
    return Predictions(ids[0], ids[1], logits, names, counts, name, notes, raw.labelled, paths)


def _by_name(
    counts: Mapping[str, Any], names: tuple[str, ...] | None, both: list[NDArray[Any]], scores: Any
) -> tuple[tuple[str, ...], list[Any]]:
    """Class names, and the counts of a mapping in their order."""
    known = {str(name): count for name, count in counts.items()}
    if names is None:
        size = (
            _size(both, scores, None, None)
            if scores is not None or not known
            else max((int(name) + 1 for name in known if name.isdecimal()), default=0)
        )
        names = tuple(map(str, range(max(size, 1))))
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise ValueError(f"there is no count for class {missing!r}; {nearest(missing, known, 'there are those of')}")
    return names, [known[name] for name in names]


def _size(both: list[NDArray[Any]], scores: Any, names: Any, counts: Any) -> int:
    """How many classes there are: as the scores say, else the names, else the counts, else the labels."""
    known = [len(values) for values in (None if scores is None else scores[0], names, counts) if values is not None]
    if known:
        size = known[0]
    else:
        largest = max(int(ids.max()) for values in both if (ids := whole_numbers(values)) is not None)
        if largest >= min(MOST_CLASSES, max(FEW_CLASSES, 10 * len(both[0]))):
            raise ValueError(
                f"labels must be class indices 0, 1, 2, ...; got {largest:,} among {len(both[0]):,} test images. "
                "Pass the class names if there are so many classes."
            )
        size = largest + 1
    if size < 2:
        raise ValueError("there must be two classes or more; got one. Pass the class names if there are others.")
    return size


def _flat(values: Any, what: str) -> NDArray[Any]:
    array = _array(values, what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{what} must have shape (N,), one class per test image; got shape {array.shape}.")
    if array.dtype.kind == "V":
        raise ValueError(f"{what} must be whole numbers or names; got records ({array.dtype}).")
    if array.dtype.kind == "c":
        raise ValueError(f"{what} must be whole numbers or names; got complex numbers.")
    if array.dtype.kind in "SO":
        entries = array.tolist()
        empty = (entry is None or (isinstance(entry, float) and math.isnan(entry)) for entry in entries)
        gap = next((row for row, missing in enumerate(empty) if missing), None)
        if gap is not None:
            raise ValueError(f"row {gap} of the {what} is empty; fill it or drop the row.")
        nested = next((entry for entry in entries if isinstance(entry, list | tuple | dict | set | np.ndarray)), None)
        if nested is not None:
            raise ValueError(f"{what} must be one class per test image; got {shown(nested)}. Are these scores?")
        array = np.array([as_text(entry) for entry in entries], dtype=str)
    elif array.dtype.kind not in "fbuiU":  # such as dates
        array = array.astype(str)
    if array.dtype.kind == "f":
        odd = np.flatnonzero(~(np.isfinite(array) & (array == np.round(array))))
        if len(odd):
            raise ValueError(f"{what} must be whole numbers or names; row {odd[0]} is {array[odd[0]]}.")
    return array.astype(np.int64) if array.dtype.kind in "fbui" else array


def _class_ids(values: NDArray[Any], names: tuple[str, ...], what: str) -> NDArray[np.int64]:
    """Indices from indices or names. In text, a number that is the name of a class is read as that name."""
    label_of = {name: label for label, name in enumerate(names)}
    texts = None if values.dtype.kind == "i" else [text.strip() for text in np.unique(values).tolist()]
    ids = whole_numbers(values)
    if ids is not None and (texts is None or not all(text in label_of for text in texts)):
        wrong = np.flatnonzero((ids < 0) | (ids >= len(names)))
        if len(wrong):
            raise ValueError(
                f"{what} must lie in [0, {len(names)}); row {wrong[0]} is {ids[wrong[0]]}. "
                "Do the model and the labels have the same classes?"
            )
        return ids
    unknown = next((text for text in texts or [] if text not in label_of), None)
    if unknown is not None:
        raise ValueError(f"{what}: there is no class {unknown!r}; {nearest(unknown, names)}")
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise ValueError(f"{what} are names, but two classes are called {twice[0]!r}; use indices.")
    _, inverse = np.unique(values, return_inverse=True)
    return np.asarray(np.array([label_of[text] for text in texts or []], dtype=np.int64)[inverse])


def _counts(counts: Any) -> NDArray[np.int64]:
    try:
        values = np.asarray(_array(getattr(counts, "counts", counts), "class counts"), dtype=np.float64)
    except (TypeError, ValueError):
        texts = [str(entry) for entry in np.asarray(counts).ravel().tolist()]
        odd = next((text for text in texts if not re.fullmatch(r"\s*\d+\s*", text)), texts[0] if texts else "")
        raise ValueError(f"class counts must be whole numbers of training images; got {odd!r}.") from None
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or (values != np.round(values)).any():
        raise ValueError("class counts must be a flat list of whole numbers, 0 or more: training images per class.")
    if values.max() > 2**53:
        raise ValueError(f"class counts must be numbers of images; got {values.max():g}.")
    if not values.sum():
        raise ValueError("class counts are all zero; expected training images per class.")
    return values.astype(np.int64)


def _logits(
    scores: NDArray[Any], names: tuple[str, ...], *, declared: bool, own: bool
) -> tuple[NDArray[np.float32], NDArray[np.int64], bool]:
    """Finite float32 logits, the best class of each row, and whether they were probabilities, now their logarithms."""
    if scores.dtype.kind not in "fiu":
        raise ValueError(f"scores must be numbers; got {scores.dtype}.")
    keep = scores.dtype == np.float32
    logits = scores if keep else np.empty(scores.shape, dtype=np.float32)
    best = np.empty(len(scores), dtype=np.int64)
    tolerance = 2e-2 if scores.dtype == np.float16 else 2e-3  # tables are often rounded to three digits
    shares = True
    for part in _blocks(scores):
        block = scores[part]
        low, high = float(block.min()), float(block.max())
        if not (math.isfinite(low) and max(-low, high) <= LARGEST):
            row, label = np.argwhere(~(np.abs(block) <= LARGEST))[0]
            raise ValueError(
                f"scores must be finite numbers; row {part.start + row}, class {label} ({names[label]!r}) "
                f"is {block[row, label]}. {_advice(float(block[row, label]))}"
            )
        best[part] = block.argmax(1)
        if not keep:
            logits[part] = block
        if shares or declared:
            off = np.abs(block.sum(1, dtype=np.float64) - 1) > tolerance if low >= 0 else (block < 0).any(1)
            shares = not off.any()
            if declared and not shares:
                raise ValueError(
                    f"probabilities must be 0 or more and sum to 1 in each row; row {part.start + int(off.argmax())} "
                    "does not. Call them logits or scores if that is what they are."
                )
    if shares:
        target = logits if own or not keep else np.empty_like(logits)
        for part in _blocks(logits):
            np.log(np.maximum(logits[part], np.finfo(np.float32).tiny), out=target[part])
        logits = target
    return logits, best, shares


def _advice(value: float) -> str:
    if math.isnan(value):
        return "Compute it again or drop the row; a model that diverged gives nothing else."
    return "Give a class that is ruled out a very low score." if value < 0 else "Scale the scores down."


def _require_agreement(
    logits: NDArray[np.float32], best: NDArray[np.int64], predicted: NDArray[np.int64], names: tuple[str, ...]
) -> None:
    differ = np.flatnonzero(best != predicted)
    differ = differ[logits[differ, predicted[differ]] < logits[differ, best[differ]]]  # ties may go either way
    if len(differ):
        row = differ[0]
        raise ValueError(
            f"row {row} is predicted as {names[predicted[row]]!r}, but its largest score is that of "
            f"{names[best[row]]!r} ({len(differ):,} rows differ). Leave out the scores or the predicted classes."
        )


def _blocks(scores: NDArray[Any]) -> Iterator[slice]:
    rows = max(BLOCK // max(scores.shape[1], 1), 1)
    return (slice(start, min(start + rows, len(scores))) for start in range(0, len(scores), rows))


def _array(values: Any, what: str) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
        values = values.float().numpy() if str(values.dtype) == "torch.bfloat16" else values.numpy()
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{what} must have rows of one length.") from None


def as_text(entry: Any) -> str:
    """A name, also from bytes."""
    return entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry)
