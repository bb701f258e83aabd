"""Labels in their three forms, and the one form the mathematics uses: (sample, class, mass) entries."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._core.dtypes import widest

PACKAGE = __name__.partition(".")[0]
MIXED_MODES = ("masked", "soft", "dominant", "clean")


@dataclass(frozen=True, eq=False)
class MixedTarget:
    """Labels of a mixed batch: mass ``lam`` on class ``a`` and ``1 - lam`` on class ``b``, per sample.

    Args:
        a: (N,) class indices.
        b: (N,) class indices of the partners.
        lam: share of ``a``, in [0, 1]: a number for the whole batch, or (N,).

    Example:
        >>> target = MixedTarget(torch.tensor([0, 2]), torch.tensor([1, 1]), 0.75)
        >>> target.dense(3)
        tensor([[0.7500, 0.2500, 0.0000],
                [0.0000, 0.2500, 0.7500]])
    """

    a: Tensor
    b: Tensor
    lam: Tensor | float

    def __post_init__(self) -> None:
        if not (isinstance(self.a, Tensor) and isinstance(self.b, Tensor)):
            found = f"{type(self.a).__name__} and {type(self.b).__name__}"
            raise TypeError(f"MixedTarget needs a and b as tensors of class indices; got {found}.")
        if self.a.shape != self.b.shape or self.a.ndim != 1:
            raise ValueError(
                f"MixedTarget needs a and b of one shape (N,); got {tuple(self.a.shape)} and {tuple(self.b.shape)}."
            )
        lam = self.lam  # a number is not sent to the device, which would wait for it, but made there
        if not isinstance(lam, Tensor):
            try:
                number = isinstance(lam, (int, float))
                lam = torch.full((), float(lam), device=self.a.device) if number else torch.as_tensor(lam)
            except (RuntimeError, TypeError, ValueError):
                raise TypeError(f"MixedTarget needs lam as a number or a tensor; got {type(lam).__name__}.") from None
        lam = lam.to(self.a.device)
        if not lam.is_floating_point():
            lam = lam.to(torch.get_default_dtype())
        if lam.ndim > 1 or (lam.ndim == 1 and lam.shape != self.a.shape):
            raise ValueError(
                f"MixedTarget needs lam as one number or shape {tuple(self.a.shape)}; got shape {tuple(lam.shape)}."
            )
        object.__setattr__(self, "lam", lam.expand(self.a.shape))

    @property
    def share(self) -> Tensor:
        """``lam`` as a tensor of shape (N,)."""
        assert isinstance(self.lam, Tensor)
        return self.lam

    def to(self, device: torch.device | str) -> MixedTarget:
        return MixedTarget(self.a.to(device), self.b.to(device), self.share.to(device))

    def dense(self, num_classes: int) -> Tensor:
        """The same labels as an (N, K) matrix."""
        labels = self.share.new_zeros(len(self), num_classes)
        labels.scatter_add_(1, self.a[:, None], self.share[:, None])
        return labels.scatter_add_(1, self.b[:, None], 1 - self.share[:, None])

    def __len__(self) -> int:
        return self.a.numel()


Target: TypeAlias = Tensor | MixedTarget


class Entries(NamedTuple):
    """Label mass as a list: entry e says that sample ``sample[e]`` has ``mass[e]`` of class ``label[e]``.

    ``sample`` is None when entry e is sample e. ``partner[e]`` is a class whose prediction is not an
    error for this entry (the co-label of a mixed image), or the label itself where there is none. ``whole`` says that
    every mass is known to be 1.
    """

    sample: Tensor | None
    label: Tensor
    mass: Tensor
    partner: Tensor | None = None
    whole: bool = False

    def of(self, per_sample: Tensor) -> Tensor:
        """Rows of a per-sample tensor, one per entry."""
        return per_sample if self.sample is None else per_sample[self.sample]

    def by_class(self, num_classes: int) -> Tensor:
        """The mass of each class, (K,)."""
        return self.mass.new_zeros(num_classes).index_add(0, self.label, self.mass)


def entries(
    target: Target,
    num_classes: int,
    dtype: torch.dtype,
    mixed: str = "masked",
    ignore: int = -100,
    none_ignored: bool = False,
    fixed: bool = False,
) -> Entries:
    """Read any target as entries. Ignored labels stay as entries of mass 0, so shapes do not depend on values.

    Soft labels list their positive ones only, unless ``fixed``: then no shape depends on a value.
    """
    if isinstance(target, MixedTarget):
        return _mixed_entries(target, dtype, mixed, ignore)
    if target.ndim == 2:
        return _soft_entries(target.to(dtype), fixed or torch.compiler.is_compiling())
    target = target.long()  # before comparing: a byte would wrap -100 round to 156
    if none_ignored:
        return Entries(None, target, torch.ones_like(target, dtype=dtype), whole=True)
    kept = target != ignore
    return Entries(None, target * kept, kept.to(dtype))  # an ignored sample as class 0, with mass 0


def hard_counts(target: Target, num_classes: int, ignore: int) -> NDArray[Any] | None:
    """Samples of each class, for hard labels on a CPU of which all are in range and none is ignored; None for others.

    Example:
        >>> hard_counts(torch.tensor([0, 2, 2]), 3, -100), hard_counts(torch.tensor([0, -100]), 3, -100)
        (array([1, 0, 2]), None)
    """
    if not isinstance(target, Tensor) or target.dtype != torch.int64 or target.ndim != 1 or target.device.type != "cpu":
        return None
    labels = target.numpy()
    if not labels.size or labels.view(np.uint64).max() >= num_classes:  # a negative one is a huge one here
        return None
    counts = np.bincount(labels, minlength=num_classes)
    return None if 0 <= ignore < num_classes and counts[ignore] else counts


def label_mass(target: Target, num_classes: int, mixed: str | None = None, ignore: int | None = None) -> Tensor:
    """Label mass of each class in a batch, (K,), float64.

    Example:
        >>> label_mass(torch.tensor([0, 2, 2]), 3)
        tensor([1., 0., 2.], dtype=torch.float64)
    """
    items = entries(target, num_classes, torch.float64, mixed or "masked", -100 if ignore is None else ignore)
    return items.by_class(num_classes)


def _soft_entries(labels: Tensor, fixed: bool) -> Entries:
    if fixed:  # nonzero() has a shape that depends on values: list every pair instead
        count, classes = labels.shape
        sample = torch.arange(count, device=labels.device).repeat_interleave(classes)
        return Entries(sample, torch.arange(classes, device=labels.device).repeat(count), labels.flatten())
    sample, label = labels.nonzero(as_tuple=True)
    return Entries(sample, label, labels[sample, label])


def _mixed_entries(target: MixedTarget, dtype: torch.dtype, mixed: str, ignore: int) -> Entries:
    a, b = target.a.long(), target.b.long()
    kept = (a != ignore) & (b != ignore)
    a, b = a.where(kept, 0), b.where(kept, 0)
    share = target.share.to(dtype).where(kept, 0)
    rest = (1 - share).where(kept, 0)
    if mixed == "dominant":
        return Entries(None, a.where(share >= 0.5, b), kept.to(dtype))
    if mixed == "clean":
        pure = kept & ((share == 1) | (share == 0) | (a == b))
        return Entries(None, a.where(share > 0, b), pure.to(dtype))
    sample = torch.arange(len(target), device=a.device)
    both = torch.cat([sample, sample])
    label = torch.cat([a, b])
    if mixed == "soft":
        return Entries(both, label, torch.cat([share, rest]))
    really = (share > 0) & (rest > 0)
    partner = torch.cat([b.where(really, a), a.where(really, b)])
    return Entries(both, label, torch.cat([share, rest]), partner)


def class_indices(labels: object, who: str) -> Tensor:
    """Labels that must be hard ones, as int64; ``who`` is named to those who bring others. Looks at no value.

    Example:
        >>> class_indices(torch.tensor([2, 0], dtype=torch.uint8), "remix")
        tensor([2, 0])
    """
    if not isinstance(labels, Tensor):
        found = f"a {type(labels).__name__}"
    elif labels.ndim == 1 and not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool):
        return labels.long()
    else:
        found = f"{labels.dtype} of shape {tuple(labels.shape)}"
    take = "labels.long()" if isinstance(labels, Tensor) and labels.ndim == 1 else "labels.argmax(1)"
    raise TypeError(
        f"{who} needs hard labels, (N,) class indices of an integer type; got {found}; take {take}, or a method that "
        "accepts soft labels, such as ce."
    )


def check_target(target: Target, samples: int, num_classes: int, ignore: int = -100) -> None:
    """Shapes and dtypes, which cost nothing to check."""
    if isinstance(target, MixedTarget):
        parts: tuple[tuple[str, Tensor], ...] = (("target.a", target.a), ("target.b", target.b))
    elif isinstance(target, Tensor):
        parts = (("target", target),)
    else:
        convert = "" if target is None else "; convert it with torch.as_tensor"
        raise TypeError(f"target must be a tensor or a MixedTarget, got {type(target).__name__}{convert}.")
    for name, labels in parts:
        if labels.ndim == 2:
            if not labels.is_floating_point():
                flat = labels.shape[1] == 1
                advice = "class indices have shape (N,), take .squeeze(1)" if flat else "convert with .float()"
                raise TypeError(f"soft labels of shape (N, K) must be floating point, got {labels.dtype}; {advice}.")
            if labels.shape != (samples, num_classes):
                raise ValueError(
                    f"soft labels must have the shape of the logits, ({samples}, {num_classes}); "
                    f"got {tuple(labels.shape)}."
                )
        elif labels.ndim != 1 or labels.shape[0] != samples:
            raise ValueError(
                f"{name} must have shape ({samples},) or ({samples}, {num_classes}) to go with the logits; "
                f"got {tuple(labels.shape)}."
            )
        elif labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(f"{name} must hold class indices as integers, got {labels.dtype}; convert with .long().")


def check_target_values(target: Target, num_classes: int, ignore: int = -100) -> bool:
    """Label range and label mass: needs the values, so it costs a synchronisation on an accelerator.

    True says that no label is an ignored one.
    """
    if len(target) == 0:
        return False
    if isinstance(target, MixedTarget):
        first = check_target_values(target.a, num_classes, ignore)
        none_ignored = check_target_values(target.b, num_classes, ignore) and first
        low, high = (float(end) for end in torch.aminmax(target.share))
        if not (low >= 0 and high <= 1):
            raise ValueError(f"the shares of a MixedTarget must lie in [0, 1]; found {low if not low >= 0 else high}.")
        return none_ignored
    if target.ndim == 2:
        sums = target.to(widest(target.device)).sum(1)
        off = (sums - 1).abs()
        worst = int(off.argmax())
        if not float(off[worst]) <= max(1e-3, 2 * torch.finfo(target.dtype).eps):
            raise ValueError(f"soft labels must sum to 1 in each row; row {worst} sums to {float(sums[worst]):.6g}.")
        if float(target.min()) < 0:
            raise ValueError(f"soft labels must not be negative; found {float(target.min()):.6g}.")
        return True
    target = target.long()
    low_label, high_label = (int(end) for end in torch.aminmax(target))
    if low_label >= 0 and high_label < num_classes:
        return not low_label <= ignore <= high_label or not bool((target == ignore).any())
    wrong = target[(target != ignore) & ((target < 0) | (target >= num_classes))]
    if wrong.numel():
        raise ValueError(
            f"labels must lie in [0, {num_classes}) or equal ignore_index ({ignore}); found {int(wrong[0])}. "
            "Check the number of classes, or that labels start at 0."
        )
    return False


def check_finite(logits: Tensor) -> None:
    """NaN and infinity are named as such before they can enter anything that lasts."""
    if not logits.numel() or math.isfinite(float(logits.sum())):
        return
    low, high = (float(end) for end in torch.aminmax(logits))
    if math.isfinite(low) and math.isfinite(high):
        return
    kind = "NaN" if math.isnan(low) or math.isnan(high) else "infinite"
    raise ValueError(
        f"logits contain {kind} values ({int((~torch.isfinite(logits)).sum())} of {logits.numel()} are not finite); "
        "nothing was updated. Lower the learning rate, or check the input and mixed precision."
    )


def warn_of_probabilities(logits: Tensor) -> None:
    """A softmax that was applied already shows: no value is negative, and every row sums to 1."""
    rows = logits.detach().float()
    sums_to_one = (rows.sum(1) - 1).abs().amax() < 4e-3  # bfloat16 keeps a sum to about 2e-3
    if bool(sums_to_one & (rows.amin() >= 0)):
        warnings.warn(
            "CAR expects logits, but every row of this first batch is non-negative and sums to 1, as after a softmax: "
            "pass the output of the model before the softmax, or ignore this if these values are meant to be logits.",
            UserWarning,
            stacklevel=_level_of_caller(),
        )


def _level_of_caller() -> int:
    """How far up the first line is that belongs neither to this package nor to torch."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (PACKAGE, "torch"):
        level, frame = level + 1, frame.f_back
    return level - 1
