"""The terms of the bound, named and explained, and the two formulas that need only numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..counts import ClassCounts


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
        """The terms as a table, and in plain words whether the bound exists and says anything."""
        rows = [(name, _number(value), meaning) for name, value, meaning in _rows(self)]
        wide, deep = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
        table = [f"  {name:<{wide}}  {value:>{deep}}  {meaning}" for name, value, meaning in rows]
        return "\n".join([_heading(self), *table, _verdict(self)])

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


def _heading(bound: Bound) -> str:
    layers = f"{bound.layers} {'layer' if bound.layers == 1 else 'layers'} of width {bound.width}"
    folded = ", biases folded into the matrices" if bound.folded else ""
    return (
        f"Bound on class errors: {len(bound.counts)} classes, {bound.counts.total:,} images, {layers}{folded}, "
        f"margin {bound.gamma:g}, confidence {1 - bound.delta:.4g}."
    )


def _rows(bound: Bound) -> list[tuple[str, float | None, str]]:
    rarest = int(bound.weights.argmax())
    name = bound.counts.describe(rarest)
    return [
        ("spectral_norm", bound.spectral_norm, "of the margin confusion times the class weights"),
        ("nu", bound.nu, "square root of the number of classes"),
        ("empirical", float(bound.empirical[rarest]), f"nu * spectral_norm / weight, for {name}, the rarest"),
        ("input_norm", bound.input_norm, "longest input, B"),
        ("spectral_product", bound.spectral_product, "product of the spectral norms of the layers"),
        ("norm_ratios", bound.norm_ratios, "sum of squared Frobenius over spectral norms"),
        ("psi", bound.psi, "complexity of the network as the proposition prints it"),
        ("sigma", bound.sigma, "noise in the weights that the margin survives"),
        ("kl", bound.kl, "price of that noise"),
        ("log_term", bound.log_term, "price of delta and of the grid of norms"),
        ("deviation", bound.deviation, "between sample and distribution, spectral norm"),
        ("complexity", _at(bound.complexity, rarest), f"nu * deviation, for {name}"),
        ("per_class", _at(bound.per_class, rarest), f"bound on the error of {name}: empirical + complexity"),
        ("direct", _at(bound.direct, rarest), "the same by column sums: margin error + nu * deviation"),
        ("total", bound.total, f"bound on the weighted worst-class error, which is at most {bound.weights.max():.4g}"),
    ]


def _verdict(bound: Bound) -> str:
    classes, least = len(bound.counts), 8 * len(bound.counts)
    label = int(bound.counts.counts.argmin())
    if bound.per_class is None or bound.complexity is None:
        return (
            f"UNDEFINED: the bound needs more than 8 K = {least:,} images in every class, and "
            f"{bound.counts.describe(label)} has {bound.smallest:,}. Nothing follows from it for this training set."
        )
    below = int((bound.per_class < 1).sum())
    if below:
        best = float(bound.per_class.min())
        return (
            f"DEFINED AND INFORMATIVE: with probability {1 - bound.delta:.4g} it keeps the error of {below} of "
            f"{classes} classes below 1, at best below {best:.4g}."
        )
    reasons = []
    if float(bound.complexity.min()) >= 1:
        reasons.append(
            f"the complexity alone is at least {_number(float(bound.complexity.min()))}; for it to fall below 1 the "
            f"smallest class would need about {bound.images_needed:.1e} images instead of {bound.smallest:,}"
        )
    if float(bound.empirical.min()) >= 1:
        share = float(bound.margin_errors.max())
        reasons.append(
            f"the empirical part alone is at least {_number(float(bound.empirical.min()))}, because at this margin up "
            f"to {share:.1%} of a class count as errors on the training set"
        )
    if not reasons:
        reasons.append("its two parts add up to 1 or more, though neither does alone")
    direct = ""
    if bound.direct is not None and bool((bound.direct < 1).any()):
        direct = f" The direct form does say something: it is {_number(float(bound.direct.min()))} at best."
    return (
        f"DEFINED BUT VACUOUS: every class has more than 8 K = {least:,} images, but the bound is "
        f"{_number(float(bound.per_class.min()))} or more for every class and an error is never above 1: "
        f"{'; and '.join(reasons)}.{direct}"
    )


def _at(values: Tensor | None, label: int) -> float | None:
    return None if values is None else float(values[label])


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"
