"""The covariance of the features of each class, followed batch by batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._core import waits
from .._core.distributed import find_group, summed
from .._utils.checks import check_choice
from ..targets import class_indices

KINDS = ("full", "diagonal")
MOST = 2**20
"""Numbers of the outer products that are made at once."""


class Present(NamedTuple):
    """Classes of the batch of all ranks."""

    counts: Tensor
    """(K,) how often each occurs."""
    classes: Tensor
    """Those that occur."""
    slot: Tensor
    """(N,) where among these each label of this rank is."""


class ClassCovariance(nn.Module):
    """Count, mean and population covariance of all features seen of each class, exactly and without decay.

    A batch with q features of a class, whose own mean is m' and population covariance V', gives with r = q / (q + n)

        Sigma <- (1 - r) Sigma + r V' + r (1 - r) (mu - m') (mu - m')^T,   mu <- (1 - r) mu + r m',   n <- n + q

    Args:
        num_classes: K.
        num_features: A.
        kind: ``"full"`` matrices (K, A, A), or the ``"diagonal"`` (K, A) only.

    State and distributed: ``count`` (K,), ``mean`` (K, A) and ``cov`` are buffers. With several processes every rank
    must call :meth:`update`; the sums over the global batch are exchanged for the classes that are in it, so that all
    ranks hold the same numbers, those of one process.

    Example:
        >>> seen = ClassCovariance(2, 2)
        >>> seen.update(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([0, 0]))
        >>> seen.update(torch.tensor([[4.0, 4.0]]), torch.tensor([0]))
        >>> seen.cov[0]
        tensor([[1.5556, 2.0000],
                [2.0000, 2.6667]])
    """

    count: Tensor
    mean: Tensor
    cov: Tensor

    def __init__(self, num_classes: int, num_features: int, kind: str = "full") -> None:
        super().__init__()
        check_choice("kind", kind, KINDS)
        self.kind = kind
        shape = (num_classes, num_features)
        self.register_buffer("count", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("cov", torch.zeros(shape if kind == "diagonal" else (*shape, num_features)))

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor, found: Present | None = None) -> None:
        """Take in the (N, A) features of a batch and their (N,) labels; ``found`` is what :func:`present` said."""
        labels = class_indices(labels, "ClassCovariance")
        if features.ndim != 2 or features.shape[1] != self.mean.shape[1] or len(features) != len(labels):
            raise ValueError(
                f"features must be (N, {self.mean.shape[1]}) with N labels; got {tuple(features.shape)} and "
                f"{len(labels)} labels."
            )
        counts, classes, slot = present(labels, len(self.count)) if found is None else found
        values = features.to(self.mean.dtype)
        number = counts[classes].to(values.dtype)
        [total] = summed(torch.zeros_like(self.mean[classes]).index_add_(0, slot, values))
        mean = total / number[:, None]
        [spread] = summed(self._products(values - mean[slot], slot, len(classes)))
        share = (number / (number + self.count[classes]))[:, None]
        gap = self.mean[classes] - mean
        self.mean[classes] -= share * gap
        self.count += counts
        if self.kind == "full":
            share, number, gap = share[..., None], number[:, None], gap[:, :, None] * gap[:, None, :]
        else:
            gap = gap * gap
        self.cov[classes] = (1 - share) * (self.cov[classes] + share * gap) + share * spread / number[:, None]

    def _products(self, values: Tensor, slot: Tensor, classes: int) -> Tensor:
        """Summed outer products, or squares, of the rows of each class."""
        width = values.shape[1]
        if self.kind == "diagonal":
            return values.new_zeros(classes, width).index_add_(0, slot, values * values)
        found = values.new_zeros(classes, width, width)
        size = max(1, MOST // width**2)
        for rows, where in zip(torch.split(values, size), torch.split(slot, size), strict=True):
            found.index_add_(0, where, rows[:, :, None] * rows[:, None, :])
        return found


def present(labels: Tensor, num_classes: int, known: Tensor | None = None) -> Present:
    """Which classes the labels of all ranks have.

    How many they are decides about shapes, so the host must know. With the labels on the host too, ``known``, it need
    not wait for a device; of the labels of other ranks it hears through the device.

    Example:
        >>> present(torch.tensor([4, 1, 4]), 5)
        Present(counts=tensor([0, 1, 0, 0, 2]), classes=tensor([1, 4]), slot=tensor([1, 0, 1]))
    """
    labels = labels.long()
    [counts] = summed(labels.new_zeros(num_classes).index_add_(0, labels, torch.ones_like(labels)))
    if known is None or find_group("auto") is not None:
        classes = counts.nonzero().squeeze(1)
    else:
        classes = waits.sent(known.long().bincount(minlength=num_classes).nonzero().squeeze(1), labels.device)
    return Present(counts, classes, (counts > 0).cumsum(0)[labels] - 1)
