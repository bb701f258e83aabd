"""What a data set needs, from predictions that every image got from a head which had not seen it.

`advise` finds labels to check, pairs of classes to merge or to look at, classes to collect more of, and identical
images. How is told where each is found: :mod:`~spectail.fit.label_issues`, :mod:`~spectail.fit.class_pairs`,
:mod:`~spectail.fit.more_images`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts import CountsLike, as_counts
from ..diagnosis.advice import Advice, Duplicate, LabelIssue
from .class_pairs import find_pairs
from .label_issues import find_label_issues
from .more_images import find_more_images

__all__ = ["Advice", "Split", "advise"]

KINDS = ("two labels", "two splits", "same label")
"""Of identical images, the most harmful first."""


@dataclass(frozen=True)
class Split:
    """Images that are not trained on, among which those of the training set are looked for."""

    contents: Sequence[Any] | NDArray[Any]
    """Digests."""
    paths: Sequence[str] | None = None
    labels: NDArray[np.int64] | None = None


def advise(
    logits: NDArray[Any],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    class_counts: CountsLike,
    paths: Sequence[str] | None = None,
    contents: Sequence[Any] | NDArray[Any] | None = None,
    *,
    others: Mapping[str, Split] | None = None,
) -> Advice:
    """What to check, merge, collect and remove.

    Args:
        logits: (N, K) out-of-fold logits of the training images, shifted and calibrated as they are used. Rows of
            images that were never held out are NaN; they are looked at for duplicates only.
        labels: (N,) given classes.
        class_names: K names.
        class_counts: training images per class.
        paths: N files, if the images are files.
        contents: N digests of the images' contents; equal digests are identical images.
        others: further splits by name, to find images that are in the training set too.

    Example:
        >>> labels = np.arange(60) % 3
        >>> logits = 6.0 * np.eye(3)[labels]
        >>> labels[4] = 0
        >>> advice = advise(logits, labels, ("mug", "cup", "bowl"), [21, 19, 20])
        >>> [(issue.position, issue.given, issue.suggested) for issue in advice.label_issues]
        [(4, 'mug', 'cup')]
    """
    names, logits, labels = tuple(class_names), np.asarray(logits), np.asarray(labels, dtype=np.int64)
    if logits.shape != (len(labels), len(names)):
        raise ValueError(
            f"advice needs one row of logits per label and one column per class: got logits of shape {logits.shape} "
            f"for {len(labels)} labels and {len(names)} classes."
        )
    for what, given in (("paths", paths), ("contents", contents)):
        if given is not None and len(given) != len(labels):
            raise ValueError(f"advice needs one of {what} per image: got {len(given)} for {len(labels)} images.")
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(names)):
        raise ValueError(f"labels must be classes from 0 to {len(names) - 1}; got {labels.min()} to {labels.max()}.")
    counts = np.asarray(as_counts(class_counts).counts.numpy(), dtype=np.int64)
    places = np.flatnonzero(np.isfinite(logits).all(1))
    judged, known = logits[places], labels[places]
    copies = find_duplicates(labels, names, paths, contents, others or {})
    if not len(places):
        return Advice(0, duplicates=copies, notes=("No image was held out, so that labels cannot be judged.",))

    suspects = find_label_issues(judged, known)
    issues = tuple(
        LabelIssue(
            position, None if paths is None else str(paths[position]), names[labels[position]], names[label], sure
        )
        for position, label, sure in zip(
            places[suspects.places].tolist(), suspects.suggested.tolist(), suspects.confidence.tolist(), strict=True
        )
    )
    totals = np.bincount(known, minlength=len(names))
    # without the head start that frequent classes have: more images must help by what they teach
    prior = np.log(np.maximum(totals, 1) / len(places))
    even = (judged / suspects.temperature + (suspects.multiple - 1) * prior).argmax(1)
    hits = np.bincount(known[even == known], minlength=len(names))
    more, reason = find_more_images(hits, totals, counts, names)
    notes = [] if suspects.reliable else [
        "Labels cannot be judged: too many images are taken for another class with confidence, which weak features do "
        "as well as wrong labels."
    ]  # fmt: skip
    return Advice(
        judged=len(places),
        label_issues=issues,
        pairs=find_pairs(judged.argmax(1), known, names),
        more_images=more,
        duplicates=copies,
        wrong_share=100 * suspects.wrong_share if suspects.reliable else None,
        notes=(*notes, *([reason] if reason else [])),
    )


def find_duplicates(
    labels: NDArray[np.int64],
    names: tuple[str, ...],
    paths: Sequence[str] | None,
    contents: Sequence[Any] | NDArray[Any] | None,
    others: Mapping[str, Split],
) -> tuple[Duplicate, ...]:
    """Groups of identical images that have a training image among them."""
    if contents is None:
        return ()
    groups: dict[Any, list[tuple[str | None, int, str | None, str]]] = {}
    for split, part in {"train": Split(contents, paths, labels), **others}.items():
        for at, digest in enumerate(np.asarray(part.contents).tolist()):
            if split == "train" or digest in groups:
                file = None if part.paths is None else str(part.paths[at])
                name = None if part.labels is None else names[part.labels[at]]
                groups.setdefault(digest, []).append((file, at, name, split))
    found = []
    for group in groups.values():
        if len(group) > 1:
            files, positions, classes, splits = zip(*group, strict=True)
            mixed = len(set(classes) - {None}) > 1
            kind = KINDS[0] if mixed else KINDS[1] if len(set(splits)) > 1 else KINDS[2]
            found.append(Duplicate(kind, files, positions, classes, splits))
    return tuple(sorted(found, key=lambda group: KINDS.index(group.kind)))
