"""The running confusion matrix: stored by class, decayed by one number, holding only the classes that still matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .precision import widest
from .scratch import Scratch, take
from .spectral import RECYCLED, Subspace

LIVE_FROM = 2048  # with batch averaging, more classes than this are stored sparsely
FORGET = 1e-6  # a stored column this far below the spectral norm is dropped
SMALLEST = 2.0**-30  # the lazy factor is multiplied in before it gets smaller than this


class History(nn.Module):
    r"""The weighted average confusion :math:`\hat C \Lambda`, one row per class (that is, by columns).

    - ``factor * rows`` is the matrix: decaying it by beta is one multiplication of ``factor``.
    - With ``live`` storage only classes seen lately have a row; ``classes`` says which, and the rest are 0. A row is
      dropped when its column sum is below ``FORGET`` times the spectral norm. Entries are non-negative, so the norm
      falls by at most beta a step, and so does a stored column: what was negligible when dropped stays so.
    - ``weights`` records, in float32, the Lambda inside the rows. A state saved under another Lambda is
      rescaled when it is loaded.
    - ``basis`` and ``images`` are the search space that the spectral solver carries along.

    All tensors are buffers, so a saved state continues bit for bit.
    """

    weights: Tensor
    rows: Tensor
    classes: Tensor
    place: Tensor
    sums: Tensor
    factor: Tensor
    steps: Tensor
    seen: Tensor
    basis: Tensor
    images: Tensor

    def __init__(self, weights: Tensor, live: bool) -> None:
        super().__init__()
        self.num_classes = weights.numel()
        self.live = live
        self.register_buffer("weights", weights.clone())
        self.reset()

    def reset(self, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> None:
        size = 0 if self.live else self.num_classes
        self.register_buffer("rows", torch.zeros(size, self.num_classes, dtype=dtype, device=device))
        self.register_buffer("classes", torch.arange(size, device=device))
        self.register_buffer("sums", torch.zeros(size, dtype=dtype, device=device))
        self.register_buffer("factor", torch.ones((), dtype=widest(device), device=device))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("seen", torch.zeros(self.num_classes, dtype=torch.bool, device=device))
        self.register_buffer("basis", torch.zeros(RECYCLED, self.num_classes, dtype=dtype, device=device))
        self.register_buffer("images", torch.zeros(RECYCLED, size, dtype=dtype, device=device))
        self._index()

    @property
    def matrix(self) -> Tensor:
        """The stored rows that are in use."""
        return self.rows[: self.classes.numel()]

    @property
    def space(self) -> Subspace:
        return Subspace(self.basis, self.images)

    def dense(self) -> Tensor:
        """The whole matrix by class, (K, K), as a copy."""
        full = self.rows.new_zeros(self.num_classes, self.num_classes)
        return full.index_copy_(0, self.classes, self.matrix * self.factor.to(self.rows.dtype))

    def densify(self) -> None:
        """Give every class a row and multiply the factor in: what devices that should not wait for values need."""
        rows, basis = self.dense(), self.basis
        self.live, dtype = False, self.rows.dtype
        steps, seen = self.steps, self.seen
        self.reset(dtype, rows.device)
        self.rows, self.steps, self.seen, self.basis = rows, steps, seen, basis
        self.images = basis @ rows.T

    def settle(self) -> None:
        """Every class stored and the factor multiplied in, as fixed shapes need it."""
        if self.live:
            self.densify()
        else:
            self._multiply_in()

    def _multiply_in(self) -> None:
        factor = self.factor.to(self.rows.dtype)
        self.matrix.mul_(factor)
        self.sums.mul_(factor)
        self.images.mul_(factor)
        self.factor.fill_(1)

    def decay(self, beta: float) -> None:
        if beta == 0.0:  # nothing of the past is left, and the factor must not become 0
            self.matrix.zero_()
            self.sums.zero_()
            self.images.zero_()
            return
        self.factor.mul_(beta)
        if float(self.factor) < SMALLEST:
            self._multiply_in()

    def places(self, label: Tensor) -> Tensor:
        """Where the rows of these classes are; with live storage a class without one gets one."""
        if not self.live:
            return label
        found = self.place[label]
        if bool((found < 0).any()):
            self._make_room(torch.unique(label[found < 0]))
            found = self.place[label]
        return found

    def add(self, columns: Tensor, at: Tensor, weight: Tensor, pull: Tensor | None, scratch: Scratch | None) -> None:
        change = add_columns(self.rows, columns, at, weight, pull, scratch)
        if self.live:
            self.sums.index_add_(0, at, change.sum(1))

    def note(self, mass: Tensor, filled: Tensor | bool = True) -> None:
        """Count a step and remember which classes it showed, for a start from the first estimate."""
        self.steps.add_(filled)
        self.seen.logical_or_(mass > 0)

    def tidy(self, spectral_norm: Tensor) -> None:
        """Drop the classes that no longer matter. ``spectral_norm`` is of ``rows``, without the factor."""
        if self.live:
            keep = self.sums[: self.classes.numel()] >= FORGET * spectral_norm
            if not bool(keep.all()):
                self._drop(keep)

    def convert(self, dtype: torch.dtype) -> None:
        if self.rows.dtype == dtype:
            return
        for name in ("rows", "sums", "basis", "images"):
            setattr(self, name, getattr(self, name).to(dtype))

    def clone(self) -> History:
        twin = History.__new__(History)
        nn.Module.__init__(twin)
        twin.num_classes, twin.live = self.num_classes, self.live
        for name, value in self.named_buffers():
            twin.register_buffer(name, value.clone())
        return twin

    def _reweight(self, ratio: Tensor) -> None:
        self.matrix.mul_(ratio[:, None])
        self.sums[: ratio.numel()].mul_(ratio)
        self.images.mul_(ratio)

    def _make_room(self, new: Tensor) -> None:
        used, wanted = self.classes.numel(), self.classes.numel() + new.numel()
        if wanted > self.rows.shape[0]:
            capacity = min(self.num_classes, max(wanted, wanted * 5 // 4, 256))
            rows = self.rows.new_empty(capacity, self.num_classes)
            rows[:used] = self.matrix
            self.rows = rows
            self.sums = torch.cat([self.sums[:used], self.sums.new_zeros(capacity - used)])
        self.rows[used:wanted] = 0
        self.sums[used:wanted] = 0
        self.classes = torch.cat([self.classes, new])
        self.images = torch.cat([self.images, self.images.new_zeros(RECYCLED, new.numel())], 1)
        self.place[new] = torch.arange(used, wanted, device=new.device)

    def _drop(self, keep: Tensor) -> None:
        """Close the gaps by moving rows from the end into them."""
        kept = int(keep.sum())
        gaps = (~keep[:kept]).nonzero().flatten()
        movers = keep[kept:].nonzero().flatten() + kept
        self.place[self.classes[~keep]] = -1
        self.rows[gaps] = self.rows[movers]
        self.sums[gaps] = self.sums[movers]
        self.images[:, gaps] = self.images[:, movers]
        self.classes[gaps] = self.classes[movers]
        self.place[self.classes[gaps]] = gaps
        self.classes = self.classes[:kept].clone()
        self.images = self.images[:, :kept].clone()

    def _index(self) -> None:
        place = torch.full((self.num_classes,), -1, device=self.classes.device)
        place[self.classes] = torch.arange(self.classes.numel(), device=self.classes.device)
        self.register_buffer("place", place, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> History:
        super()._apply(at_least_single(fn), recurse)  # type: ignore[no-untyped-call]
        self.factor = self.factor.to(widest(self.factor.device))
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        used = self.classes.numel()
        if used < self.rows.shape[0]:  # spare capacity is not state
            destination[prefix + "rows"] = self.rows[:used].clone()
            destination[prefix + "sums"] = self.sums[:used].clone()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        missing: list[str]
        unexpected: list[str]
        errors: list[str]
        missing, unexpected, errors = args[-3:]
        names = [name for name, _ in self.named_buffers() if name not in self._non_persistent_buffers_set]
        absent = [prefix + name for name in names if prefix + name not in state_dict]
        unexpected.extend(key for key in state_dict if key.startswith(prefix) and key[len(prefix) :] not in names)
        if absent:
            missing.extend(absent)
            return
        saved = {name: state_dict[prefix + name] for name in names}
        if saved["seen"].numel() != self.num_classes:
            errors.append(
                f"this confusion history was saved for {saved['seen'].numel()} classes and the regulariser has "
                f"{self.num_classes}: build it with the class_counts of the saved run."
            )
            return
        device = self.factor.device
        other = saved.pop("weights").to(device)
        for name, value in saved.items():
            setattr(self, name, value.detach().to(device).clone())
        self._index()
        if not torch.equal(other, self.weights.to(other.dtype)):
            self._reweight((self.weights / other)[self.classes].to(self.rows.dtype))
        if not self.live and self.classes.numel() < self.num_classes:
            self.densify()


def at_least_single(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A move or cast of buffers that model.half() and model.bfloat16() cannot use to round them.

    What a device cannot hold in float64 is moved there in float32.
    """

    def apply(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64 and widest(fn(torch.zeros(0)).device) != torch.float64:
            tensor = tensor.float()
        moved = fn(tensor)
        return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

    return apply


def add_columns(
    rows: Tensor, columns: Tensor, at: Tensor, weight: Tensor, pull: Tensor | None, scratch: Scratch | None = None
) -> Tensor:
    """``rows[at] += weight * columns - pull * rows[at]``, where ``at`` may repeat; returns what was added."""
    shape = (columns.shape[0], columns.shape[1])
    change = torch.mul(columns, weight[:, None], out=take(scratch, "change", shape, rows))
    if pull is not None:
        old = torch.index_select(rows, 0, at, out=take(scratch, "touched", shape, rows))
        change.addcmul_(old, pull[:, None], value=-1)
    rows.index_add_(0, at, change)
    return change
