"""Geometric-mean loss (Du & Wu 2023, "No One Left Behind: Improving the Worst Categories in Long-Tailed Learning")."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .._core.distributed import find_group, summed
from .._core.dtypes import at_least_single
from .._utils.checks import check_choice
from ..counts import CountsLike, as_counts
from ..targets import check_target, entries
from .base import Target, WeightedLoss, or_one

DIVISORS = ("present", "all")


class GeometricMeanLoss(WeightedLoss):
    """L = -(1/C) sum over classes c of log q_c, where q_c is the mean over the batch's samples of class c of the
    Balanced-Softmax probability of their label: the (negative log) geometric mean of soft recalls.

    A single class that is always wrong makes it large. It is defined for a batch, not for a sample: it does not add up
    over micro-batches, and it needs batches that are large relative to the number of classes. With one sample per class
    it is the mean Balanced-Softmax loss.

    Args:
        class_counts: training images per class; pass equal counts if the sampler is already class-balanced.
        divide: C, the classes ``"present"`` in the batch or ``"all"`` (absent ones then count as perfect).
        weight: (K,) weights of the classes, or None.
        ignore_index: hard labels to leave out.

    State and distributed: counts and weights are buffers. With ``sync = True`` (set by the training engine) the
    batches of all ranks are one batch, and averaging the gradients over ranks gives those of one process.

    Example:
        >>> z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]]).double()
        >>> round(float(GeometricMeanLoss([100, 20, 5])(z, torch.tensor([0, 1, 2, 2]))), 5)
        1.37312
    """

    log_prior: Tensor

    def __init__(
        self,
        class_counts: CountsLike,
        divide: str = "present",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(weight)
        check_choice("divide", divide, DIVISORS)
        self.divide, self.ignore_index, self.sync = divide, ignore_index, False
        self.register_buffer("log_prior", as_counts(class_counts, advice="Drop the class.").frequencies.log())

    def forward(self, logits: Tensor, target: Target) -> Tensor:
        self.check(logits)
        check_target(target, logits.shape[0], logits.shape[1], self.ignore_index)
        with torch.autocast(logits.device.type, enabled=False):
            logits = at_least_single(logits)
            log_q = (logits + self.log_prior.to(logits)).log_softmax(1)
            recall, mass = self._log_recalls(log_q, _masses(target, log_q, self.ignore_index))
            present = mass > 0
            weight = present.to(logits) if self.weight is None else self.weight.to(logits) * present
            count = weight.sum() if self.divide == "present" else logits.new_full((), logits.shape[1])
            return -(weight * recall.where(present, 0)).sum() / or_one(count)

    def _log_recalls(self, log_q: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """(K,) log of the mean probability of the label, and label mass, of every class. In logs: q may underflow."""
        group = find_group("auto") if self.sync else None
        top = F.pad(log_q.where(mass > 0, -torch.inf), (0, 0, 0, 1), value=-torch.inf).amax(0).detach()
        if group is not None:
            dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        top = top.where(top.isfinite(), 0)
        scaled = (mass * (log_q - top).where(mass > 0, 0).exp()).sum(0)
        total = mass.sum(0)
        if group is not None:
            # the value is that of all ranks; the gradient is this rank's part, times the ranks that will average it
            everyone, total = summed(scaled, total)
            scaled = everyone + dist.get_world_size(group) * (scaled - scaled.detach())
        return top + scaled.clamp_min(torch.finfo(log_q.dtype).tiny).log() - or_one(total).log(), total


def _masses(target: Target, like: Tensor, ignore: int) -> Tensor:
    """(N, K): label mass of every sample on every class."""
    if isinstance(target, Tensor) and target.ndim == 2:
        return target.to(like)
    items = entries(target, like.shape[1], like.dtype, "soft", ignore)
    shape = (1 if items.sample is None else 2, len(like))  # one label for each sample, or two
    return torch.zeros_like(like).scatter_add_(1, items.label.view(shape).T, items.mass.view(shape).T)
