"""The running confusion matrix: stored by class, decayed by one number, holding only the classes that still matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .dtypes import widest
from .tracking import DIRECTIONS, Array, Change, Subspace
from .workspace import Scratch

LIVE_FROM = 2048  # with batch averaging, more classes than this are stored sparsely
FORGET = 1e-5  # a stored column this far below the spectral norm gives its place to a new one
SMALLEST = 2.0**-15  # the lazy factor is multiplied in before it gets smaller: fourth powers must stay in float32


class History(nn.Module):
    r"""The weighted average confusion :math:`\hat C \Lambda`, one row per class (that is, by columns).

    - ``factor * rows`` is the matrix: decaying it by beta is one multiplication of ``factor``.
    - With ``live`` storage only classes seen lately have a row; ``classes`` says which, and the rest are 0. A row
      shorter than ``FORGET`` times the spectral norm gives its place to a class that needs one. Entries are
      non-negative, so the norm falls by at most beta a step, and so does the column that was dropped: what was
      negligible then stays so.
    - ``sums`` holds the sum of the squares of each row, for the solver that leaves negligible rows out.
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
        self.live = self.sparse = live
        self.settled = False
        """Whether every class has a row and the factor is 1, known without looking at it."""
        self.tracked = True
        """Whether sums and images go with the rows; after loading or settling that is to be seen."""
        self.register_buffer("weights", weights.clone())
        self.reset()

    def reset(self, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> None:
        self.live = self.sparse
        self._allocate(dtype, device)

    def _allocate(self, dtype: torch.dtype, device: torch.device | None) -> None:
        size = 0 if self.live else self.num_classes
        self.register_buffer("rows", torch.zeros(size, self.num_classes, dtype=dtype, device=device))
        self.register_buffer("classes", torch.arange(size, device=device))
        self.register_buffer("sums", torch.zeros(size, dtype=dtype, device=device))
        self.register_buffer("factor", torch.ones((), dtype=widest(device), device=device))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("seen", torch.zeros(self.num_classes, dtype=torch.bool, device=device))
        self.register_buffer("basis", torch.zeros(2 * DIRECTIONS, self.num_classes, dtype=dtype, device=device))
        self.register_buffer("images", torch.zeros(DIRECTIONS, size, dtype=dtype, device=device))
        self.settled, self.tracked = not self.live, True
        self._index()

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def matrix(self) -> Tensor:
        """The stored rows that are in use."""
        return self.rows[: self.classes.numel()]

    @property
    def space(self) -> Subspace:
        return Subspace(self.basis.numpy(), self.images.numpy())

    def dense(self) -> Tensor:
        """The whole matrix by class, (K, K), as a copy."""
        full = self.rows.new_zeros(self.num_classes, self.num_classes)
        return full.index_copy_(0, self.classes, self.matrix * self.factor.to(self.rows.dtype))

    def settle(self) -> None:
        """Give every class a row and multiply the factor in: what fixed shapes and few calls need."""
        if self.tracked:
            self.tracked = False
            self.sums.fill_(-1)  # also in a saved state: these no longer go with the rows
        if self.settled:
            return
        if self.live:
            rows, leading = self.dense(), self.basis[:1].clone()
            steps, seen = self.steps, self.seen
            self.live = False
            self._allocate(rows.dtype, rows.device)
            self.sums.fill_(-1)
            self.rows, self.steps, self.seen = rows, steps, seen
            self.basis[:1] = leading
        else:
            self._multiply_in()
            self.basis[1:].zero_()  # of the solvers for settled storage, none has more than one direction
            self.images.zero_()
        self.settled, self.tracked = True, False  # the solvers of settled storage leave sums and images behind

    def _multiply_in(self) -> None:
        factor = self.factor.to(self.rows.dtype)
        self._scale(factor)
        self.factor.fill_(1)

    def _scale(self, factor: Tensor | float) -> None:
        """Multiply the stored rows, and what is derived from them, by a number."""
        self.matrix.mul_(factor)
        self.sums.mul_(factor * factor)
        self.images.mul_(factor)
        self.basis[DIRECTIONS:].mul_(factor * factor)

    def decay(self, beta: float) -> None:
        if beta == 0.0:  # nothing of the past is left, and the factor must not become 0
            self._scale(0.0)
            return
        self.factor.mul_(beta)
        if float(self.factor) < SMALLEST:
            self._multiply_in()

    def touch(self, present: Array, keep: Tensor | None, scratch: Scratch) -> Change:
        """Count a step; the rows of its classes, to be changed. ``keep``: the share of each that stays (None: all)."""
        self.settled = False
        self.steps.add_(1)
        self.seen.numpy()[present] = True
        fresh = self._make_place(present)
        at: Array = self.place.numpy()[present] if self.live else present
        count, rows = len(present), self.rows.numpy()
        held = at if fresh is None else at[~fresh]  # a class without a row so far has nothing to be read
        both = scratch.array("both", (len(held) + count, self.num_classes), rows)
        old, new = both[: len(held)], both[len(held) :]
        rows.take(held, 0, out=old, mode="clip")
        kept = old if keep is None else np.multiply(old, keep.numpy()[:, None], out=None if fresh is not None else new)
        if fresh is not None:
            new[~fresh], new[fresh] = kept, 0
        elif keep is None:
            new[:] = old
        return Change(at, held, both, old[:0])

    def put(self, change: Change) -> Change:
        """Store the rows that a batch has changed, and count their squares."""
        new = change.new
        squares = torch.linalg.vector_norm(torch.from_numpy(new), dim=1).square_().numpy()
        self.rows.numpy()[change.at] = new  # a quarter of the time of index_copy_
        self.sums.numpy()[change.at] = squares
        return change._replace(squares=squares)

    def take_up(self) -> bool:
        """Let sums and images follow the rows again if another solver has left them behind; says whether it had."""
        if self.tracked:
            return False
        self.tracked, used = True, self.classes.numel()
        if not used or float(self.sums[0]) >= 0:
            return False
        self.sums[:used] = self.matrix.square().sum(1)
        self.images.zero_()[0] = self.matrix @ self.basis[0]
        return True

    def _make_place(self, label: Array) -> Array | None:
        """Give each of these classes a row; says which had none, or None if all had."""
        if not self.live:
            return None
        found = self.place.numpy()[label]
        fresh: Array = found < 0
        if not fresh.any():
            return None
        self._make_room(label[fresh], found[~fresh])
        return fresh

    def note(self, mass: Tensor, filled: Tensor | bool = True) -> None:
        """Count a step and remember which classes it showed, for a start from the first estimate."""
        self.steps.add_(filled)
        self.seen.logical_or_(mass > 0)

    def convert(self, dtype: torch.dtype) -> None:
        if self.rows.dtype == dtype:
            return
        for name in ("rows", "sums", "basis", "images"):
            setattr(self, name, getattr(self, name).to(dtype))

    def clone(self) -> History:
        twin = History.__new__(History)
        nn.Module.__init__(twin)
        for name in ("num_classes", "live", "sparse", "settled", "tracked"):
            setattr(twin, name, getattr(self, name))
        for name, value in self.named_buffers():
            twin.register_buffer(name, value.clone())
        return twin

    def _reweight(self, ratio: Tensor) -> None:
        self.matrix.mul_(ratio[:, None])
        self.sums[: ratio.numel()].mul_(ratio.square())  # below 0, if that is what they are, they stay
        self.images.zero_()  # another matrix: the search begins anew
        self.basis.zero_()

    def _make_room(self, new: Array, taken: Array) -> None:
        """Give each of these classes a row: one that hardly counts any more and is not ``taken``, or one at the end."""
        used, place = self.classes.numel(), self.place.numpy()
        sums, top = self.sums.numpy()[:used].copy(), self.images.numpy()[-1]
        limit = FORGET**2 * max(sums.max(initial=0), top.dot(top))  # both are at most the norm's square
        sums[taken] = np.inf
        free = (sums <= limit).nonzero()[0][: len(new)]
        place[self.classes.numpy()[free]] = -1
        wanted = used + len(new) - len(free)
        if wanted > self.rows.shape[0]:
            capacity = min(self.num_classes, max(wanted, wanted * 5 // 4, 256))
            rows = self.rows.new_empty(capacity, self.num_classes)
            rows[:used] = self.matrix
            self.rows = rows
            self.sums = torch.cat([self.sums[:used], self.sums.new_zeros(capacity - used)])
        if wanted > used:
            self.classes = torch.cat([self.classes, self.classes.new_zeros(wanted - used)])
            self.images = torch.cat([self.images, self.images.new_zeros(DIRECTIONS, wanted - used)], 1)
        place[new] = at = np.concatenate([free, np.arange(used, wanted)])
        self.classes.numpy()[at] = new
        self.sums.numpy()[at] = 0
        self.images.numpy()[:, at] = 0  # and the row itself is written before it is read

    def _index(self) -> None:
        place = torch.full((self.num_classes,), -1, device=self.classes.device)
        place[self.classes] = torch.arange(self.classes.numel(), device=self.classes.device)
        self.register_buffer("place", place, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> History:
        super()._apply(unrounded(fn), recurse)  # type: ignore[no-untyped-call]
        self.factor = self.factor.to(widest(self.factor.device))
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        used = self.classes.numel()
        if used < self.rows.shape[0]:  # spare capacity is not state
            destination[prefix + "rows"] = self.rows[:used].clone()
            destination[prefix + "sums"] = self.sums[:used].clone()

    def refusal(self, state: dict[str, Any], prefix: str) -> str | None:
        """Why a saved state cannot be taken, or None."""
        if prefix + "errors" in state:
            return "this history was saved with norm='worst' and the regulariser has norm='spectral': both must agree."
        return other_classes(state.get(prefix + "seen"), self.num_classes)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        missing: list[str]
        unexpected: list[str]
        errors: list[str]
        missing, unexpected, errors = args[-3:]
        problem = self.refusal(state_dict, prefix)
        if problem is not None:
            errors.append(problem)
            return
        names = [name for name, _ in self.named_buffers() if name not in self._non_persistent_buffers_set]
        absent = [prefix + name for name in names if prefix + name not in state_dict]
        unexpected.extend(key for key in state_dict if key.startswith(prefix) and key[len(prefix) :] not in names)
        if absent:
            missing.extend(absent)
            return
        saved = {name: state_dict[prefix + name] for name in names}
        device = self.factor.device
        other = saved.pop("weights").to(device)
        for name, value in saved.items():
            setattr(self, name, value.detach().to(device).clone())
        self._index()
        if self.basis.shape[0] != 2 * DIRECTIONS or self.images.shape[0] != DIRECTIONS:  # saved by an earlier version
            self.basis = self.basis.new_zeros(2 * DIRECTIONS, self.num_classes)
            self.images = self.images.new_zeros(DIRECTIONS, self.classes.numel())
            self.sums.fill_(-1)
        if not torch.equal(other, self.weights.to(other.dtype)):
            self._reweight((self.weights / other)[self.classes].to(self.rows.dtype))
        self.settled, self.tracked = False, False
        if not self.live and self.classes.numel() < self.num_classes:
            self.live = True
            self.settle()


def other_classes(seen: Tensor | None, num_classes: int) -> str | None:
    """Why a history of other classes is not taken; None if these are the same."""
    if seen is None or seen.numel() == num_classes:
        return None
    return (
        f"this confusion history was saved for {seen.numel()} classes and the regulariser has "
        f"{num_classes}: build it with the class_counts of the saved run."
    )


def unrounded(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A move or cast of buffers that model.half() and model.bfloat16() cannot use to round them.

    What a device cannot hold in float64 is moved there in float32.
    """

    def apply(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64 and widest(fn(torch.zeros(0)).device) != torch.float64:
            tensor = tensor.float()
        moved = fn(tensor)
        return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

    return apply
