"""Accuracy of head, medium and tail classes and of the worst class, as a torchmetrics metric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.dtypes import holds_float64
from .._utils.versions import need
from ..counts import CountsLike, as_counts

need("torchmetrics")

from torchmetrics import Metric  # noqa: E402 - not before its version is known


class GroupAccuracy(Metric):
    """Accuracies of groups of classes, in [0, 1].

    ``compute()`` returns a dictionary of tensors: ``overall`` (over samples), ``balanced`` (mean over classes),
    ``head``, ``medium`` and ``tail`` (mean over the classes of a group), ``worst``, the lowest of the class
    accuracies, and ``worst_class``, its label. A class without samples is left out; where nothing was measured an
    accuracy is NaN and ``worst_class`` is -1.

    Args:
        class_counts: training images per class, which define the groups.
        convention: rule for head, medium and tail, see :meth:`spectail.ClassCounts.groups`.
        ignore_index: samples with this label are left out.
        **options: those of :class:`torchmetrics.Metric`.

    Shape:
        preds: (N,) class indices, or (N, K) logits or probabilities; target (N,).

    State and distributed:
        Two (K,) tensors of whole numbers, summed over ranks by ``compute``. As in every torchmetrics metric they are in
        ``state_dict`` after ``persistent(True)``. In Lightning write ``self.log_dict(metric.compute())``, because
        ``self.log`` takes a metric with one number only.

    Example:
        >>> metric = GroupAccuracy([500, 60, 5])
        >>> metric.update(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 2]))
        >>> {name: round(float(value), 2) for name, value in metric.compute().items()}
        {'overall': 0.75, 'balanced': 0.67, 'head': 1.0, 'medium': 1.0, 'tail': 0.0, 'worst': 0.0, 'worst_class': 2.0}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    right: Tensor
    total: Tensor

    def __init__(
        self, class_counts: CountsLike, convention: str = "count", ignore_index: int = -100, **options: Any
    ) -> None:
        super().__init__(**options)
        counts = as_counts(class_counts, on_empty="ignore")
        self.num_classes, self.ignore_index = counts.num_classes, ignore_index
        self.groups = counts.groups(convention)
        for name in ("right", "total"):
            self.add_state(name, torch.zeros(self.num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch."""
        target = self._labels("target", target)
        if preds.ndim == 2:
            if preds.shape[1] != self.num_classes or not preds.is_floating_point():
                raise ValueError(
                    f"preds must be class indices (N,) or scores (N, {self.num_classes}); "
                    f"got {tuple(preds.shape)}, {preds.dtype}."
                )
            preds = preds.argmax(1)
        preds = self._labels("preds", preds)
        if len(preds) != len(target):
            raise ValueError(f"preds and target must have as many samples; got {len(preds)} and {len(target)}.")
        kept = target != self.ignore_index
        preds, target = preds[kept], target[kept]
        if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < self.num_classes:
            raise ValueError(
                f"target must lie in [0, {self.num_classes}) or equal ignore_index ({self.ignore_index}); "
                f"got {int(target.min())} to {int(target.max())}."
            )
        where = self._where()
        preds, target = preds.to(where), target.to(where)
        right = self.right.to(where).index_add_(0, target, (preds == target).long())
        total = self.total.to(where).index_add_(0, target, torch.ones_like(target))
        self.right, self.total = right.to(self.right.device), total.to(self.total.device)

    def compute(self) -> dict[str, Tensor]:
        """Every figure, from the samples of all ranks."""
        right, total = self.right.to(self._where()), self.total.to(self._where())
        accuracy = right.double() / total  # NaN for a class without a sample
        absent = accuracy.isnan()
        worst = accuracy.where(~absent, 2.0).argmin()
        shares = {
            "overall": right.sum().double() / total.sum(),
            "balanced": accuracy.nanmean(),
            **{group: accuracy[members].nanmean() for group, members in self.groups.items()},
            "worst": accuracy[worst],
        }
        label = torch.where(absent.all(), -1, worst)
        figures = {**{name: value.float() for name, value in shares.items()}, "worst_class": label}
        return {name: value.to(self.right.device) for name, value in figures.items()}

    def _where(self) -> torch.device:
        """Where to count and divide: an Apple GPU has no float64, and cannot add int64 at an index."""
        device = self.right.device
        return device if holds_float64(device) else torch.device("cpu")

    def _labels(self, name: str, labels: Tensor) -> Tensor:
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"{name} must be class indices of shape (N,); got {tuple(labels.shape)}, {labels.dtype}.")
        return labels.long()
