"""The definition of CAR: thirty lines of plain torch, to read, to adapt and to test against."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .counts import CountsLike, as_counts
from .functional import class_weights, soft_confusion
from .targets import Target, label_mass


class CARReference(nn.Module):
    r"""CAR as its formula reads: a dense average, autograd and an SVD at every step.

    It has the options of :class:`~spectail.CAR` that change the value, but not its speed, its support for several ranks
    or its checks of the input. ``CAR`` gives the same values and gradients; this class defines them.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> logits, labels = torch.randn(8, 3), torch.arange(8) % 3
        >>> from spectail import CAR
        >>> torch.allclose(CARReference([500, 50, 5])(logits, labels), CAR([500, 50, 5])(logits, labels))
        True
    """

    def __init__(
        self,
        class_counts: CountsLike,
        *,
        beta: float = 0.5,
        r0: float = 0.2,
        ema: str = "batch",
        ema_start: str = "zero",
        weighting: str | None = "frequency",
        normalize_weights: bool = False,
        prior_shift: float = 0.0,
        norm: str = "spectral",
        sharpness: float = 20.0,
        **surrogate: Any,
    ) -> None:
        super().__init__()
        counts = as_counts(class_counts, surrogate.pop("on_empty", "error"))
        weights = class_weights(counts, r0, normalize_weights, "ignore", torch.float64)
        self.beta, self.ema, self.ema_start, self.surrogate = beta, ema, ema_start, surrogate
        self.norm, self.sharpness = norm, sharpness
        self.weights = weights if weighting else torch.ones_like(weights)
        self.shift = prior_shift * (counts.counts.clamp_min(1).double() / counts.total).log()
        self.confusion = torch.zeros(len(counts), len(counts), dtype=torch.float64)
        self.known = torch.full((len(counts),), ema_start == "zero")

    def forward(self, logits: Tensor, target: Target) -> Tensor:
        """The regulariser of the history after this batch; in training mode the history moves."""
        scores = logits.double() + self.shift
        batch = soft_confusion(scores, target, **self.surrogate)
        mass = label_mass(target, len(self.weights), self.surrogate.get("mixed"), self.surrogate.get("ignore_index"))
        if not mass.any():  # no label: nothing to say, nothing to learn
            return logits.sum() * 0
        rate = 1 - self.beta * self.known.double()  # a column's first estimate may seed it, without gradient
        forgotten = rate * (mass.clamp_max(1) if self.ema == "class" else 1)
        average = (1 - forgotten) * self.confusion + rate * torch.where(self.known, batch, batch.detach())
        if self.training and torch.is_grad_enabled():
            self.confusion = average.detach()
            self.known = self.known | (mass > 0) | (self.ema == "batch")
        weighted = average * self.weights
        if self.norm == "spectral":
            norm: Tensor = torch.linalg.matrix_norm(weighted, 2)
        else:
            errors = weighted.sum(0)
            fixed = errors.detach()
            norm = errors @ (self.sharpness * fixed / fixed.max().clamp_min(1e-300)).softmax(0)
        return (norm + 0 * logits.sum()).to(logits.dtype)
