"""Pictures of what goes wrong: test images of the worst classes, and what they were taken for."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .._utils.errors import one_line
from ..data.image_set import ImageSet
from ..diagnosis.analysis import Analysis
from .run_record import RunRecord

SIDE = 64  # pixels on the page
SHOWN = 4  # images of a class
MORE = 24  # further ones that the page shows on request


@dataclass(frozen=True)
class Example:
    """A small picture: a test image, its class, and the class it was taken for (the same where it was recognised)."""

    uri: str
    true: int
    predicted: int
    name: str
    """What the image is called, such as its path."""
    small: bool
    """The image is smaller than its place on the page, so it is enlarged pixel by pixel."""


@dataclass(frozen=True)
class Shots:
    """Images of one class that were taken for others, and one of the class it is most often taken for."""

    wrong: list[Example]
    model: Example | None
    more: list[Example]
    """Further mistakes, for those who ask."""
    rest: int
    """Mistakes that are not pictured."""


def find_examples(
    analysis: Analysis, run: RunRecord, classes: Sequence[int], *, more: int = 0
) -> tuple[dict[int, Shots], str | None]:
    """Shots by class, with so ``more`` mistakes, and the reason in one sentence where there are none."""
    try:
        test = run.data.test
        if not np.array_equal(test.labels, analysis.predictions.labels):
            raise ValueError("the labels of its test set are not those of predictions.npz")
        if not isinstance(test, ImageSet):
            raise ValueError("the data are features")
        return {label: _shots(analysis, test, label, more) for label in classes}, None
    except (ValueError, OSError, ImportError) as error:  # the report goes on without pictures
        return {}, f"No example images: {one_line(error).removesuffix('.')}."


def _shots(analysis: Analysis, test: ImageSet, label: int, more: int) -> Shots:
    labels, predicted = analysis.predictions.labels, analysis.predictions.predicted
    wrong = np.flatnonzero((labels == label) & (predicted != label))
    taken = analysis.per_class[label]["taken_for"]
    # the most frequent confusions first, in the order of the test set within each
    rank = {confusion.predicted: at for at, confusion in enumerate(taken)}
    order = sorted(wrong.tolist(), key=lambda at: rank.get(int(predicted[at]), len(rank)))
    spread = _spread(order, predicted)
    examples = [make_example(test, at, label, int(predicted[at])) for at in spread[: SHOWN + more]]
    other = taken[0].predicted if taken else None
    clearest = None if other is None else _clearest(analysis, other)
    model = None if other is None or clearest is None else make_example(test, clearest, other, other)
    return Shots(examples[:SHOWN], model, examples[SHOWN:], max(len(spread) - SHOWN - more, 0))


def _clearest(analysis: Analysis, label: int) -> int | None:
    """A test image that shows what a class looks like: the one the model is surest of, else the first."""
    predictions = analysis.predictions
    own = np.flatnonzero(predictions.labels == label)
    right = own[predictions.predicted[own] == label]
    own = right if len(right) else own
    if not len(own) or predictions.logits is None:
        return int(own[0]) if len(own) else None
    logits = predictions.logits[own].astype(np.float64)
    others = np.delete(logits, label, axis=1)
    return int(own[(logits[:, label] - others.max(1)).argmax()])


def _spread(order: list[int], predicted: NDArray[np.int64]) -> list[int]:
    """At most two images of one confusion while there are others, so that the pictures show the variety."""
    seen: dict[int, int] = {}
    first: list[int] = []
    rest: list[int] = []
    for at in order:
        taken = int(predicted[at])
        seen[taken] = seen.get(taken, 0) + 1
        (first if seen[taken] <= 2 else rest).append(at)
    return first + rest


def make_example(images: ImageSet, at: int, true: int, predicted: int) -> Example:
    image = images.images.read(at)
    small = max(image.size) <= SIDE
    if not small:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file, kind = io.BytesIO(), "png" if small else "jpeg"  # a photo takes a fifth of the space as JPEG
    if small:
        image.save(file, format="PNG", optimize=True)
    else:
        image.convert("RGB").save(file, format="JPEG", quality=85, optimize=True)
    uri = f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode("ascii")
    name = images.name_of(at).encode("utf-8", "backslashreplace").decode()  # file names may be anything
    return Example(uri, true, predicted, name, small)
