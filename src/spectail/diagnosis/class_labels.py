"""Labels and predicted classes as they come, numbers or names, and what cannot be meant by them."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._utils.names import shown

GAP = re.compile(r"\s*(nan|none|null|n/?a|<na>)\s*", re.IGNORECASE)  # how programs write that there is nothing


def whole_numbers(values: NDArray[Any]) -> NDArray[np.int64] | None:
    """Whole numbers, also from text (a table may write 3 as 3.0); None if there is anything else."""
    if values.dtype.kind == "i":
        return values
    texts, inverse = np.unique(values, return_inverse=True)
    if not all(re.fullmatch(r"\s*[+-]?\d{1,18}(\.0*)?\s*", text) for text in texts.tolist()):
        return None
    return np.asarray(np.array([int(text.split(".")[0]) for text in texts.tolist()], dtype=np.int64)[inverse])


def require_known(values: NDArray[Any], what: str, names: tuple[str, ...] | None) -> None:
    """Refuse a gap written as text among numbers; among names it may be one itself, as NA for Namibia."""
    if values.dtype.kind == "i":
        return
    texts, first = np.unique(values, return_index=True)
    numbers = [_as_float(text) for text in texts.tolist()]
    if names is None and None not in numbers:
        odd = next((at for at, number in enumerate(numbers) if number != round(number or 0)), None)
        if odd is not None:
            row = int(first[odd])
            raise ValueError(f"{what} must be whole numbers or names; row {row} is {str(values[row])!r}.")
    gaps = [at for at, text in enumerate(texts.tolist()) if GAP.fullmatch(text) and text not in (names or ())]
    if gaps and len(gaps) < len(texts) and whole_numbers(np.delete(texts, gaps)) is not None:
        row = min(int(first[at]) for at in gaps)
        raise ValueError(f"{what} must be whole numbers; row {row} is {str(values[row])!r}; fill it or drop the row.")


def _as_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def require_common_classes(labels: NDArray[Any], predicted: NDArray[Any]) -> None:
    """Refuse labels and predicted classes that cannot be meant: of other classes, or written in another way."""
    true, said = ({text.strip() for text in np.unique(values.astype(str)).tolist()} for values in (labels, predicted))
    numbers = [ids for values in (labels, predicted) if (ids := whole_numbers(values)) is not None]
    if len(numbers) == 2:
        true, said = ({str(number) for number in np.unique(ids).tolist()} for ids in numbers)
        if len(true) == len(said) == 1:
            return  # a single class, always taken for another one
    alike = {name.casefold(): name for name in said - true}
    twin = next((name for name in sorted(true - said) if name.casefold() in alike), None)
    if twin is not None:
        raise ValueError(
            f"{twin!r} of the labels and {alike[twin.casefold()]!r} of the predicted classes differ in capitals only; "
            "write them alike."
        )
    if not true & said:
        raise ValueError(
            f"labels and predicted classes have no class in common: {shown(min(true))} is a label, "
            f"{shown(min(said))} a predicted class. Are these the right columns?"
        )
