"""The leading singular values of a sparse non-negative matrix, such as the confusions of a test set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .pairs import Pairs

SPARE = 6  # directions searched beyond those asked for: they make the last ones converge
WIDEST = 12  # blocks kept before the search starts again from the best directions
SEARCHES = 400
EXACT = 3_000  # most columns of a matrix that is solved whole when the search does not converge: some ten seconds


def confusion_spectrum(
    pairs: Pairs, weights: NDArray[Any], count: int = 10
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """:func:`leading` of the hard confusion matrix times Lambda: shares of each true class, zero diagonal."""
    wrong = pairs.wrong()
    entries = wrong.count / pairs.total[wrong.true] * weights[wrong.true]
    return leading(wrong.predicted, wrong.true, entries, pairs.size, count)


def leading(
    rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float64], size: int, count: int = 10
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The largest singular values of a non-negative (size, size) matrix given by its entries, and the top direction.

    A block Krylov search with restarts: every step multiplies a block of vectors by A and A^T, so multiple and close
    values are found as well as single ones. Where hundreds of values are nearly equal, as those of a permutation, all
    eigenvalues of A^T A are computed instead; with more than 3,000 columns in use that would take minutes, and the
    largest value stays as the search left it, right to about seven digits.

    Where the largest value is multiple, the direction is the part of the all-ones vector in its space: it is
    non-negative and does not depend on rounding.

    Returns:
        (min(count, size),) values in falling order, (size,) left and (size,) right direction.

    Example:
        >>> s, u, v = leading(np.array([0, 1]), np.array([0, 0]), np.array([3.0, 4.0]), 2)
        >>> s.tolist(), u.round(3).tolist(), v.tolist()
        ([5.0, 0.0], [0.6, 0.8], [1.0, 0.0])
    """
    count = min(count, size)
    if not len(values):
        return np.zeros(count), np.zeros(size), np.zeros(size)
    entries = torch.as_tensor(values, dtype=torch.float64)
    indices = torch.stack([torch.as_tensor(rows), torch.as_tensor(columns)])
    matrix = torch.sparse_coo_tensor(indices, entries, (size, size), check_invariants=False).coalesce()
    if size <= 256:
        _, singular, right = torch.linalg.svd(matrix.to_dense())
        basis = right.T[:, :count]
    else:
        singular, basis = _search(matrix, matrix.t().coalesce(), count)
    sigma = singular[:count]
    sigma = sigma.where(sigma > 1e-7 * sigma[0], 0)  # below that there is only rounding: values are roots of squares
    equal = basis[:, sigma >= sigma[0] * (1 - 1e-9)]
    v = equal @ equal.sum(0)
    v = (v * (1.0 if float(v.sum()) >= 0 else -1.0)).clamp_min(0)  # non-negative but for rounding (Perron-Frobenius)
    v = v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)
    u = matrix @ v
    u = u / u.norm().clamp_min(torch.finfo(u.dtype).tiny)
    return sigma.numpy(), u.numpy(), v.numpy()


def _search(matrix: Tensor, transposed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Leading singular values and right singular vectors."""
    size, width = matrix.shape[0], count + SPARE
    start = torch.randn(size, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start[:, 0] = 1  # the top direction is non-negative, so this one cannot miss it
    basis = torch.linalg.qr(start)[0]
    images = matrix @ basis
    for _ in range(SEARCHES):
        squares, turn = torch.linalg.eigh(images.T @ images)
        squares, turn = squares.flip(0).clamp_min(0), turn.flip(1)
        best = basis @ turn[:, :width]
        rest = transposed @ (images @ turn[:, :width]) - best * squares[:width]
        errors = rest.norm(dim=0) / squares[0]
        if float(errors[:count].max()) < 1e-8 and float(errors[0]) < 1e-12:
            break
        if basis.shape[1] + width > WIDEST * width:
            basis, images = basis @ turn[:, : 3 * width], images @ turn[:, : 3 * width]
        fresh = rest[:, errors > 1e-13]  # what is left of the others is rounding, and lies in the basis
        fresh = fresh / fresh.norm(dim=0)
        for _ in range(3):
            fresh = torch.linalg.qr(fresh - basis @ (basis.T @ fresh))[0]
        basis, images = torch.cat([basis, fresh], 1), torch.cat([images, matrix @ fresh], 1)
    if float(errors[0]) >= 1e-12:
        used = np.unique(matrix.indices()[1].numpy())
        if len(used) <= EXACT:
            return _whole(matrix, torch.from_numpy(used), count)
    return squares[:count].sqrt(), best[:, :count]


def _whole(matrix: Tensor, used: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same by all eigenvalues of A^T A, of the columns that are not empty."""
    part = matrix.index_select(1, used).to_dense()
    squares, turn = torch.linalg.eigh(part.T @ part)
    kept = min(count, len(used))
    values, vectors = torch.zeros(count, dtype=torch.float64), torch.zeros(len(matrix), count, dtype=torch.float64)
    values[:kept] = squares.flip(0)[:kept].clamp_min(0).sqrt()
    vectors[used, :kept] = turn.flip(1)[:, :kept]
    return values, vectors
