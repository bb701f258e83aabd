"""The top singular triplet of a matrix of many classes, followed from step to step on a CPU.

Reading the matrix is what costs time, so as little of it as possible is read. Three things are carried along: a few
left directions u_i, their images A^T u_i, and A A^T u_i. A batch changes a few columns of A, and these columns alone
bring all three up to date. The best vector inside the subspace (Rayleigh-Ritz) and its residual are then known without
reading anything else. Only a direction that joins the subspace has to be multiplied by the whole matrix.

1. A direction that the batch brings in joins first. Without it, one that a rare class has just made the strongest could
   stay unseen for ever: the old triplet is still an almost exact one, only no longer the top one.
2. The subspace grows by the residual of its best vector until the estimated error of u is below the tolerance.
3. A power step, which the tracked products give for nothing, halves what error is left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..spectral import WEAK, Triplet, chain, norm, peak, polished, positive, tiny, tolerance
from .workspace import Scratch

DIRECTIONS = 8  # carried from step to step
POWER = 3  # power steps on the touched columns alone, to find the direction that a batch brings in
CHECK_EVERY = 16  # steps between looks at what is carried: rounding adds up
NOVEL = 0.05  # share of the top's square that touched columns may have along an unseen direction, unexamined
ASTRAY = 64  # roundings by which the directions may fail to be orthonormal
HOPELESS = 0.01  # a residual that no search should end with
GROWTH = 40  # most directions added in one call
NARROW = 0.09  # gap (of squares) below which the vector is not worth chasing: sigma2 / sigma1 above 0.95
FAR = 100  # times the tolerance: from a residual this large, two directions are added at once
TRUST = 10  # a gap that can be trusted allows this many times the residual, for the same error of u
FORGIVING = 10  # the touched columns meet an error of u less than they might: this much of their reach is forgiven
UNCLEAR = 0.03  # residual above which a close runner-up is not taken at its word
VALUE = 16  # roundings: the error of sigma squared that is aimed at
NEGLIGIBLE = 20  # roundings of the largest column's square: columns that add up to less are left out of the products
READ_ONCE_FROM = 1 << 25  # numbers in a matrix that no cache holds: both products are then taken in one reading
BLOCK = 64  # rows of it that a cache does hold
WHOLE_UP_TO = 1 << 19  # numbers in a matrix that is read once more, for all of v


class Subspace(NamedTuple):
    """Left directions with A A^T times each below them, (2 DIRECTIONS, K); their images, (DIRECTIONS, L)."""

    basis: Tensor
    images: Tensor


class Change(NamedTuple):
    """What a batch did to the matrix: which rows it touched, these before and, below, after; squares of the new."""

    at: Tensor
    both: Tensor
    squares: Tensor

    @property
    def new(self) -> Tensor:
        return self.both[self.at.numel() :]


def track(
    rows: Tensor,
    change: Change,
    space: Subspace,
    squares: Tensor | None,
    scratch: Scratch,
    *,
    probe: bool = True,
    check: bool = True,
) -> Triplet:
    """Triplet of the non-negative matrix whose columns are ``rows``, searched until it is accurate.

    Args:
        rows: (L, K), one matrix column per row, after the change.
        change: the rows touched since the last call; their share of v is found to full relative accuracy.
        space: where the last call left its subspace, 0 at first; brought up to date in place.
        squares: (L,) squared length of each row. With them, rows that are negligible are left out. None: all count.
        scratch: memory to compute in.
        probe: whether to look for a direction that the batch brings in, however small the change.
        check: whether to make sure that ``space`` is what it should be.
    """
    extent = float(change.squares.sum()) ** 0.5
    if not 1e-6 < extent < 1e9 and not 1e-6 < float(rows.max()) < 1e9:  # fourth powers would leave float32's range
        return _afresh(rows, space)
    steady = squares is None  # with class averaging little changes in a step
    inside = _update(space, change)
    used = _used_rows(squares, change) if squares is not None else None
    search = _Search(rows, change, space, used, scratch)
    search.settle(check)
    outside = change.squares - inside.square().sum(0)  # of each touched column, what the subspace does not hold
    if probe or float(outside.sum()) > NOVEL * search.scale:
        vector = search.brought_in(outside.clamp_min_(0).sqrt_(), inside)
        if probe or search.strength(vector) > NOVEL * search.scale:
            search.add(vector)
    certain, eps = tolerance(rows.dtype), torch.finfo(rows.dtype).eps
    floor = eps * (8 + 0.3 * rows.shape[0] ** 0.5)  # what rounding in a product leaves
    before = 1.0
    while True:
        second, theta = search.solve()
        u, w, z = search.ritz(-1)
        error = torch.add(z, u, alpha=-theta)
        rho = float(norm(error)) / theta if theta else 0.0
        gap = 1 - second / theta if theta else 1.0
        stalled = rho <= floor or (rho > 0.7 * before and rho < 30 * floor)
        limit = certain * (2.0 if gap < NARROW else max(1.0, TRUST * gap if steady else 1.0))
        good = stalled or (
            rho * rho <= VALUE * eps * gap and rho <= limit * min(1.0, FORGIVING * search.reach(w, extent))
        )
        before = rho
        if good and gap < 0.3:
            # A runner-up this close may be the true top, not yet resolved: an eigenvalue lies within about
            # width^2 / (distance to the next) of it.
            u2, _, z2 = search.ritz(-2)
            error2 = torch.add(z2, u2, alpha=-second)
            width = float(norm(error2)) / theta
            if width > UNCLEAR or (width > 1e-3 and second + 10 * width**2 * theta > theta):
                good, error = False, error2
        if good or search.added >= GROWTH or not search.add(error):
            break
        if rho > FAR * certain:  # a Krylov step further, without looking
            search.add(search.double[search.size - 1])
    if rho > HOPELESS:
        return _afresh(rows, space)
    found = search.finish(w, z, theta, extent, rho)
    search.recycle(space)
    return found


def _afresh(rows: Tensor, space: Subspace) -> Triplet:
    """Without what was carried along."""
    space.basis.zero_()
    space.images.zero_()
    return chain(rows, rows.sum(0), torch.zeros_like(rows[0]), GROWTH)


def _update(space: Subspace, change: Change) -> Tensor:
    """Bring the products with the directions up to date, from the touched columns alone; returns the new images."""
    directions, doubles = space.basis[:DIRECTIONS], space.basis[DIRECTIONS:]
    before = space.images.index_select(1, change.at)
    after = directions @ change.new.T
    doubles.addmm_(torch.cat([before.neg_(), after], 1), change.both)
    space.images.index_copy_(1, change.at, after)
    return after


def _used_rows(squares: Tensor, change: Change) -> Tensor | None:
    """Rows that matter, the touched ones last; None if leaving out the others would save little."""
    most = NEGLIGIBLE * torch.finfo(squares.dtype).eps * float(squares.max())
    few = most / 64  # rows fade by the step, so those just below a limit are few; if not, a lower limit is safe
    small = squares <= few
    if float(squares.dot(small.to(squares.dtype))) > most:
        small = squares <= most / squares.numel()
    used = small.logical_not_().index_fill_(0, change.at, False).nonzero().flatten()
    total = used.numel() + change.at.numel()
    return torch.cat([used, change.at]) if total < 0.8 * squares.numel() else None


class _Search:
    """Orthonormal left directions, their images and A A^T times each, grown one by one."""

    def __init__(self, rows: Tensor, change: Change, space: Subspace, used: Tensor | None, scratch: Scratch) -> None:
        self.change, self.used, self.total = change, used, rows.shape[0]
        if used is None:
            self.rows, self.touched, images = rows, change.at, space.images
        else:
            count = used.numel()
            self.rows = torch.index_select(rows, 0, used, out=scratch.take("used", (count, rows.shape[1]), rows))
            self.touched = torch.arange(count - change.at.numel(), count)
            images = space.images.index_select(1, used)
        count, width = self.rows.shape
        most = DIRECTIONS + GROWTH + 1
        self.left = scratch.take("left", (most, width), rows)
        self.right = scratch.take("right", (most, count), rows)
        self.double = scratch.take("double", (most, width), rows)
        self.left[:DIRECTIONS], self.double[:DIRECTIONS] = space.basis[:DIRECTIONS], space.basis[DIRECTIONS:]
        self.right[:DIRECTIONS] = images
        self.size, self.added = DIRECTIONS, 0
        self.inner = torch.zeros(most, most, dtype=torch.float64)  # of the images: A A^T in the subspace

    def settle(self, check: bool) -> None:
        """Make the carried directions orthonormal again; with ``check``, make sure of their products too.

        Rounding adds up, and a state may come from another solver.
        """
        directions, images, doubles = (part[:DIRECTIONS] for part in (self.left, self.right, self.double))
        overlap = directions @ directions.T
        inner = images @ images.T
        size, eps = max(float(inner.diagonal().max()), tiny(images)), torch.finfo(images.dtype).eps
        if check and float((doubles @ directions.T - inner).abs().max()) > 100 * eps * size:
            directions.copy_(_orthonormalising(overlap) @ directions)
            torch.mm(directions, self.rows.T, out=images)
            torch.mm(images, self.rows, out=doubles)
            inner = images @ images.T
        elif _astray(overlap) > ASTRAY * eps:
            mend = _orthonormalising(overlap)
            for part in (directions, images, doubles):
                part.copy_(mend @ part)
            inner = images @ images.T
        self.inner[:DIRECTIONS, :DIRECTIONS] = inner
        self.scale = max(float(inner.diagonal().max()), tiny(images))

    def brought_in(self, weights: Tensor, inside: Tensor) -> Tensor:
        """A strong direction of the touched columns outside the subspace: their sum after a few power steps."""
        directions, new = self.left[:DIRECTIONS].T, self.change.new
        for step in range(POWER):
            vector = torch.addmv(torch.mv(new.T, weights), directions, torch.mv(inside, weights), alpha=-1)
            if step + 1 < POWER:
                weights = torch.mv(new, vector / norm(vector).clamp_min(tiny(vector)))
        return vector

    def strength(self, vector: Tensor) -> float:
        """The square that the touched columns alone have along a direction."""
        return (float(norm(torch.mv(self.change.new, vector))) / max(float(norm(vector)), tiny(vector))) ** 2

    def add(self, vector: Tensor) -> bool:
        """Add the part of ``vector`` that is new; False if there is none, because the subspace holds it already."""
        size = self.size
        left, direction = self.left[:size], self.left[size]
        whole = float(norm(vector))
        if whole < 1e-10:
            vector = vector / peak(vector)
            whole = float(norm(vector))
        for _ in range(2):
            vector = torch.addmv(vector, left.T, torch.mv(left, vector), alpha=-1)
        part = float(norm(vector))
        if part <= 100 * torch.finfo(vector.dtype).eps * whole:
            return False
        torch.div(vector, part, out=direction)
        self._multiply(direction, self.right[size], self.double[size])
        self.size, self.added = size + 1, self.added + 1
        images = self.right[: size + 1]
        row = torch.mv(images, images[size])
        self.inner[size, : size + 1] = row
        self.inner[: size + 1, size] = row
        return True

    def _multiply(self, vector: Tensor, image: Tensor, double: Tensor) -> None:
        """``A^T vector`` and A times that."""
        if self.rows.numel() < READ_ONCE_FROM:
            torch.mv(self.rows, vector, out=image)
            torch.mv(self.rows.T, image, out=double)
            return
        double.zero_()
        for start in range(0, len(self.rows), BLOCK):
            block, part = self.rows[start : start + BLOCK], image[start : start + BLOCK]
            torch.mv(block, vector, out=part)
            double.addmv_(block.T, part)

    def solve(self) -> tuple[float, float]:
        """Second and first eigenvalue of A A^T in the subspace; the eigenvectors are kept."""
        values, vectors = torch.linalg.eigh(self.inner[: self.size, : self.size])
        self.vectors = vectors.to(self.left.dtype)
        second, first = values[-2:].tolist()
        return max(second, 0.0), max(first, 0.0)

    def ritz(self, which: int) -> tuple[Tensor, Tensor, Tensor]:
        """``u``, its image w, and ``A w``."""
        weights, size = self.vectors[:, which], self.size
        u = torch.mv(self.left[:size].T, weights)
        return u, torch.mv(self.right[:size].T, weights), torch.mv(self.double[:size].T, weights)

    def reach(self, w: Tensor, extent: float) -> float:
        """How much of the touched columns lies along u. Their share of v is this small, so u must be this exact."""
        return float(norm(w.index_select(0, self.touched))) / extent if extent else 1.0

    def finish(self, w: Tensor, z: Tensor, theta: float, extent: float, rho: float) -> Triplet:
        """The triplet after a power step, which is already there: z."""
        left, unit = positive(z), max(theta, tiny(z)) ** 0.5
        if self.rows.numel() <= WHOLE_UP_TO:
            left, w = polished(self.rows, left, self.touched, unit, extent)
            sigma = norm(w)
        else:
            sigma, near = norm(z) / unit, torch.mv(self.change.new, left)
            if float(norm(near)) < WEAK * extent:
                left, w = polished(self.rows, left, self.touched, unit, extent)
            else:
                w.index_copy_(0, self.touched, near)
        right = w / sigma.clamp_min(tiny(sigma))
        if self.used is not None:
            right = right.new_zeros(self.total).index_copy_(0, self.used, right)
        return Triplet(sigma, left, right, self.added, left.new_full((), rho))

    def recycle(self, space: Subspace) -> None:
        """Leave the best directions in ``space``."""
        turn = self.vectors[:, -DIRECTIONS:].T
        torch.mm(turn, self.left[: self.size], out=space.basis[:DIRECTIONS])
        torch.mm(turn, self.double[: self.size], out=space.basis[DIRECTIONS:])
        images = turn @ self.right[: self.size]
        if self.used is None:
            space.images.copy_(images)
        else:
            space.images.zero_().index_copy_(1, self.used, images)


def _astray(overlap: Tensor) -> float:
    """How far directions with these inner products are from orthonormal; directions of 0 do no harm."""
    apart = overlap.clone()
    apart.diagonal().sub_(overlap.diagonal().round())  # 1, or 0 for a direction of 0
    return float(norm(apart))


def _orthonormalising(overlap: Tensor) -> Tensor:
    """A matrix that makes directions with these inner products orthonormal; dependent ones become 0."""
    if _astray(overlap) < 1e-3:  # one Newton-Schulz step squares what they lack
        return torch.add(1.5 * torch.eye(len(overlap), dtype=overlap.dtype), overlap, alpha=-0.5)
    values, vectors = torch.linalg.eigh(overlap.double())
    turn: Tensor = (values.clamp_min(1e-3).rsqrt() * (values > 1e-3))[:, None] * vectors.T
    return turn.to(overlap.dtype)
