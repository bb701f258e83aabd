"""What a classifier gets right, class by class: groups, the worst class with an interval, means that punish zeros,
calibration. All of it from one integer confusion matrix and a few calibration sums.

A class without test images has no accuracy: it is None everywhere, never 0, and no mean counts it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ._core.dtypes import holds_float64
from ._core.pairs import Pairs, Z, wilson_limits
from ._core.sparse_svd import confusion_spectrum
from .counts import CountsLike, as_counts
from .targets import check_finite

BINS = 15
LOWEST = {"bottom_10pct": 10, "bottom_20pct": 5}
"""Means of the lowest classes: one class in so many, rounded up."""


def wilson_interval(right: int, total: int, z: float = Z) -> tuple[float, float] | None:
    """Wilson's 95 % confidence interval of a proportion, good for small numbers too; None without observations.

    Example:
        >>> low, high = wilson_interval(10, 100)
        >>> round(low, 3), round(high, 3)
        (0.055, 0.174)
    """
    low, high = wilson_limits(right, total, z)
    return (float(low), float(high)) if total else None


def as_tensor(name: str, values: Any) -> Tensor:
    """A tensor, also from an array."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(values))
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor or an array of numbers; got {type(values).__name__}.")
    return values


def _countable(batch: Tensor) -> Tensor:
    """A batch where the state is: Apple GPUs cannot hold it."""
    return batch if holds_float64(batch.device) else batch.cpu()


class Metrics(nn.Module):
    """Collects predictions batch by batch; ``compute()`` returns every figure, with accuracies in percent.

    Args:
        class_counts: training images per class, which define the groups and the weights of the spectral norm.
        convention: rule for head, medium and tail, see :meth:`spectail.ClassCounts.groups`.

    **State and distributed.** The state has a fixed size: a (K, K) integer matrix, rows predicted, columns true, and
    sums over 15 confidence bins. ``sync()`` adds it up over all processes. The sums are float64: moved to an Apple GPU,
    which has none, the state stays on the CPU, and batches from there are counted on the CPU.

    Example:
        >>> metrics = Metrics([500, 60, 5])
        >>> metrics.update(torch.eye(3)[[0, 0, 1, 1]] * 9, torch.tensor([0, 0, 1, 2]))
        >>> result = metrics.compute()
        >>> result["overall"], result["per_class"], result["tail"]
        (75.0, [100.0, 100.0, 0.0], 0.0)
    """

    confusion: Tensor
    bins: Tensor
    sums: Tensor

    def __init__(self, class_counts: CountsLike, convention: str = "count") -> None:
        super().__init__()
        self.counts = as_counts(class_counts, on_empty="ignore")
        self.groups = self.counts.groups(convention)
        self.convention = convention
        size = len(self.counts)
        self.register_buffer("confusion", torch.zeros(size, size, dtype=torch.int32))
        self.register_buffer("bins", torch.zeros(3, BINS, dtype=torch.float64))  # samples, confidence, right
        self.register_buffer("sums", torch.zeros(2, dtype=torch.float64))  # negative log likelihood, Brier

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch of the logits that inference uses."""
        size = len(self.counts)
        logits = as_tensor("logits", logits)
        if logits.ndim != 2 or logits.shape[1] != size:
            raise ValueError(f"logits must have shape (N, {size}); got {tuple(logits.shape)}.")
        target = self._labels("target", target)
        if len(target) != len(logits):
            raise ValueError(
                f"target must have shape ({len(logits)},) to go with the logits; got {tuple(target.shape)}."
            )
        logits = _countable(logits)
        check_finite(logits)
        predicted = add_calibration(self.bins, self.sums, logits, target)
        self.update_predicted(predicted, target)

    @torch.no_grad()
    def update_predicted(self, predicted: Tensor, target: Tensor) -> None:
        """Add a batch of predicted classes; without logits there is no calibration."""
        size = len(self.counts)
        predicted, target = self._labels("predicted", predicted), self._labels("target", target)
        if len(predicted) != len(target):
            raise ValueError(f"predicted and target must have one shape (N,); got {len(predicted)} and {len(target)}.")
        ones = torch.ones_like(target, dtype=torch.int32)
        self.confusion.view(-1).index_add_(0, predicted * size + target, ones)

    def _labels(self, name: str, labels: Tensor) -> Tensor:
        """Class indices, checked, as int64."""
        size = len(self.counts)
        labels = _countable(as_tensor(name, labels))
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"{name} must be class indices of shape (N,); got {tuple(labels.shape)}, {labels.dtype}.")
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < size:
            raise ValueError(
                f"{name} must lie in [0, {size}); got {int(labels.min())} to {int(labels.max())}. "
                "Do the model and the data have the same classes?"
            )
        return labels.long()

    def sync(self) -> None:
        """Add up the state of all processes of a distributed job; every process must call it."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for state in (self.confusion, self.bins, self.sums):
                torch.distributed.all_reduce(state)

    def _apply(self, fn: Any, recurse: bool = True) -> Metrics:
        """A move to a device without float64 becomes one to the CPU: rounded sums would be other figures."""
        possible = holds_float64(fn(torch.zeros(0)).device)
        super()._apply(fn if possible else Tensor.cpu, recurse)  # type: ignore[no-untyped-call]
        return self

    def reset(self) -> None:
        for state in (self.confusion, self.bins, self.sums):
            state.zero_()

    def compute(self) -> dict[str, Any]:
        """Every figure: accuracies in percent, None where there is nothing to measure."""
        names = self.counts.names or tuple(map(str, range(len(self.counts))))
        return figures_of(
            self._pairs(), names, self.groups, self.convention, self.spectral_norm(), self.bins.cpu(), self.sums.cpu()
        )

    def spectral_norm(self, r0: float = 0.2) -> float:
        """Spectral norm of the hard confusion matrix (shares of each true class, zero diagonal) times Lambda."""
        return float(self.spectrum(1, r0)[0])

    def spectrum(self, count: int = 10, r0: float = 0.2) -> NDArray[np.float64]:
        """The largest singular values of that matrix, in descending order."""
        weights = (self.counts.frequencies + r0).rsqrt().numpy()  # a class without training images is fine here
        return confusion_spectrum(self._pairs(), weights, count)[0]

    def _pairs(self) -> Pairs:
        matrix = self.confusion.cpu()
        rows, columns = matrix.nonzero(as_tuple=True)
        return Pairs(rows.numpy(), columns.numpy(), matrix[rows, columns].long().numpy(), len(self.counts))


def figures_of(
    pairs: Pairs,
    names: Sequence[str],
    groups: Mapping[str, Sequence[int]],
    convention: str,
    spectral_norm: float,
    bins: Tensor,
    sums: Tensor,
) -> dict[str, Any]:
    """Every figure of ``results.json`` that follows from predictions, see :meth:`Metrics.compute`.

    ``groups`` are the classes of head, medium and tail by ``convention``; ``bins`` and ``sums`` are those of
    :func:`add_calibration`, all 0 where there are no scores.
    """
    right, total, named = (torch.from_numpy(part) for part in (pairs.right, pairs.total, pairs.named))
    if int(total.sum()) == 0:
        raise ValueError("there is nothing to measure: no prediction was added.")
    present = total > 0
    recall = right.double() / total
    values = recall[present]
    per_class = [100 * float(value) if seen else None for value, seen in zip(recall, present, strict=True)]
    f1 = 2 * right[present].double() / (total + named)[present]
    shares = class_figures(right, total, groups)
    zero = shares["zero_classes"]
    lowest = torch.where(present, recall, math.inf).sort(stable=True).indices[: min(5, len(values))].tolist()
    intervals = {label: _percent(wilson_interval(int(right[label]), int(total[label]))) for label in lowest}
    worst, *following = lowest
    return {
        **shares,
        "worst_test_class": names[worst],
        "worst_test_interval": intervals[worst],
        "worst_test_next": [
            {"class": names[label], "accuracy": per_class[label], "interval": intervals[label]} for label in following
        ],
        "harmonic_mean": 0.0 if zero else 100 / float((1 / values).mean()),
        "geometric_mean": 0.0 if zero else 100 * math.exp(float(values.log().mean())),
        "macro_f1": 100 * float(f1.mean()),
        **_calibration(bins, sums),
        "spectral_norm": spectral_norm,
        "per_class": per_class,
        "per_class_images": total.tolist(),
        "groups": {"convention": convention, **{group: len(labels) for group, labels in groups.items()}},
    }


def class_figures(right: Tensor, total: Tensor, groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The figures that follow from right predictions and test images of each class, (K,) and (K,), in percent.

    Example:
        >>> found = class_figures(torch.tensor([9, 2]), torch.tensor([10, 10]), {"head": [0], "tail": [1]})
        >>> found["overall"], found["tail"], found["worst_test"]
        (55.0, 20.0, 20.0)
    """
    share = 100 * right.double() / total  # nan for a class without test images
    values = share[total > 0].sort().values
    members = {group: share[list(labels)] for group, labels in groups.items()}
    return {
        "overall": 100 * float(right.sum()) / float(total.sum()),
        "balanced": float(values.mean()),
        **{group: float(own.nanmean()) if own.isfinite().any() else None for group, own in members.items()},
        "worst_test": float(values[0]),
        "zero_classes": int((values == 0).sum()),
        **{name: float(values[: math.ceil(len(values) / parts)].mean()) for name, parts in LOWEST.items()},
    }


def add_calibration(bins: Tensor, sums: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """Add a batch to the sums that calibration is computed from, and return the predicted classes.

    Args:
        bins: (3, 15) float64: samples, confidence and right ones by confidence.
        sums: (2,) float64: negative log likelihood and Brier score.
        logits: (N, K).
        target: (N,).
    """
    log_prob = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32).log_softmax(1)
    predicted = logits.argmax(1)  # of the logits: softmax rounds close ones to a tie
    confidence = log_prob.gather(1, predicted[:, None]).squeeze(1).exp()
    right = (predicted == target).double()
    own = (confidence.double() * BINS).ceil().long().clamp_(1, BINS) - 1  # bins are open below, closed above
    for row, values in enumerate((torch.ones_like(right), confidence.double(), right)):
        bins[row].index_add_(0, own, values)
    probability = log_prob.exp()
    true = probability.gather(1, target[:, None]).squeeze(1)
    sums[0] -= log_prob.gather(1, target[:, None]).double().sum()
    sums[1] += (probability.square().sum(1) - 2 * true + 1).double().sum()
    return predicted


def _calibration(bins: Tensor, sums: Tensor) -> dict[str, float | None]:
    samples, confidence, right = bins
    total = float(samples.sum())
    if not total:
        return {"ece": None, "nll": None, "brier": None}
    gap = float((confidence - right).abs().sum()) / total
    return {"ece": 100 * gap, "nll": float(sums[0]) / total, "brier": float(sums[1]) / total}


def _percent(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [100 * bound for bound in interval]
