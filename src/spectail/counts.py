"""How many training images each class has: the one fact every long-tail method starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor


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
        labels = torch.as_tensor(getattr(targets, "targets", targets))
        if labels.ndim != 1 or labels.numel() == 0 or labels.dtype.is_floating_point or labels.dtype == torch.bool:
            raise ValueError(
                "targets must be a flat, non-empty list of whole-number labels; "
                f"got shape {tuple(labels.shape)} and dtype {labels.dtype}."
            )
        labels = labels.to(torch.int64).cpu()
        size = num_classes if num_classes is not None else (len(names) if names is not None else None)
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or (size is not None and high >= size):
            limit = "number of classes" if size is None else size
            raise ValueError(f"labels must lie in [0, {limit}); found {low if low < 0 else high}.")
        return cls(torch.bincount(labels, minlength=size or 0), names)

    @property
    def num_classes(self) -> int:
        return self.counts.numel()

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def frequencies(self) -> Tensor:
        """Relative frequency n_j / N of each class, float64."""
        return self.counts.double() / self.total

    @property
    def imbalance_factor(self) -> float:
        """Largest class over smallest class, among the classes that have images."""
        present = self.counts[self.counts > 0]
        return float(present.max()) / float(present.min())

    def groups(self, head: int = 100, tail: int = 20) -> dict[str, list[int]]:
        """Labels by the count rule: head has more than ``head`` images, tail fewer than ``tail``, medium the rest."""
        names = {"head": self.counts > head, "tail": self.counts < tail}
        names["medium"] = ~(names["head"] | names["tail"])
        return {group: names[group].nonzero().flatten().tolist() for group in ("head", "medium", "tail")}

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


def as_counts(counts: CountsLike, on_empty: str = "error") -> ClassCounts:
    """Whatever a user passes as ``class_counts``, checked: empty classes are refused unless ``on_empty='ignore'``."""
    if on_empty not in ("error", "ignore"):
        raise ValueError(f"on_empty must be 'error' or 'ignore', got {on_empty!r}.")
    result = counts if isinstance(counts, ClassCounts) else ClassCounts(counts)
    if on_empty == "error" and bool((result.counts == 0).any()):
        empty = int((result.counts == 0).nonzero()[0])
        raise ValueError(
            f"class_counts must be positive; {result.describe(empty)} has 0 images. Drop it or pass on_empty='ignore'."
        )
    return result


def check_number(**options: object) -> None:
    """A number where a number is expected, in words."""
    for name, value in options.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number; got {value!r}.")


def _whole_numbers(counts: Iterable[float] | Tensor) -> Tensor:
    if isinstance(counts, Mapping):
        raise TypeError(
            "class_counts must be a list in label order, not a mapping; pass [counts[c] for c in range(K)]."
        )
    try:
        values = torch.as_tensor(counts if hasattr(counts, "__array__") or isinstance(counts, Tensor) else list(counts))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"class_counts must be numbers, one per class; got {type(counts).__name__}: {error}") from None
    values = values.detach().cpu()
    if values.dtype == torch.bool or values.is_complex():
        raise TypeError(f"class_counts must be whole numbers, got dtype {values.dtype}.")
    if values.is_floating_point() and not bool((values.isfinite() & (values == values.round())).all()):
        raise ValueError(
            "class_counts must be whole numbers of images; got fractions, NaN or infinity. "
            "Pass counts, not frequencies."
        )
    return values.to(torch.int64)
