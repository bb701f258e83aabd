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

import functools
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..spectral import WEAK, Triplet, chain, polished, tolerance
from .workspace import Scratch

Array: TypeAlias = NDArray[Any]

DIRECTIONS = 8  # carried from step to step
POWER = 3  # power steps on the touched columns alone, to find the direction that a batch brings in
CHECK_EVERY = 16  # steps between looks at what is carried: rounding adds up
NOVEL = 0.05  # share of the top's square that touched columns may have along an unseen direction, unexamined
ASTRAY = 64  # roundings by which the directions may fail to be orthonormal
HOPELESS = 0.01  # a residual that no search should end with
GROWTH = 40  # most directions added in one call
NARROW = 0.09  # gap (of squares) below which the vector is not worth chasing: sigma2 / sigma1 above 0.95
FAR = 100  # times the tolerance: from a residual this large, two directions are added at once
TRUST = 6  # a gap that can be trusted allows this many times the residual, for the same error of u
FORGIVING = 10  # the touched columns meet an error of u less than they might: this much of their reach is forgiven
UNCLEAR = 0.03  # residual above which a close runner-up is not taken at its word
VALUE = 16  # roundings: the error of sigma squared that is aimed at
NARROW_VALUE = 100  # the same for a narrow gap
NEGLIGIBLE = 50  # roundings of the largest column's square: columns that add up to less are left out of the products
READ_ONCE_FROM = 1 << 23  # numbers in a matrix that no cache holds: both products are then taken in one reading
COPY_FROM = 1 << 21  # numbers in the rows in use, from where on they are copied while the first product is taken
BLOCK = 16  # rows of it that a cache does hold


class Subspace(NamedTuple):
    """Left directions with A A^T times each below them, (2 DIRECTIONS, K); their images, (DIRECTIONS, L)."""

    basis: Array
    images: Array


class Change(NamedTuple):
    """What a batch did to the matrix: which rows it touched, and which of these were there; those before and, below,
    all after; squares of the new."""

    at: Array
    held: Array
    both: Array
    squares: Array

    @property
    def new(self) -> Array:
        return self.both[len(self.held) :]


def track(
    rows: Array,
    change: Change,
    space: Subspace,
    squares: Array | None,
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
    inside = _update(space, change)
    used = _used_rows(squares, change.at) if squares is not None else None
    search = _Search(rows, change, space, used, scratch)
    search.settle(check)
    outside = change.squares - np.square(inside).sum(0)  # of each touched column, what the subspace misses
    if probe or float(outside.sum()) > NOVEL * search.scale:
        vector = search.brought_in(np.sqrt(outside.clip(0)), inside)
        if probe or search.strength(vector) > NOVEL * search.scale:
            search.add(vector)
    eps = search.eps
    certain = tolerance(eps)
    floor = eps * (8 + 0.3 * rows.shape[0] ** 0.5)  # what rounding in a product leaves
    before = 1.0
    while True:
        second, theta = search.solve()
        u, z = search.ritz(-1)
        error = z - theta * u
        rho = _length(error) / theta if theta else 0.0
        gap = 1 - second / theta if theta else 1.0
        stalled = rho <= floor or (rho > 0.7 * before and rho < 30 * floor)
        narrow = gap < NARROW
        limit = certain * (4.0 if narrow else max(1.0, TRUST * gap))
        value = rho * rho <= (NARROW_VALUE if narrow else VALUE) * eps * gap
        sharp = value and rho <= limit and (narrow or rho <= limit * FORGIVING * search.reach(extent))
        good = stalled or sharp
        before = rho
        if good and gap < 0.3:
            # A runner-up this close may be the true top, not yet resolved: an eigenvalue lies within about
            # width^2 / (distance to the next) of it.
            u2, z2 = search.ritz(-2)
            error2 = z2 - second * u2
            width = _length(error2) / theta
            if width > UNCLEAR or (width > 1e-3 and second + 10 * width**2 * theta > theta):
                good, error = False, error2
        if good or search.added >= GROWTH or not search.add(error):
            break
        if rho > FAR * certain:  # a Krylov step further, without looking
            search.add(search.double[search.size - 1])
    if rho > HOPELESS:
        return _afresh(rows, space)
    triplet = search.finish(z, theta, rho, None if sharp else extent)
    search.recycle(space)
    return triplet


def _afresh(rows: Array, space: Subspace) -> Triplet:
    """Without what was carried along."""
    space.basis[:] = 0
    space.images[:] = 0
    matrix = torch.from_numpy(rows)
    return chain(matrix, matrix.sum(0), torch.zeros_like(matrix[0]), GROWTH)


def _update(space: Subspace, change: Change) -> Array:
    """Bring the products with the directions up to date, from the touched columns alone; returns the new images."""
    after: Array = change.new.dot(space.basis[:DIRECTIONS].T).T
    space.basis[DIRECTIONS:] += np.concatenate([-space.images.take(change.held, 1), after], 1).dot(change.both)
    space.images[:, change.at] = after
    return after


def _used_rows(squares: Array, touched: Array) -> Array | None:
    """Rows that matter, the touched ones last; None if leaving out the others would save little."""
    most = NEGLIGIBLE * _limits(squares.dtype)[0] * float(squares.max())
    small = squares <= most / 64  # rows fade by the step, so those just below a limit are few
    if float(squares.dot(small)) > most:  # if not, a lower limit is safe
        small = squares <= most / squares.size
    small[touched] = True
    used = (~small).nonzero()[0]
    return np.concatenate([used, touched]) if used.size + touched.size < 0.8 * squares.size else None


class _Search:
    """Orthonormal left directions, their images and A A^T times each, grown one by one.

    All in numpy, whose calls cost a third of torch's and whose products with a vector are faster.
    """

    def __init__(self, rows: Array, change: Change, space: Subspace, used: Array | None, scratch: Scratch) -> None:
        self.used, self.new, (basis, images) = used, change.new, space
        self.total, width = rows.shape
        self.whole: Array | None = None  # what the rows in use are still to be taken from
        if used is None:
            self.rows, self.touched = rows, change.at
        else:
            self.whole, self.rows = rows, scratch.array("used", (used.size, width), rows)
            self.touched, images = np.arange(used.size - len(self.new), used.size), images.take(used, 1)
        most = DIRECTIONS + GROWTH + 1
        self.left, self.double = scratch.array("left", (2, most, width), rows)
        self.right = scratch.array("right", (most, len(self.rows)), rows)
        self.eps, self.tiny = _limits(rows.dtype)
        self.left[:DIRECTIONS], self.double[:DIRECTIONS] = basis[:DIRECTIONS], basis[DIRECTIONS:]
        self.right[:DIRECTIONS] = images
        self.size, self.added = DIRECTIONS, 0
        self.inner = np.zeros((most, most))  # of the images: A A^T in the subspace, in double precision

    def settle(self, check: bool) -> None:
        """Make the carried directions orthonormal again; with ``check``, make sure of their products too.

        Rounding adds up, and a state may come from another solver.
        """
        directions, images, doubles = (part[:DIRECTIONS] for part in (self.left, self.right, self.double))
        overlap, inner = directions.dot(directions.T), images.dot(images.T)
        size = max(float(inner.diagonal().max()), self.tiny)
        if check and float(np.abs(doubles.dot(directions.T) - inner).max()) > 100 * self.eps * size:
            directions[:] = _orthonormalising(overlap).dot(directions)
            rows = self._collect()
            images[:] = rows.dot(directions.T).T
            doubles[:] = images.dot(rows)
            inner = images.dot(images.T)
        elif _astray(overlap) > ASTRAY * self.eps:
            mend = _orthonormalising(overlap)
            for part in (directions, images, doubles):
                part[:] = mend.dot(part)
            inner = images.dot(images.T)
        self.inner[:DIRECTIONS, :DIRECTIONS] = inner
        self.scale = max(float(inner.diagonal().max()), self.tiny)

    def brought_in(self, weights: Array, inside: Array) -> Array:
        """A strong direction of the touched columns outside the subspace: their sum after a few power steps."""
        directions = self.left[:DIRECTIONS]
        for step in range(POWER):
            vector: Array = weights.dot(self.new) - inside.dot(weights).dot(directions)
            if step + 1 < POWER:
                weights = self.new.dot(vector / max(_length(vector), self.tiny))
        return vector

    def strength(self, vector: Array) -> float:
        """The square that the touched columns alone have along a direction."""
        return (_length(self.new.dot(vector)) / max(_length(vector), self.tiny)) ** 2

    def add(self, vector: Array) -> bool:
        """Add the part of ``vector`` that is new; False if there is none, because the subspace holds it already."""
        size = self.size
        left = self.left[:size]
        whole = _length(vector)
        if whole < 1e-10:
            vector = vector / max(float(np.abs(vector).max()), self.tiny)
            whole = _length(vector)
        part = whole
        for _ in range(2):
            before, vector = part, vector - left.dot(vector).dot(left)
            part = _length(vector)
            if part <= 100 * self.eps * whole:
                return False
            if part > 0.5 * before:  # nothing was cancelled: what is left is orthogonal to working precision
                break
        np.divide(vector, part, out=self.left[size])
        self._multiply(self.left[size], self.right[size], self.double[size])
        self.size, self.added = size + 1, self.added + 1
        images = self.right[: size + 1]
        row = images.dot(images[size])
        self.inner[size, : size + 1] = row
        self.inner[: size + 1, size] = row
        return True

    def _multiply(self, vector: Array, image: Array, double: Array) -> None:
        """``A^T vector`` and A times that."""
        if self.rows.size < (READ_ONCE_FROM if self.whole is None else COPY_FROM):
            rows = self._collect()
            rows.dot(vector, out=image)
            image.dot(rows, out=double)
            return
        double[:] = 0
        for start in range(0, len(self.rows), BLOCK):
            block, part = self.rows[start : start + BLOCK], image[start : start + BLOCK]
            if self.whole is not None and self.used is not None:
                self.whole.take(self.used[start : start + BLOCK], 0, out=block, mode="clip")
            double += block.dot(vector, out=part).dot(block)
        self.whole = None

    def _collect(self) -> Array:
        """The rows in use."""
        if self.whole is not None and self.used is not None:
            self.whole.take(self.used, 0, out=self.rows, mode="clip")
            self.whole = None
        return self.rows

    def solve(self) -> tuple[float, float]:
        """Second and first eigenvalue of A A^T in the subspace; the eigenvectors are kept."""
        values, vectors = np.linalg.eigh(self.inner[: self.size, : self.size])
        self.vectors = vectors.T.astype(self.left.dtype)
        return max(float(values[-2]), 0.0), max(float(values[-1]), 0.0)

    def ritz(self, which: int) -> tuple[Array, Array]:
        """A vector u of the subspace, and A A^T u."""
        weights = self.vectors[which]
        return weights.dot(self.left[: self.size]), weights.dot(self.double[: self.size])

    def image(self) -> Array:
        """A^T times the best vector."""
        image: Array = self.vectors[-1].dot(self.right[: self.size])
        return image

    def reach(self, extent: float) -> float:
        """How much of the touched columns lies along u. Their share of v is this small, so u must be this exact."""
        return _length(self.image()[self.touched]) / extent if extent else 1.0

    def finish(self, z: Array, theta: float, rho: float, extent: float | None) -> Triplet:
        """The triplet after a power step, which is already there: z.

        With ``extent``, the norm of the touched columns, more power steps follow if they barely meet u.
        """
        sign, unit = np.sign(z.sum()), max(theta, self.tiny) ** 0.5
        z, w = (sign * z).clip(0), sign * self.image()  # non-negative but for rounding, as the matrix is
        length = _length(z)
        left = z / max(length, self.tiny)
        sigma, near = length / unit, self.new.dot(left)
        if extent is not None and _length(near) < WEAK * extent:
            rows, start, touched = (torch.from_numpy(part) for part in (self._collect(), left, self.touched))
            left, w = (part.numpy() for part in polished(rows, start, touched, unit, extent))
        else:
            w[self.touched] = near
        right = w / max(sigma, self.tiny)
        if self.used is not None:
            right, known = np.zeros(self.total, right.dtype), right
            right[self.used] = known
        ends = torch.from_numpy(np.array([sigma, rho], right.dtype))
        return Triplet(ends[0], torch.from_numpy(left), torch.from_numpy(right), self.added, ends[1])

    def recycle(self, space: Subspace) -> None:
        """Leave the best directions in ``space``."""
        turn, (basis, images) = self.vectors[-DIRECTIONS:], space
        np.dot(turn, self.left[: self.size], out=basis[:DIRECTIONS])
        np.dot(turn, self.double[: self.size], out=basis[DIRECTIONS:])
        if self.used is None:
            np.dot(turn, self.right[: self.size], out=images)
        else:
            images[:] = 0
            images[:, self.used] = turn.dot(self.right[: self.size])


def _length(vector: Array) -> float:
    return math.sqrt(vector.dot(vector))


@functools.cache
def _limits(dtype: Any) -> tuple[float, float]:
    """Rounding and the smallest number of this precision."""
    return float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)


def _astray(overlap: Array) -> float:
    """How far directions with these inner products are from orthonormal; directions of 0 do no harm."""
    apart = overlap.copy()
    apart.flat[:: len(apart) + 1] -= overlap.diagonal().round()  # 1, or 0 for a direction of 0
    return _length(apart.ravel())


def _orthonormalising(overlap: Array) -> Array:
    """A matrix that makes directions with these inner products orthonormal; dependent ones become 0."""
    if _astray(overlap) < 1e-3:  # one Newton-Schulz step squares what they lack
        newton: Array = 1.5 * np.eye(len(overlap), dtype=overlap.dtype) - 0.5 * overlap
        return newton
    values, vectors = np.linalg.eigh(overlap.astype(np.float64))
    scale = np.where(values > 1e-3, values.clip(1e-3) ** -0.5, 0)
    return (scale[:, None] * vectors.T).astype(overlap.dtype)  # type: ignore[no-any-return]
