"""How far CAR's running confusion is from the confusion it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ..car import CAR
from ..functional import soft_confusion
from ..spectral import top_singular


class Gap(NamedTuple):
    """Distances between the running confusion and the soft confusion of a whole data set.

    ``absolute`` is the Frobenius norm of the difference and ``relative`` that over the norm of the data set's matrix.
    ``spectral_norm`` is CAR's value on the data set's matrix; ``left`` and ``right`` are the cosines between the
    singular vectors of the two, 1 when CAR pushes in the direction that the whole data set would give.
    """

    absolute: float
    relative: float
    spectral_norm: float
    left: float
    right: float


@torch.no_grad()
def cm_gap(car: CAR, batches: Iterable[tuple[Tensor, Tensor]]) -> Gap:
    r"""CM gap, :math:`\lVert \hat C_t - \tilde C_S \rVert_F`, absolute and relative, with what it does to u and v.

    Args:
        car: the regulariser whose history is judged; nothing in it changes.
        batches: pairs (logits, labels) that cover the data set once, from the model in evaluation mode. Labels are
            class indices.

    Example:
        >>> car = CAR([2, 2], beta=0.0)
        >>> logits, labels = torch.tensor([[1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1])
        >>> _ = car(logits.requires_grad_(), labels)
        >>> cm_gap(car, [(logits, labels)]).absolute < 1e-6  # without averaging, on the batch it has just seen
        True
    """
    whole = data_confusion(car, batches)
    running, weights = car.confusion.cpu().double(), car.weights.cpu().double()
    distance, norm = float((running - whole).norm()), float(whole.norm())
    sigma, left, right = top_singular(whole * weights)
    _, u, v = top_singular(running * weights)
    relative = distance / norm if norm else float("inf") if distance else 0.0
    empty = not bool(running.any())  # no history yet: it points nowhere
    return Gap(distance, relative, float(sigma), *(0.0 if empty else float(cosine) for cosine in (left @ u, right @ v)))


@torch.no_grad()
def data_confusion(car: CAR, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """The (K, K) soft confusion of a whole data set, as CAR would see it in one batch; float64, on the CPU.

    Args:
        car: whose form of the confusion and shift of the logits are used.
        batches: pairs (logits, labels), see :func:`cm_gap`.
    """
    size, kind = car.num_classes, car.kind
    total = torch.zeros(size, size, dtype=torch.float64)
    seen = torch.zeros(size, dtype=torch.float64)
    for logits, labels in batches:
        if not isinstance(labels, Tensor) or labels.ndim != 1:
            raise TypeError("the labels of cm_gap must be class indices of shape (N,); soft labels have no count.")
        kept = labels != car.ignore_index
        shifted = logits[kept] + car.prior_shift * car.log_prior.to(logits.device)
        confusion = soft_confusion(
            shifted, labels[kept], kind.gamma, kind.competitors, surrogate=kind.form, temperature=kind.temperature
        )
        here = torch.bincount(labels[kept], minlength=size).cpu().double()
        total += confusion.cpu().double() * here  # its columns are means over the batch
        seen += here
    if not bool(seen.any()):
        raise ValueError("cm_gap needs at least one labelled sample; the batches held none.")
    return total / seen.clamp(min=1)
