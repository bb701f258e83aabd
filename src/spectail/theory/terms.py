"""The terms of the bound, named, and the two formulas that need only numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..counts import ClassCounts
from .words import explain


@dataclass(frozen=True, eq=False)
class Bound:
    r"""Every term of the bound; see :func:`~spectail.theory.bound`. Tensors are float64 with one entry per class.

    Attributes:
        counts: training images per class.
        gamma, delta: margin, and probability that the bound fails.
        smallest: m_min, images in the smallest class.
        weights: :math:`\lambda_j`.
        spectral_norm: :math:`\lVert C_{S,\gamma}\Lambda \rVert_2`, the empirical term; CAR minimises its surrogate.
        nu: :math:`\sqrt K`, from column sums to the spectral norm.
        empirical: :math:`\nu \lVert C_{S,\gamma}\Lambda \rVert_2 / \lambda_j`.
        margin_errors: column sums of :math:`C_{S,\gamma}`.
        layers, width, input_norm, folded: n, h, B, and whether biases were folded into the matrices.
        spectral_product: :math:`\prod_l \lVert W_l \rVert_2`.
        norm_ratios: :math:`\sum_l \lVert W_l \rVert_F^2 / \lVert W_l \rVert_2^2`.
        psi: :math:`\Psi`, as the proposition prints it.
        sigma: standard deviation of the perturbations that keep the margin.
        kl: divergence between the perturbed weights and the prior.
        cover: guesses of the spectral norm that the union bound pays for.
        log_term: :math:`\ln(3\, m_{min}\, cover / (4 \delta))`.
        printed: the inside of the proposition's O(), with constant 1; None if undefined.
        deviation: how far, in spectral norm, the confusion on the sample may be from that of the distribution;
            None if undefined.
        complexity: :math:`\nu\, \lambda_{max} / \lambda_j` times deviation; None if undefined.
        per_class: empirical + complexity: the bound on the error of each class; None if undefined.
        total: the bound on the weighted worst-class error; None if undefined.
        direct: margin_errors + nu * deviation, the same argument without the detour over the spectral norm: never
            larger than per_class; None if undefined.
    """

    counts: ClassCounts
    gamma: float
    delta: float
    smallest: int
    weights: Tensor
    spectral_norm: float
    nu: float
    empirical: Tensor
    margin_errors: Tensor
    layers: int
    width: int
    input_norm: float
    folded: bool
    spectral_product: float
    norm_ratios: float
    psi: float
    sigma: float
    kl: float
    cover: float
    log_term: float
    printed: float | None
    deviation: float | None
    complexity: Tensor | None
    per_class: Tensor | None
    total: float | None
    direct: Tensor | None

    @property
    def defined(self) -> bool:
        """Whether the bound exists: the smallest class must have more than 8 K images."""
        return self.deviation is not None

    @property
    def informative(self) -> bool:
        """Whether it says more than "an error is at most 1" about at least one class."""
        return self.per_class is not None and bool((self.per_class < 1).any())

    @property
    def images_needed(self) -> float:
        """Images that the smallest class would need for the complexity to fall below 1 for the rarest class.

        Weights, margin and input norm stay as they are, and all classes grow alike.
        """
        size, classes = 8 * len(self.counts) + 1.0, len(self.counts)
        total = self.counts.total / max(self.smallest, 1)

        def complexity(images: float) -> float:
            log_term = math.log(0.75 * images * cover_size(self.layers, total * images) / self.delta)
            return self.nu * (deviation(classes, images, self.kl, log_term) or 0.0)

        while complexity(size) >= 1:
            size *= 2
        low = max(size / 2, 8 * classes + 1.0)
        for _ in range(60):
            middle = (low + size) / 2
            low, size = (middle, size) if complexity(middle) >= 1 else (low, middle)
        return math.ceil(size)

    def explain(self) -> str:
        """The terms, and in plain words whether the bound exists and says anything."""
        return explain(self)

    __str__ = explain


def deviation(num_classes: int, smallest: float, kl: float, log_term: float) -> float | None:
    """``4 sqrt(K / (m_min - 8K) * (KL + log_term))``, or None where it is undefined.

    Example:
        >>> deviation(2, 416, kl=20.0, log_term=5.0)
        1.4142135623730951
        >>> deviation(100, 5, kl=20.0, log_term=5.0) is None
        True
    """
    room = smallest - 8 * num_classes
    return 4 * math.sqrt(num_classes / room * (kl + log_term)) if room > 0 else None


def cover_size(layers: int, samples: float) -> float:
    """Guesses of the mean spectral norm, ``n m^(1/2n)``, that come within a share 1/n of every one that matters."""
    return float(layers * samples ** (1 / (2 * layers)))
