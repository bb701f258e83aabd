"""One batch's soft confusion, ready to enter the history and to give its gradient back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from .distributed import sum_columns
from .scratch import Scratch, take
from .surrogate import SoftRows, Surrogate, soft_gradient, soft_rows
from .targets import Entries

CHUNK = 1 << 25  # numbers in one piece of the surrogate; only soft labels over many classes need more than one


class BatchConfusion:
    """The soft confusion of the entries of a batch.

    Args:
        scores: (N, K) logits, detached.
        items: the labels as entries.
        mass: (K,) label mass per class, over all ranks when there are several.
        kind: which surrogate.
    """

    def __init__(self, scores: Tensor, items: Entries, mass: Tensor, kind: Surrogate) -> None:
        self.usable = True  # False if every sample is ignored, or none is clean
        self.scratch: Scratch | None = None  # memory to compute in
        self.scores, self.items, self.mass, self.kind = scores, items, mass, kind
        self.divisor = mass.clamp_min(1)
        self.share = items.mass / self.divisor.index_select(0, items.label)
        self._whole: SoftRows | None = None

    def columns(self, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``(label, rows, share, pull)``: what enters the columns of the classes ``label``, which may repeat.

        Column j of the batch's matrix is the sum of ``share * rows`` over its class; ``pull`` adds up to min(m_j, 1).
        """
        if group is None and self._fits():
            return self.items.label, self._rows(slice(None)).rows, self.share, self.share
        present = self.mass.nonzero().flatten()
        place = torch.full_like(self.mass, -1, dtype=torch.int64)
        place[present] = torch.arange(present.numel(), device=present.device)
        columns = self.scores.new_zeros(present.numel(), self.scores.shape[1])
        for piece in self._pieces():
            at = place[self.items.label[piece]]
            some = at >= 0  # an ignored sample may name a class that no one has
            rows = self._rows(piece).rows * self.items.mass[piece, None]
            columns.index_add_(0, at[some], rows[some])
        if group is not None:
            columns = sum_columns(columns, group)
        share = 1 / self.divisor[present]
        return present, columns, share, self.mass[present] * share

    def gradient(self, left: Tensor, right: Tensor) -> Tensor:
        """Gradient of ``left^T C~ right`` with respect to the logits, (N, K)."""
        scale = self.share * right.index_select(0, self.items.label)
        result = None
        for piece in self._pieces():
            label = self.items.label[piece]
            rows, self._whole = self._rows(piece), None  # used up
            part = soft_gradient(rows, left, scale[piece], self._logits(piece), label, self.kind)
            if self.items.sample is None:
                return part
            result = torch.zeros_like(self.scores) if result is None else result
            result.index_add_(0, self.items.sample[piece], part)
        return torch.zeros_like(self.scores) if result is None else result

    def objective(self, scores: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """``left^T C~ right`` as a differentiable function of the logits, for derivatives of the gradient."""
        rows = soft_rows(self.items.of(scores), self.items.label, self.items.partner, self.kind).rows
        return (rows @ left * self.share * right[self.items.label]).sum()

    def _fits(self) -> bool:
        return self.items.sample is None or torch.compiler.is_compiling() or self._numbers() <= CHUNK

    def _numbers(self) -> int:
        return self.items.label.numel() * self.scores.shape[1]

    def _pieces(self) -> Iterator[slice]:
        if self._fits():
            yield slice(None)
            return
        length = max(1, CHUNK // self.scores.shape[1])
        for start in range(0, self.items.label.numel(), length):
            yield slice(start, start + length)

    def _rows(self, piece: slice) -> SoftRows:
        if self._whole is not None:
            return self._whole
        partner = self.items.partner[piece] if self.items.partner is not None else None
        rows = soft_rows(self._logits(piece), self.items.label[piece], partner, self.kind, self.scratch)
        if self._fits():
            self._whole = rows  # computed once, used for the history and for the gradient
        return rows

    def _logits(self, piece: slice) -> Tensor:
        if self.items.sample is None:
            return self.scores
        sample = self.items.sample[piece]
        room = take(self.scratch, "logits", (sample.numel(), self.scores.shape[1]), self.scores)
        return torch.index_select(self.scores, 0, sample, out=room)
