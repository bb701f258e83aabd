"""The top singular triplet of a matrix: u, v and sigma with A v = sigma u.

A matrix A is kept by columns: ``rows[j]`` is column j of A, so a class is one contiguous row and a batch touches
few of them. Both products are then plain matrix-vector products, ``A^T u = rows @ u`` and ``A w = rows.T @ w``.

CAR has four solvers. :func:`exact` is the SVD. :func:`filtered` is for a hundred classes or so, where the number of
calls is the cost. :func:`chain` takes no decision that depends on a value, for accelerators and ``torch.compile``. The
fourth, for many classes on a CPU, carries a subspace from step to step and has a file of its own, ``tracking``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

CHEBYSHEV = 10  # most steps of the filter between two looks at the residual
FIRST_CUT, NEXT_CUT = (0.8, 2.6), (0.95, 1.6)  # share of the top eigenvalue that is damped; growth of the top by step
FIXED = 16  # Krylov steps where the count must not depend on values (accelerators, torch.compile)
NOISE = 500  # roundings: a new Krylov direction shorter than this, relative to the matrix, is nothing but rounding
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

    @property
    def value(self) -> Tensor:
        return self.spectral_norm


def tolerance(eps: float) -> float:
    """Largest residual of a result, in numbers with this rounding. The error of u is that over the gap to the next
    singular value (in squares), and less after the last power step; the error of sigma is about its square."""
    return 1e-9 if eps < 1e-10 else 1.5e-4


def top_singular(A: Tensor, tol: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Top singular triplet ``(sigma, u, v)`` of any real matrix, with ``A v = sigma u``.

    Matrices with a side of 64 or less go to the SVD. For larger ones the search is iterative; if it does not converge,
    which happens only when the leading singular values are nearly equal, they go to the SVD too. sigma is
    differentiable.

    Args:
        A: (M, N) matrix.
        tol: residual at which the search ends; by default 1e-5 for float32 and 1e-8 for float64.

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
        rows = values.T.contiguous()
        limit = tol if tol is not None else min(1e-5, 10 * tolerance(torch.finfo(values.dtype).eps))
        start = torch.randn(A.shape[0], generator=torch.Generator().manual_seed(0), dtype=values.dtype)
        start = start.to(values.device)
        for _ in range(12):  # Krylov spaces of 24 directions, each begun where the last one ended
            found = chain(rows, start, torch.zeros_like(start), 24, signed=True)
            start = found.left
            if float(found.residual) < limit:
                break
        else:
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
    try:
        right, values, left = torch.linalg.svd(rows, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise ValueError(
            "a matrix must have finite entries for a singular value; it has NaN or infinite ones."
        ) from None
    u, v = left[0], right[:, 0]
    sign = u.sum().sign()
    return Triplet(values[0], u * sign, v * sign, 0, torch.zeros_like(values[0]))


def filtered(rows: Tensor, touched: Tensor, start: Tensor) -> Triplet:
    """The triplet of a small non-negative matrix on a CPU: power steps on A A^T, sharpened by Chebyshev polynomials.

    At a hundred classes the number of calls is the cost. Numpy's calls take a third of the time of torch's, and a
    Chebyshev step is worth several power steps. A positive start cannot miss the top direction of a non-negative
    matrix.

    Args:
        rows: (K, K), one matrix column per row.
        touched: classes of the batch; their share of v is found to full relative accuracy.
        start: (K,) the u of the step before, or 0.
    """
    columns = rows.numpy()
    unit = float(columns.max())
    if not 1e-5 < unit < 1e5:  # the powers would leave the range of float32
        nothing = torch.zeros_like(start)
        if not 0 < unit < torch.inf:  # nothing there, or nothing that can be computed with
            return Triplet(rows.new_full((), unit), nothing, nothing, 0, rows.new_zeros(()))
        found = filtered(rows / unit, touched, start)
        return found._replace(spectral_norm=found.spectral_norm * unit)
    limit, steps = tolerance(torch.finfo(rows.dtype).eps) / 6, 0
    z = _first_image(columns, start.numpy()).dot(columns)
    while True:
        u = z / math.sqrt(z.dot(z))
        w = columns.dot(u)
        z, theta = w.dot(columns), float(w.dot(w))
        error = z - theta * u
        rho = math.sqrt(error.dot(error)) / theta
        if rho <= limit:
            break
        if steps >= 120:  # a tie
            tied = exact(rows)
            left, right = polished(rows, positive(tied.left), touched, float(tied.spectral_norm), None)
            length = norm(right)
            return Triplet(length, left, right / length.clamp_min(tiny(length)), steps, tied.residual)
        cut, growth = FIRST_CUT if steps == 0 else NEXT_CUT
        wanted = math.ceil(math.log(rho / limit) / math.log(growth))
        count = max(2, min(wanted, CHEBYSHEV))
        before, z, scale = u, z * (2 / (theta * cut)) - u, 4 / (theta * cut)
        for _ in range(count - 1):
            after = columns.dot(z).dot(columns)
            after *= scale
            after -= 2 * z
            after -= before
            before, z = z, after
        steps += count
    z = z.clip(0)  # non-negative but for rounding (Perron-Frobenius)
    u = z / math.sqrt(z.dot(z))
    w = columns.dot(u)
    sigma = math.sqrt(w.dot(w))
    near = w.take(touched.numpy())
    if math.sqrt(near.dot(near)) < 0.1 * sigma:
        left, right = polished(rows, torch.from_numpy(u), touched, sigma, None)
        length = norm(right)
        return Triplet(length, left, right / length.clamp_min(tiny(length)), steps, rows.new_full((), rho))
    ends = torch.from_numpy(np.array([sigma, rho], columns.dtype))
    return Triplet(ends[0], torch.from_numpy(u), torch.from_numpy(w / sigma), steps, ends[1])


def _first_image(columns: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
    """``A^T x`` to start from: the better of the largest column and the old u, and some of every other direction."""
    every: NDArray[Any] = columns.dot(np.ones(columns.shape[1], columns.dtype))
    largest = columns[every.argmax()]
    images = columns.dot(largest / math.sqrt(largest.dot(largest))), columns.dot(old)
    better, other = sorted(images, key=lambda image: -image.dot(image))
    every *= 0.1 * math.sqrt(better.dot(better) / every.dot(every))
    every += better
    every += 0.1 * other
    return every


def chain(rows: Tensor, start: Tensor, warm: Tensor, steps: int = FIXED, *, signed: bool = False) -> Triplet:
    """The same by a Krylov chain of fixed length: no decision depends on a value, so nothing waits for a device.

    A matrix of low rank exhausts the chain early. What would follow is rounding, and is set to 0: rows of 0 add nothing
    to the Rayleigh-Ritz problem, whereas noise blown up to unit length would be counted as directions of its own.

    Args:
        rows: (L, K), one matrix column per row; non-negative unless ``signed``.
        start: (K,) a direction that the touched columns bring in.
        warm: (K,) the u of the step before, or 0.
        steps: length of the chain.
        signed: whether entries may be negative.
    """
    steps = min(steps, rows.shape[0], rows.shape[1])
    basis, images = rows.new_zeros(steps, rows.shape[1]), rows.new_zeros(steps, rows.shape[0])
    (direction, *others), (image, *their_images) = basis.unbind(0), images.unbind(0)
    vector = start / peak(start) + warm
    torch.div(vector, norm(vector).clamp_min(tiny(vector)), out=direction)
    first = torch.mv(rows, direction)
    largest = peak(first)
    unit = (norm(first / largest) * largest).clamp_min(tiny(first))
    scaled = rows / unit  # so that lengths below are of the order of 1, however small the confusions
    torch.div(first, unit, out=image)
    transposed, combine, noise = scaled.T, basis.T, NOISE * torch.finfo(rows.dtype).eps
    for direction, following in zip(others, their_images, strict=True):
        vector = torch.mv(transposed, image)
        for _ in range(2):  # orthogonalising twice is enough; rows not filled yet are 0 and do nothing
            vector = torch.addmv(vector, combine, torch.mv(basis, vector), alpha=-1)
        torch.div(vector, F.threshold(norm(vector), noise, torch.inf), out=direction)
        image = torch.mv(scaled, direction, out=following)
    weights = _leading(images @ images.T)
    u, w = weights @ basis, weights @ images
    z, theta = torch.mv(transposed, w), torch.dot(w, w)
    residual = norm(torch.addcmul(z, u, theta, value=-1)) / theta.clamp_min(tiny(theta))
    z = z if signed else z.abs_()  # of a non-negative matrix u is non-negative but for rounding (Perron-Frobenius)
    u = z / norm(z).clamp_min(tiny(z))
    w = torch.mv(scaled, u)
    length = norm(w).clamp_min(tiny(w))
    return Triplet(length * unit, u, w / length, steps, residual)


def polished(rows: Tensor, u: Tensor, touched: Tensor, unit: float, extent: float | None) -> tuple[Tensor, Tensor]:
    """``u`` and ``rows @ u``, after power steps if the touched columns, of norm ``extent``, barely meet u.

    Rounding in u drowns such a batch's share of v. Power steps on non-negative vectors have no cancellation and wash
    it out.
    """
    w = torch.mv(rows, u)
    before = w.index_select(0, touched)
    size = float(norm(before))
    if size >= 0.1 * unit:
        return u, w
    extent = float(norm(rows.index_select(0, touched))) if extent is None else extent
    if size >= WEAK * extent:
        return u, w
    for _ in range(POLISH):
        u = positive(torch.mv(rows.T, w / unit))
        w = torch.mv(rows, u)
        after = w.index_select(0, touched)
        if float(norm(after - before)) <= 3e-4 * float(norm(after)):
            break
        before = after
    return u, w


def positive(z: Tensor) -> Tensor:
    """Unit vector along z, which is non-negative up to rounding and sign when the matrix is (Perron-Frobenius)."""
    z = (z * z.sum().sign()).clamp_min_(0)
    return z / norm(z).clamp_min(tiny(z))


def peak(vector: Tensor) -> Tensor:
    """Largest entry in size, at least the smallest number: the squares of small confusions underflow."""
    largest: Tensor = torch.linalg.vector_norm(vector, float("inf"))
    return largest.clamp_min(tiny(vector))


def norm(vector: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vector)
    return length


def tiny(values: Tensor) -> float:
    return torch.finfo(values.dtype).tiny


def _leading(matrix: Tensor) -> Tensor:
    """Leading eigenvector of a small positive semi-definite matrix by repeated squaring, with no branch on values."""
    for _ in range(3):  # the eigenvalue is at least the trace over the size, so its 16th power does not underflow
        matrix = matrix / matrix.trace().clamp_min(tiny(matrix))
        matrix = torch.linalg.matrix_power(matrix, 16)
    column = matrix.index_select(1, matrix.diagonal().argmax().reshape(1))[:, 0]
    return column / norm(column).clamp_min(tiny(column))
