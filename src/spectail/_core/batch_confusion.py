"""One batch's soft confusion, ready to enter the history and to give its gradient back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..targets import Entries
from .surrogate import SoftRows, Surrogate, fast_rows, soft_gradient, soft_rows
from .workspace import Scratch, take

CHUNK = 1 << 25  # numbers in one piece of the surrogate; only soft labels over many classes need more than one
FAINT = 1e-30  # a softmax below this is close to the end of float32


class BatchConfusion:
    """The soft confusion of the entries of a batch.

    Args:
        scores: (N, K) logits, detached.
        items: the labels as entries.
        mass: (K,) label mass per class, over all ranks when there are several.
        kind: which surrogate.
        scratch: memory to compute in, or None.
    """

    def __init__(
        self, scores: Tensor, items: Entries, mass: Tensor, kind: Surrogate, scratch: Scratch | None = None
    ) -> None:
        self.scores, self.items, self.mass, self.kind, self.scratch = scores, items, mass, kind, scratch
        self._whole: SoftRows | None = None

    def spread(self, per_class: Tensor) -> Tensor:
        """A number per class as one per entry, times the mass of the entry."""
        by_entry = per_class.index_select(0, self.items.label)
        return by_entry if self.items.whole else by_entry.mul_(self.items.mass)

    def add_to(self, columns: Tensor, at: Tensor, weight: Tensor) -> None:
        """Add each entry's row, times its weight, to the row of ``columns`` that ``at`` names; names may repeat."""
        for piece in self._pieces():
            rows = self._rows(piece).rows
            room = take(self.scratch, "change", (rows.shape[0], rows.shape[1]), rows)
            columns.index_add_(0, _part(at, piece), torch.mul(rows, _part(weight, piece)[:, None], out=room))

    def errors(self) -> Tensor:
        """The soft error of each entry, the sum of its row."""
        parts = [self._rows(piece).rows.sum(1) for piece in self._pieces()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def entropy(self) -> Tensor | None:
        """The mean cross entropy of the samples, if the softmax that was taken gives it too; before the gradient."""
        if self._whole is None or self._whole.chance is None or not self.items.whole:
            return None
        chance = self._whole.chance
        if float(chance.min()) < FAINT:  # its logarithm would not be exact, or infinite
            return F.cross_entropy(self.scores, self.items.label)
        return chance.log().mean().neg_()

    def gradient(self, left: Tensor | None, scale: Tensor, entropy: float = 0.0) -> Tensor:
        """Gradient of the sum over entries of ``scale * rows . left`` with respect to the logits, (N, K).

        Without ``left`` it is all ones. ``entropy`` times that of the summed cross entropy is added to it.
        """
        result = None
        for piece in self._pieces():
            rows, self._whole = self._rows(piece), None  # used up
            part = soft_gradient(rows, left, _part(scale, piece), self._logits(piece), self.kind, entropy)
            if self.items.sample is None:
                return part
            result = torch.zeros_like(self.scores) if result is None else result
            result.index_add_(0, _part(self.items.sample, piece), part)
        return torch.zeros_like(self.scores) if result is None else result

    def objective(self, scores: Tensor, left: Tensor | None, scale: Tensor, entropy: float = 0.0) -> Tensor:
        """The same sum as a differentiable function of the logits, for derivatives of the gradient."""
        rows = soft_rows(self.items.of(scores), self.items.label, self.items.partner, self.kind)
        total = ((rows.sum(1) if left is None else rows @ left) * scale).sum()
        return total + entropy * F.cross_entropy(scores, self.items.label, reduction="sum") if entropy else total

    def _fits(self) -> bool:
        return self.items.sample is None or torch.compiler.is_compiling() or self._numbers() <= CHUNK

    def _numbers(self) -> int:
        return self.items.label.numel() * self.scores.shape[1]

    def _pieces(self) -> Iterator[slice | None]:
        """Slices of the entries; None stands for all of them."""
        if self._fits():
            yield None
            return
        length = max(1, CHUNK // self.scores.shape[1])
        for start in range(0, self.items.label.numel(), length):
            yield slice(start, start + length)

    def _rows(self, piece: slice | None) -> SoftRows:
        if self._whole is not None:
            return self._whole
        partner = _part(self.items.partner, piece) if self.items.partner is not None else None
        rows = fast_rows(self._logits(piece), _part(self.items.label, piece), partner, self.kind, self.scratch)
        if piece is None:
            self._whole = rows  # computed once, used for the history and for the gradient
        return rows

    def _logits(self, piece: slice | None) -> Tensor:
        if self.items.sample is None:
            return self.scores
        sample = _part(self.items.sample, piece)
        room = take(self.scratch, "logits", (sample.numel(), self.scores.shape[1]), self.scores)
        return torch.index_select(self.scores, 0, sample, out=room)


def _part(values: Tensor, piece: slice | None) -> Tensor:
    return values if piece is None else values[piece]
