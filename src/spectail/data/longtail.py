"""Long-tailed subsets: how many images each class keeps, and exactly which ones.

Two steps, each a small pure function. A *profile* gives the wanted number of images per class; a *selection* picks the
images. Both follow the rules that the field's CIFAR-LT code shares, so the same name means the same images.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from .._utils.checks import check_choice
from ..counts import ClassCounts

SELECTIONS = ("ldam", "first-n")


def exponential(largest: int, num_classes: int, imbalance: float) -> list[int]:
    """n_i = int(n_max * (1 / IF)^(i / (K - 1))), truncated: the CIFAR-LT rule.

    It uses Python floats, because a float32 factor or a logspace would lose an image of the last class.

    Example:
        >>> exponential(500, 5, imbalance=100)
        [500, 158, 50, 15, 5]
    """
    factor = 1.0 / check_imbalance(imbalance)
    counts = [int(largest * factor ** (i / (num_classes - 1))) for i in range(num_classes - 1)]
    return [*counts, int(largest / imbalance)]  # 49 * (1 / 49) is less than 1, 49 / 49 is not


def step(largest: int, num_classes: int, imbalance: float) -> list[int]:
    """The first half of the classes keeps n_max, the second half gets int(n_max / IF).

    Example:
        >>> step(500, 5, imbalance=10)
        [500, 500, 50, 50, 50]
    """
    half = num_classes // 2
    return [largest] * half + [int(largest / check_imbalance(imbalance))] * (num_classes - half)


RULES = {"exponential": exponential, "step": step}
PROFILES = tuple(RULES)


def profile(name: str, available: Sequence[int], imbalance: float, *, largest: int | None = None) -> list[int]:
    """Images per class under a named rule, given what each class has; position is the class's place in the rule.

    ``largest`` is n_max; by default the largest one for which every class can supply its share.
    """
    check_choice("profile", name, PROFILES)
    if largest is not None and largest < 1:
        raise ValueError(f"the size of the largest class must be 1 or more; got {largest}.")
    if largest is not None:
        return RULES[name](largest, len(available), imbalance)
    share = RULES[name](10**9, len(available), imbalance)
    # Start from the tightest class, then walk up past what truncation allows.
    largest = min(int(have * 10**9 / max(part, 1)) for have, part in zip(available, share, strict=True))
    while _fits(RULES[name](largest + 1, len(available), imbalance), available):
        largest += 1
    while largest > 0 and not _fits(RULES[name](largest, len(available), imbalance), available):
        largest -= 1
    return RULES[name](largest, len(available), imbalance)


def check_supply(wanted: Sequence[int], available: ClassCounts, *, imbalance: float | None) -> None:
    """Refuse a profile that leaves a class without images or asks for more than there are."""
    given = imbalance is None
    for label, (want, have) in enumerate(zip(wanted, available.tolist(), strict=True)):
        name = available.describe(label)
        if want < 1 and given:
            raise ValueError(f"the given counts ask for {want} images of {name}; every class needs at least 1.")
        if want < 1:
            raise ValueError(
                f"an imbalance factor of {imbalance:g} leaves {name} with no image: the largest class has only "
                f"{max(wanted)}. Choose a factor of {max(wanted)} or less."
            )
        if want > have:
            rule = "the given counts need" if given else f"an imbalance factor of {imbalance:g} needs"
            more = (
                "Lower the largest class (--max-per-class), order classes by size (--order size), or accept it (--cap)."
            )
            advice = "Ask for fewer." if given else more
            raise ValueError(f"{rule} {want} images of {name}, which has {have}. {advice}")


def select(
    labels: NDArray[np.int64], wanted: Sequence[int], *, selection: str = "ldam", seed: int = 0
) -> tuple[NDArray[np.int64], str]:
    """Positions of the kept images, class after class, and the hash of their within-class ranks.

    ``"ldam"``: NumPy's legacy generator is seeded once; each class in ascending order is shuffled whole and its first
    n_i images are kept. Every class is shuffled at full length, so with one seed the subsets are nested.
    ``"first-n"``: the first n_i images of each class in stored order.

    The rank of an image is its place among its class in stored order. Ranks do not depend on how classes are
    interleaved, so their hash identifies the subset across file layouts.

    Example:
        >>> kept, ranks = select(np.array([0, 1, 0, 1, 0]), [2, 1], selection="first-n")
        >>> kept.tolist()
        [0, 2, 1]
    """
    check_choice("selection", selection, SELECTIONS)
    check_seed(seed)
    order, bounds = by_class(labels, len(wanted))
    generator = np.random.RandomState(seed)  # legacy on purpose: the field's subsets come from it
    kept, digest = [], hashlib.sha256()
    for label, count in enumerate(wanted):
        ranks = np.arange(bounds[label + 1] - bounds[label])
        if selection == "ldam":
            generator.shuffle(ranks)
        kept.append(order[bounds[label] + ranks[:count]])
        digest.update((",".join(map(str, ranks[:count])) + ";").encode())
    return np.concatenate(kept), digest.hexdigest()[:16]


def hold_out(
    labels: NDArray[np.int64], names: Sequence[str], *, fraction: float = 0.0, per_class: int = 0, seed: int = 0
) -> NDArray[np.bool_]:
    """A mask of images to hold out of a training set, by class: a fraction, or the same number of each.

    A fraction takes at least one image of every class that has two or more, and always leaves one to train on.
    """
    if fraction and per_class:
        raise ValueError("give a fraction or a number per class to hold out, not both.")
    if not 0 <= fraction < 1:
        raise ValueError(f"the fraction to hold out must lie in [0, 1); got {fraction:g}.")
    if per_class < 0:
        raise ValueError(f"the number per class to hold out must not be negative; got {per_class}.")
    check_seed(seed)
    held = np.zeros(len(labels), dtype=bool)
    if not fraction and not per_class:
        return held
    generator = np.random.default_rng([seed, 1])
    order, bounds = by_class(labels, len(names))
    for label, name in enumerate(names):
        members = order[bounds[label] : bounds[label + 1]]
        if per_class and len(members) <= per_class:
            raise ValueError(
                f"holding out {per_class} images of each class leaves class {label} ({name!r}) none to train on: it "
                f"has {len(members)}. Hold out fewer, or a fraction."
            )
        count = per_class or min(max(round(len(members) * fraction), 1), len(members) - 1)
        held[generator.permutation(members)[:count]] = True
    return held


def by_class(labels: NDArray[np.int64], num_classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions sorted by class, stored order within a class, and where each class begins and ends among them."""
    order = np.argsort(labels, kind="stable")
    return order, np.searchsorted(labels[order], np.arange(num_classes + 1))


def check_imbalance(imbalance: float) -> float:
    if not (isinstance(imbalance, Real) and math.isfinite(imbalance) and imbalance >= 1):
        raise ValueError(
            f"the imbalance factor is the largest class over the smallest, 1 or more; got {imbalance!r}."
            + (f" Did you mean {1 / imbalance:g}?" if isinstance(imbalance, float) and 0 < imbalance < 1 else "")
        )
    return float(imbalance)


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise ValueError(f"the data seed must lie in [0, 2**32); got {seed}.")


def _fits(wanted: Sequence[int], available: Sequence[int]) -> bool:
    return all(want <= have for want, have in zip(wanted, available, strict=True))
