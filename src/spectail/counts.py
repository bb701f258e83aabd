"""How many training images each class has: the one fact every long-tail method starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ._utils.checks import check_choice

CONVENTIONS = ("count", "oltr", "if100", "ranges", "thirds")
RANGES = {10: (3, 4), 100: (36, 35), 1000: (390, 445), 8142: (842, 3701)}  # classes in head and medium, after MiSLAS


class ClassCounts:
    """Training images per class, with the quantities the field derives from them.

    Args:
        counts: one whole number per class, in label order. Zero is allowed here; methods that
            divide by a count refuse it with a message that names the class.
        names: class names in label order, used in messages and tables.

    Example:
        >>> counts = ClassCounts([500, 60, 5], names=["cat", "dog", "otter"])
        >>> counts.imbalance_factor
        100.0
        >>> counts.groups()
        {'head': [0], 'medium': [1], 'tail': [2]}
        >>> ClassCounts.from_targets([0, 0, 0, 1, 2, 2])
        ClassCounts([3, 1, 2])
    """

    def __init__(self, counts: Iterable[float] | Tensor, names: Sequence[str] | None = None) -> None:
        values = _whole_numbers(counts)
        if values.ndim != 1 or values.numel() < 2:
            raise ValueError(
                f"class_counts must be one number per class, for two classes or more; got shape {tuple(values.shape)}."
            )
        if names is not None and len(names) != values.numel():
            raise ValueError(
                f"names must have one entry per class: got {len(names)} names for {values.numel()} counts."
            )
        self.names = None if names is None else tuple(str(name) for name in names)
        if bool((values < 0).any()):
            worst = int(values.argmin())
            raise ValueError(
                f"class_counts must not be negative; {self.describe(worst)} has {int(values[worst])}. "
                "Count the training labels with ClassCounts.from_targets(labels)."
            )
        if int(values.sum()) == 0:
            raise ValueError("class_counts are all zero: there is no training image to learn from.")
        self.counts = values

    @classmethod
    def from_targets(
        cls, targets: Any, num_classes: int | None = None, names: Sequence[str] | None = None
    ) -> ClassCounts:
        """Count labels. ``targets`` is a list, an array, a tensor, or a data set with a ``targets`` list."""
        labels = flat_labels(targets, "targets")
        size = num_classes if num_classes is not None else (len(names) if names is not None else None)
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or (size is not None and high >= size):
            limit = "number of classes" if size is None else size
            raise ValueError(f"labels must lie in [0, {limit}); found {low if low < 0 else high}.")
        if max(high, size or 0) > 10_000_000:  # an id of something else, and gigabytes of zeros
            raise ValueError(f"there can be 10,000,000 classes at most; got {max(high, size or 0):,}.")
        return cls(torch.bincount(labels, minlength=size or 0), names)

    @property
    def num_classes(self) -> int:
        return self.counts.numel()

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def frequencies(self) -> Tensor:
        """Relative frequency n_j / N of each class, its prior in logit adjustment; float64."""
        return self.counts.double() / self.total

    @property
    def imbalance_factor(self) -> float:
        """Largest class over smallest class, among the classes that have images."""
        present = self.counts[self.counts > 0]
        return float(present.max()) / float(present.min())

    @property
    def gini(self) -> float:
        """Gini coefficient of the counts: 0 when all classes are equal, towards 1 when one class has everything."""
        ordered = self.counts.double().sort().values
        rank = torch.arange(1, len(self) + 1, dtype=torch.float64)
        return float((2 * rank - len(self) - 1) @ ordered / (len(self) * self.total))

    def groups(self, convention: str = "count", *, head: int = 100, tail: int = 20) -> dict[str, list[int]]:
        """Labels of the head, medium and tail classes. A group may be empty.

        Papers disagree on the groups, and columns under different conventions cannot be compared:

        - ``"count"`` (most papers, CAR too): head has more than 100 images, tail fewer than 20;
        - ``"oltr"`` (the OLTR scorer): head has 100 or more, tail 20 or fewer;
        - ``"if100"`` (LIFT): the count rule applied to the exponential profile of imbalance factor 100 with the same
          largest class, whatever the actual imbalance;
        - ``"ranges"`` (MiSLAS): fixed numbers of classes for 10, 100, 1,000 and 8,142 classes;
        - ``"thirds"``: a third of the classes each.

        The last three go by size, largest class first. ``head`` and ``tail`` move the limits of the first three.

        Example:
            >>> counts = ClassCounts([500, 100, 20, 5])
            >>> counts.groups()["medium"], counts.groups("oltr")["medium"]
            ([1, 2], [])
        """
        if convention in ("count", "oltr"):
            inclusive = convention == "oltr"
            is_head = self.counts >= head if inclusive else self.counts > head
            is_tail = self.counts <= tail if inclusive else self.counts < tail
            members = {"head": is_head, "medium": ~(is_head | is_tail), "tail": is_tail & ~is_head}
            return {group: mask.nonzero().flatten().tolist() for group, mask in members.items()}
        by_size = self.counts.sort(descending=True, stable=True).indices.tolist()
        first, second = self._group_sizes(convention, head, tail)
        parts = by_size[:first], by_size[first : first + second], by_size[first + second :]
        return {group: sorted(part) for group, part in zip(("head", "medium", "tail"), parts, strict=True)}

    def _group_sizes(self, convention: str, head: int, tail: int) -> tuple[int, int]:
        size, largest = len(self), int(self.counts.max())
        if convention == "if100":
            profile = [int(largest * 0.01 ** (i / (size - 1))) for i in range(size)]
            return sum(n > head for n in profile), sum(tail <= n <= head for n in profile)
        if convention == "thirds":
            return -(-size // 3), -(-(size - -(-size // 3)) // 2)
        check_choice("convention", convention, CONVENTIONS)
        if size not in RANGES:
            raise ValueError(
                f"the 'ranges' convention exists for {', '.join(map(str, RANGES))} classes; got {size}. "
                "Use 'count' or 'thirds'."
            )
        return RANGES[size]

    def describe(self, label: int) -> str:
        """``class 17 ('otter')``: how messages name a class."""
        return f"class {label}" + (f" ({self.names[label]!r})" if self.names else "")

    def tolist(self) -> list[int]:
        return [int(count) for count in self.counts]

    def __len__(self) -> int:
        return self.num_classes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassCounts) and self.tolist() == other.tolist() and self.names == other.names

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.tolist()[:6])) + (", ..." if len(self) > 6 else "")
        return f"ClassCounts([{shown}])"


CountsLike: TypeAlias = ClassCounts | Iterable[float] | Tensor


def as_counts(
    counts: CountsLike, on_empty: str = "error", advice: str = "Drop it or pass on_empty='ignore'."
) -> ClassCounts:
    """Whatever a user passes as ``class_counts``, checked: empty classes are refused unless ``on_empty='ignore'``."""
    check_choice("on_empty", on_empty, ("error", "ignore"))
    result = counts if isinstance(counts, ClassCounts) else ClassCounts(counts)
    if on_empty == "error" and bool((result.counts == 0).any()):
        if _look_like_labels(result.counts):
            raise ValueError(
                f"class_counts must be images per class; these {len(result):,} numbers from 0 to "
                f"{int(result.counts.max())} look like labels. Count them, once: ClassCounts.from_targets(labels)."
            )
        empty = int((result.counts == 0).nonzero()[0])
        raise ValueError(f"class_counts must be positive; {result.describe(empty)} has 0 images. {advice}")
    return result


def _look_like_labels(values: Tensor) -> bool:
    """Far more numbers than there are different ones, from 0 on without a gap: nobody's images per class."""
    kinds = int(values.max()) + 1
    return len(values) > 2 * kinds and len(set(values.tolist())) == kinds


def flat_labels(labels: Any, name: str) -> Tensor:
    """Labels as users have them (a list, an array, a tensor, a data set with ``targets``), flat, int64, on the CPU."""
    labels = getattr(labels, "targets", labels)
    try:
        values = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
        found = f"shape {values.shape} and dtype {values.dtype}"
    except (TypeError, ValueError):  # such as lists of different lengths in a list
        values, found = np.empty(0), f"a {type(labels).__name__} that makes no array"
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        words = values.ndim == 1 and values.dtype.kind in "UO"
        advice = "Pass the list of labels or a data set with targets."
        if words:
            advice = "Number the classes: names, labels = numpy.unique(labels, return_inverse=True)."
        elif values.ndim == 1 and values.size and values.dtype.kind == "f":
            advice = "Convert them: labels.long() of a tensor, labels.astype(int) of an array."
        raise ValueError(
            f"{name} must be a flat, non-empty list of whole numbers, one label per image; got {found}. {advice}"
        )
    return torch.from_numpy(values.astype(np.int64))


def _whole_numbers(counts: Iterable[float] | Tensor) -> Tensor:
    if isinstance(counts, Mapping):
        raise TypeError(
            "class_counts must be a list in label order, not a mapping; pass [counts[c] for c in range(K)]."
        )
    try:
        values = torch.as_tensor(counts if hasattr(counts, "__array__") or isinstance(counts, Tensor) else list(counts))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"class_counts must be numbers, one per class, such as [500, 60, 5]; got {type(counts).__name__}."
        ) from error
    values = values.detach().cpu()
    if values.dtype == torch.bool or values.is_complex():
        raise TypeError(f"class_counts must be whole numbers, got dtype {values.dtype}.")
    if values.is_floating_point() and not bool((values.isfinite() & (values == values.round())).all()):
        raise ValueError(
            "class_counts must be whole numbers of images; got fractions, NaN or infinity. "
            "Pass counts, not frequencies."
        )
    return values.to(torch.int64)
