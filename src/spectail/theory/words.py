"""A bound in words: its terms, whether it exists, and whether it says anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .terms import Bound


def explain(found: Bound) -> str:
    """The terms as a table, then the verdict."""
    rows = [(name, _number(value), meaning) for name, value, meaning in _terms(found)]
    wide, deep = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    table = [f"  {name:<{wide}}  {value:>{deep}}  {meaning}" for name, value, meaning in rows]
    return "\n".join([_heading(found), *table, _verdict(found)])


def _heading(found: Bound) -> str:
    layers = f"{found.layers} {'layer' if found.layers == 1 else 'layers'} of width {found.width}"
    folded = ", biases folded into the matrices" if found.folded else ""
    return (
        f"Bound on class errors: {len(found.counts)} classes, {found.counts.total:,} images, {layers}{folded}, "
        f"margin {found.gamma:g}, confidence {1 - found.delta:.4g}."
    )


def _terms(found: Bound) -> list[tuple[str, float | None, str]]:
    rarest = int(found.weights.argmax())
    name = found.counts.describe(rarest)
    return [
        ("spectral_norm", found.spectral_norm, "of the margin confusion times the class weights"),
        ("nu", found.nu, "square root of the number of classes"),
        ("empirical", float(found.empirical[rarest]), f"nu * spectral_norm / weight, for {name}, the rarest"),
        ("input_norm", found.input_norm, "longest input, B"),
        ("spectral_product", found.spectral_product, "product of the spectral norms of the layers"),
        ("norm_ratios", found.norm_ratios, "sum of squared Frobenius over spectral norms"),
        ("psi", found.psi, "complexity of the network as the proposition prints it"),
        ("sigma", found.sigma, "noise in the weights that the margin survives"),
        ("kl", found.kl, "price of that noise"),
        ("log_term", found.log_term, "price of delta and of the grid of norms"),
        ("deviation", found.deviation, "between sample and distribution, spectral norm"),
        ("complexity", _at(found.complexity, rarest), f"nu * deviation, for {name}"),
        ("per_class", _at(found.per_class, rarest), f"bound on the error of {name}: empirical + complexity"),
        ("direct", _at(found.direct, rarest), "the same by column sums: margin error + nu * deviation"),
        ("total", found.total, f"bound on the weighted worst-class error, which is at most {found.weights.max():.4g}"),
    ]


def _verdict(found: Bound) -> str:
    classes, least = len(found.counts), 8 * len(found.counts)
    label = int(found.counts.counts.argmin())
    if found.per_class is None or found.complexity is None:
        return (
            f"UNDEFINED: the bound needs more than 8 K = {least:,} images in every class, and "
            f"{found.counts.describe(label)} has {found.smallest:,}. Nothing follows from it for this training set."
        )
    below = int((found.per_class < 1).sum())
    if below:
        best = float(found.per_class.min())
        return (
            f"DEFINED AND INFORMATIVE: with probability {1 - found.delta:.4g} it keeps the error of {below} of "
            f"{classes} classes below 1, at best below {best:.4g}."
        )
    reasons = []
    if float(found.complexity.min()) >= 1:
        reasons.append(
            f"the complexity alone is at least {_number(float(found.complexity.min()))}; for it to fall below 1 the "
            f"smallest class would need about {found.images_needed:.1e} images instead of {found.smallest:,}"
        )
    if float(found.empirical.min()) >= 1:
        share = float(found.margin_errors.max())
        reasons.append(
            f"the empirical part alone is at least {_number(float(found.empirical.min()))}, because at this margin up "
            f"to {share:.1%} of a class count as errors on the training set"
        )
    if not reasons:
        reasons.append("its two parts add up to 1 or more, though neither does alone")
    direct = ""
    if found.direct is not None and bool((found.direct < 1).any()):
        direct = f" The direct form does say something: it is {_number(float(found.direct.min()))} at best."
    return (
        f"DEFINED BUT VACUOUS: every class has more than 8 K = {least:,} images, but the bound is "
        f"{_number(float(found.per_class.min()))} or more for every class and an error is never above 1: "
        f"{'; and '.join(reasons)}.{direct}"
    )


def _at(values: Tensor | None, place: int) -> float | None:
    return None if values is None else float(values[place])


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"
