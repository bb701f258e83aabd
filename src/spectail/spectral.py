"""The top singular triplet of a matrix that changes a little at every step: the hot path of CAR.

A matrix A is kept by columns: ``rows[j]`` is column j of A, so a class is one contiguous row and a batch touches
few of them. Both products are then plain matrix-vector products, ``A^T u = rows @ u`` and ``A w = rows.T @ w``,
and reading the matrix once is the unit of cost ("half a pass" each).

:func:`track` finds the triplet by Rayleigh-Ritz in a small subspace that it carries from step to step:

1. ``basis`` holds a few left directions and ``images`` their products with A. After a batch only the images of the
   touched columns change, so the old subspace is brought up to date without reading the matrix.
2. The largest touched column and the sum of the touched columns join it, with a Krylov step from the sum where much
   changes at once. Without them a direction that a rare class has just brought in can stay unseen for ever: the old
   triplet is still an almost exact one, only no longer the top one.
3. The subspace grows by the residual of its best vector until the estimated error of u is below the tolerance.
4. One power step and one last product give u, v and sigma; sigma is then exact to the square of that error.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .scratch import Scratch, take

RECYCLED = 16  # directions carried from step to step
CHAIN = 1  # Krylov steps from the touched columns before the first check
GROWTH = 40  # most expansions in one call
FIXED = 14  # Krylov steps where the count must not depend on values (accelerators, torch.compile)
CERTAIN = 1e-4  # largest residual of a result; sigma is then exact to about its square over the gap
UNCLEAR = 0.03  # residual above which a close runner-up is not taken at its word
NARROW = 0.1  # gap (of squares) below which the vector is not worth chasing: sigma2 / sigma1 above 0.95
WEAK = 1e-2  # below this reach, the batch's share of v needs power steps of its own
POLISH = 16  # most of those


class Triplet(NamedTuple):
    """Top singular triplet: A v = sigma u. All tensors are detached.

    ``residual`` is |A A^T u - sigma^2 u| / sigma^2, measured one power step before the vectors returned.
    """

    spectral_norm: Tensor
    left: Tensor
    right: Tensor
    iterations: int
    residual: Tensor


class Subspace(NamedTuple):
    """Left directions, (RECYCLED, K), and their images ``rows @ basis.T``, transposed."""

    basis: Tensor
    images: Tensor


def tolerance(dtype: torch.dtype) -> float:
    """Largest estimated error of u that ends the search: sigma is then exact to about its square, i.e. to rounding."""
    return 1e-8 if dtype == torch.float64 else 3e-3


def top_singular(A: Tensor, tol: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Top singular triplet ``(sigma, u, v)`` of any real matrix, with ``A v = sigma u``.

    Matrices with a side of 64 or less go to the SVD. Larger ones are searched iteratively, and go to the SVD if the
    search does not converge, which only nearly equal leading singular values cause. sigma is differentiable.

    Args:
        A: (M, N) matrix.
        tol: estimated error of u at which the search ends; by default 1e-5 for float32 and 1e-8 for float64.

    Example:
        >>> sigma, u, v = top_singular(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
        >>> sigma, u, v
        (tensor(5.), tensor([0.6000, 0.8000]), tensor([1., 0.]))
    """
    if not isinstance(A, Tensor):
        raise TypeError(f"A must be a floating-point matrix; got {type(A).__name__}.")
    if A.ndim != 2 or not A.is_floating_point() or A.numel() == 0:
        raise TypeError(f"A must be a non-empty floating-point matrix; got shape {tuple(A.shape)}, {A.dtype}.")
    values = A.detach() if A.dtype == torch.float64 else A.detach().float()
    found = None
    if min(A.shape) > 64:
        start = torch.randn(A.shape[0], generator=torch.Generator().manual_seed(0), dtype=values.dtype)
        limit = tol if tol is not None else min(1e-5, tolerance(values.dtype))
        found = track(values.T.contiguous(), None, start.to(values.device), tol=limit, growth=min(200, *A.shape))
        if not float(found.residual) < limit:
            found = None
    found = found or exact(values.T)
    sign = 1.0 if float(found.left.sum()) >= 0 else -1.0
    u, v = found.left * sign, found.right * sign
    return (u @ A.to(u.dtype) @ v if A.requires_grad else found.spectral_norm), u, v


def relative_residual(A: Tensor, sigma: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """How far a triplet is from a singular one: the larger of |A v - sigma u| and |A^T u - sigma v|, over sigma."""
    errors = torch.stack([(A @ v - sigma * u).norm(), (A.T @ u - sigma * v).norm()])
    return errors.max() / sigma.clamp_min(torch.finfo(sigma.dtype).tiny)


def exact(rows: Tensor) -> Triplet:
    """The triplet by full SVD: the oracle, and the fastest choice for few classes."""
    right, values, left = torch.linalg.svd(rows, full_matrices=False)
    u, v = left[0], right[:, 0]
    sign = u.sum().sign()
    return Triplet(values[0], u * sign, v * sign, 0, torch.zeros_like(values[0]))


def squared(rows: Tensor, touched: Tensor, start: Tensor) -> Triplet:
    """The triplet of a small non-negative matrix: power steps on (A A^T)^16, each worth sixteen.

    At a hundred classes the squarings cost as much as a few dozen products, in a tenth of the calls. Power steps from
    a positive vector cannot miss the top direction of a non-negative matrix.
    """
    unit = 1.0
    gram = rows.T @ rows
    size = float(gram.trace())
    if not 1e-20 < size < 1e20:  # the powers would leave the range of float32
        unit = max(float(rows.max()), _tiny(rows))
        gram = (rows / unit).T @ (rows / unit)
        size = max(float(gram.trace()), _tiny(gram))
    power = gram / size
    for _ in range(2):
        power = power @ power
        power = power / power.trace().clamp_min(_tiny(power))
        power = power @ power
    u, steps, change = torch.add(start, power.sum(1), alpha=0.1), 0, 1.0
    while change > tolerance(rows.dtype) / 30 and steps < 64:
        before = u
        for _ in range(4):
            u = torch.mv(power, u)
        u = u / max(float(_norm(u)), _tiny(u))
        change = float(_norm(u - before))
        steps += 4
    if steps >= 64 and change > 0.1 * tolerance(rows.dtype):
        return exact(rows)
    z = torch.mv(gram, u)
    theta = max(float(z @ u), _tiny(z))
    residual = _norm(torch.add(z, u, alpha=-theta)) / theta
    unit = max(unit * theta**0.5, _tiny(z))
    u, w = _settle(rows, z / max(float(_norm(z)), _tiny(z)), touched, unit, None)
    sigma = _norm(w / unit) * unit
    return Triplet(sigma, u, w / sigma.clamp_min(_tiny(sigma)), steps, residual)


def track(
    rows: Tensor,
    touched: Tensor | None,
    start: Tensor | None = None,
    space: Subspace | None = None,
    tol: float | None = None,
    growth: int = GROWTH,
    chain_steps: int = CHAIN,
    scratch: Scratch | None = None,
) -> Triplet:
    """Triplet of the matrix whose columns are ``rows``, searched from ``space`` and ``start`` until it is accurate.

    Args:
        rows: (L, K), one matrix column per row.
        touched: rows changed since ``space`` was returned; their share of v is found to full relative accuracy.
            None: all of them, and ``space`` is not used.
        start: (K,) where the Krylov chain starts; by default the sum of the touched columns.
        space: where the previous call left its subspace, 0 at first; brought up to date in place. Its images of
            untouched rows must still hold.
        tol: estimated error of u at which the search ends.
        growth: most directions added.
        chain_steps: Krylov steps before the first check; where little changes in a step, 0 are enough.
        scratch: memory to compute in.
    """
    tol = tolerance(rows.dtype) if tol is None else tol
    eps = torch.finfo(rows.dtype).eps
    floor = eps * (8 + 0.3 * rows.shape[0] ** 0.5)  # what rounding in a product leaves
    before = 1.0
    search = _Search(rows, touched, space, growth, scratch)
    if start is None:
        search.add(search.recent[int(search.recent.sum(1).argmax())])
        start = search.recent.sum(0)
    grown = search.add(_unit_peak(start))
    for _ in range(chain_steps):
        grown = grown and search.add(search.advance())
    steps = search.added
    limit = min(growth, rows.shape[1], rows.shape[0])
    while True:
        values, vectors = search.solve()
        second, theta = values
        u, w, z = search.ritz(vectors[:, -1])
        error = torch.add(z, u, alpha=-theta)
        rho = float(_norm(error)) / theta if theta else 0.0
        good = rho <= CERTAIN
        stalled = rho > 0.7 * before and rho < 30 * floor
        if good and rho > floor and not stalled:
            good = rho <= tol * max(1 - second / theta, NARROW) * search.reach(w)
        before = rho
        if good and second > 0.7 * theta:
            # A runner-up this close may be the true top, not yet resolved: an eigenvalue lies within about
            # width^2 / (distance to the next) of it.
            u2, _, z2 = search.ritz(vectors[:, -2])
            error2 = torch.add(z2, u2, alpha=-second)
            width = float(_norm(error2)) / theta
            if width > UNCLEAR or (width > 1e-3 and second + 10 * width**2 * theta > theta):
                good, error = False, error2
        if good or steps >= limit or not search.expand(error):
            break
        steps += 1
    if touched is None:
        u = z / _norm(z).clamp_min(_tiny(z))
        w = rows @ u
    else:
        u, w = _settle(rows, _positive(z), touched, search.unit, search.extent)
    sigma = _norm(w / search.unit) * search.unit
    if space is not None:
        search.recycle(space, vectors, u, w)
    return Triplet(sigma, u, w / sigma.clamp_min(_tiny(sigma)), steps, rows.new_tensor(rho))


def chain(rows: Tensor, start: Tensor, warm: Tensor, steps: int = FIXED) -> tuple[Triplet, Subspace]:
    """The same by a Krylov chain of fixed length: no decision depends on a value, so nothing waits for a device.

    Args:
        rows: (L, K), one matrix column per row; non-negative.
        start: (K,) a direction that the touched columns bring in.
        warm: (K,) the u of the step before, or 0.
        steps: length of the chain.
    """
    steps = min(steps, rows.shape[0], rows.shape[1])
    basis, images = rows.new_zeros(steps, rows.shape[1]), rows.new_zeros(steps, rows.shape[0])
    vector, unit = _unit_peak(start) + _unit_peak(warm), rows.new_ones(())
    for step in range(steps):
        for _ in range(2):  # orthogonalising twice is enough; rows not filled yet are 0 and do nothing
            vector = vector - basis.T @ (basis @ vector)
            vector = vector / vector.norm().clamp_min(_tiny(vector))
        image = rows @ vector
        if step == 0:
            unit = image.abs().max().clamp_min(_tiny(image))
        basis[step], images[step] = vector, image / unit
        vector = rows.T @ images[step] / unit
    weights = _leading(images @ images.T)
    u, w = weights @ basis, weights @ images
    z = rows.T @ w / unit
    theta = w @ w
    residual = (z - theta * u).norm() / theta.clamp_min(_tiny(theta))
    u = _positive(z)
    w = rows @ u
    sigma = (w / unit).norm() * unit
    space = Subspace(u.new_zeros(RECYCLED, u.numel()), w.new_zeros(RECYCLED, w.numel()))
    space.basis[0], space.images[0] = u, w
    return Triplet(sigma, u, w / sigma.clamp_min(_tiny(sigma)), steps, residual), space


class _Search:
    """Orthonormal left directions ``left[:size]`` with ``right[i] = (rows @ left[i]) / unit``, grown one by one.

    ``unit`` is the size of the matrix, so that products of small confusions do not underflow.
    """

    def __init__(
        self, rows: Tensor, touched: Tensor | None, space: Subspace | None, growth: int, scratch: Scratch | None
    ) -> None:
        self.rows, self.touched = rows, touched
        count, width = rows.shape
        if touched is None:
            self.recent = rows
        else:
            room = take(scratch, "touched", (touched.numel(), width), rows)
            self.recent = torch.index_select(rows, 0, touched, out=room)
        self.extent = float(_norm(self.recent))
        self.size, self.added = 0, 0
        self.unit = max(self.extent, _tiny(rows))
        if not 1e-15 < self.extent < 1e15:  # its squares may have left the range of float32
            low, high = torch.aminmax(self.recent)
            self.unit = max(-float(low), float(high), _tiny(rows))
        most = RECYCLED + CHAIN + 2 + growth
        scratch = scratch or Scratch()
        self.left = scratch.take("left", (most, width), rows)
        self.right = scratch.take("right", (most, count), rows)
        self.none = rows.new_zeros(1)
        if space is None or touched is None:
            return
        basis, images = space.basis, space.images.index_copy_(1, touched, space.basis @ self.recent.T)
        self.unit = max(float(images[0].max()), self.unit)
        mend = _orthonormalising(basis @ basis.T)
        self.size = len(basis)
        torch.mm(mend, basis, out=self.left[: self.size])
        torch.mm(mend / self.unit, images, out=self.right[: self.size])

    def add(self, vector: Tensor) -> bool:
        """Add the part of ``vector`` that is new; False if there is none, because the subspace holds it already."""
        size, left = self.size, self.left[: self.size]
        whole = float(_norm(vector))
        if whole < 1e-10:
            vector = _unit_peak(vector)
            whole = float(_norm(vector))
        if size:
            vector = torch.addmv(vector, left.T, torch.mv(left, vector), alpha=-1)
        part = float(_norm(vector))
        if part <= 100 * torch.finfo(vector.dtype).eps * whole:
            return False
        vector = vector / part
        if size:  # again, because cancellation leaves rounding errors along the others
            vector = torch.addmv(vector, left.T, torch.mv(left, vector), alpha=-1)
            if part < 0.1 * whole:
                vector = vector / _norm(vector)
        self._append(vector)
        return True

    def expand(self, error: Tensor) -> bool:
        """Add the residual of a Ritz vector, which is orthogonal to the subspace but for rounding."""
        left = self.left[: self.size]
        vector = error / _norm(error).clamp_min(_tiny(error))
        vector = torch.addmv(vector, left.T, torch.mv(left, vector), alpha=-1)
        length = float(_norm(vector))
        if length < 0.9:  # mostly rounding: treat it as any vector
            return self.add(error)
        self._append(vector / length)
        return True

    def _append(self, vector: Tensor) -> None:
        self.left[self.size] = vector
        torch.addmv(self.none, self.rows, vector, beta=0, alpha=1 / self.unit, out=self.right[self.size])
        self.size += 1
        self.added += 1

    def advance(self) -> Tensor:
        """A times the newest image: the next vector of a Krylov chain."""
        return self._over_unit(self.rows.T, self.right[self.size - 1])

    def solve(self) -> tuple[tuple[float, float], Tensor]:
        """Second and first eigenvalue of A A^T in the subspace, and all eigenvectors in rising order."""
        images = self.right[: self.size]
        # float64: in float32 LAPACK can fail to converge on a matrix this graded
        values, vectors = torch.linalg.eigh((images @ images.T).double())
        second, first = (max(value, 0.0) for value in [0.0, *values.tolist()][-2:])
        return (second, first), vectors.to(images.dtype)

    def ritz(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``u``, its image w, and ``A w``, from weights on the directions."""
        u = torch.mv(self.left[: self.size].T, weights)
        w = torch.mv(self.right[: self.size].T, weights)
        return u, w, self._over_unit(self.rows.T, w)

    def reach(self, w: Tensor) -> float:
        """How much of the touched columns lies along u. Their share of v is this small, so u must be this exact."""
        if self.touched is None or not self.extent:
            return 1.0
        return float(_norm(w.index_select(0, self.touched))) * self.unit / self.extent

    def recycle(self, space: Subspace, vectors: Tensor, u: Tensor, w: Tensor) -> None:
        """Leave the best directions in ``space``; the first is exact, the others only help the next search."""
        keep = min(RECYCLED, self.size)
        rotation = vectors[:, -keep:].flip(1).T
        torch.mm(rotation, self.left[: self.size], out=space.basis[:keep])
        torch.mm(rotation * self.unit, self.right[: self.size], out=space.images[:keep])
        space.basis[0], space.images[0] = u, w

    def _over_unit(self, matrix: Tensor, vector: Tensor) -> Tensor:
        return torch.addmv(self.none, matrix, vector, beta=0, alpha=1 / self.unit)


def _settle(rows: Tensor, u: Tensor, touched: Tensor, unit: float, extent: float | None) -> tuple[Tensor, Tensor]:
    """``u`` and ``rows @ u``, after power steps if the touched columns, of norm ``extent``, barely meet u.

    Rounding in u drowns such a batch's share of v. Power steps on non-negative vectors have no cancellation and wash
    it out.
    """
    w = rows @ u
    before = w.index_select(0, touched)
    size = float(_norm(before))
    if size >= 0.1 * unit:
        return u, w
    extent = float(_norm(rows.index_select(0, touched))) if extent is None else extent
    if size >= WEAK * extent:
        return u, w
    for _ in range(POLISH):
        u = _positive(rows.T @ (w / unit))
        w = rows @ u
        after = w.index_select(0, touched)
        if float(_norm(after - before)) <= 3e-4 * float(_norm(after)):
            break
        before = after
    return u, w


def _orthonormalising(gram: Tensor) -> Tensor:
    """A matrix that makes a basis with these inner products orthonormal; directions that have become dependent go."""
    identity = torch.eye(len(gram), dtype=gram.dtype)
    if float((gram - identity).abs().max()) < 1e-3:  # the usual case: u moved a little in the last power step
        # one Newton-Schulz step squares the deviation
        return torch.add(1.5 * identity, gram, alpha=-0.5)
    values, vectors = torch.linalg.eigh(gram.double())
    scale = values.clamp_min(1e-3).rsqrt() * (values > 1e-3)
    mend: Tensor = scale[:, None] * vectors.T
    return mend.to(gram.dtype)


def _unit_peak(vector: Tensor) -> Tensor:
    """Scaled to a largest entry of 1, because the squares of small confusions underflow."""
    return vector / vector.abs().max().clamp_min(_tiny(vector))


def _positive(z: Tensor) -> Tensor:
    """Unit vector along z, which is non-negative up to rounding and sign when the matrix is (Perron-Frobenius)."""
    z = (z * z.sum().sign()).clamp_min_(0)
    return z / _norm(z).clamp_min(_tiny(z))


def _leading(matrix: Tensor) -> Tensor:
    """Leading eigenvector of a small positive semi-definite matrix by repeated squaring, with no branch on values."""
    for _ in range(12):
        matrix = matrix / matrix.diagonal().sum().clamp_min(_tiny(matrix))
        matrix = matrix @ matrix
    column = matrix.index_select(1, matrix.diagonal().argmax().reshape(1))[:, 0]
    return column / _norm(column).clamp_min(_tiny(column))


def _norm(vector: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vector)
    return length


def _tiny(values: Tensor) -> float:
    return torch.finfo(values.dtype).tiny
