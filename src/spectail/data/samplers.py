"""Which training image comes next: the samplers of long-tailed learning, exact, resumable and shared out over ranks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from .._utils.checks import check_number
from .._utils.names import nearest
from ..counts import ClassCounts, CountsLike, as_counts, flat_labels

SAMPLERS = ("instance", "class-balanced", "square-root", "progressive", "reversed", "effective-number", "exponent")
_OPTION = {"progressive": "epochs", "effective-number": "beta", "exponent": "exponent"}  # what a kind depends on


def class_probabilities(
    class_counts: CountsLike, how: str, *, epoch: int = 0, epochs: int = 1, exponent: float = 1.0, beta: float = 0.9999
) -> NDArray[np.float64]:
    """Probability that one draw is of class j, which has n_j of the N images. Empty classes have probability 0.

    ==================  ====================================================  =====================================
    how                 probability of class j                                reference
    ==================  ====================================================  =====================================
    instance            n_j / N
    class-balanced      1 / K, over the K classes that have images            Kang et al., Decoupling, ICLR 2020
    square-root         proportional to n_j^(1/2)                             Mahajan et al., ECCV 2018
    progressive         (1 - t/T) instance + (t/T) class-balanced             Kang et al., Decoupling, ICLR 2020
    reversed            proportional to n_max / n_j                           Zhou et al., BBN, CVPR 2020
    effective-number    proportional to n_j (1 - beta) / (1 - beta^(n_j))     Cui et al., CVPR 2019
    exponent            proportional to n_j^(1 - a), each image n_j^(-a)      Park et al., CMO, CVPR 2022
    ==================  ====================================================  =====================================

    Args:
        class_counts: training images per class, in label order.
        how: one of ``SAMPLERS``.
        epoch: t of the progressive sampler, counted from 0.
        epochs: T of the progressive sampler; t must stay below it.
        exponent: a of the exponent sampler: 0 is instance, 0.5 square-root, 1 class-balanced, 2 reversed.
        beta: of the effective number, in [0, 1): 0 is instance, close to 1 is class-balanced.

    Example:
        >>> class_probabilities([100, 10, 1], "square-root").round(5).tolist()
        [0.7061, 0.22329, 0.07061]
        >>> class_probabilities([8, 2, 0], "progressive", epoch=1, epochs=2).round(5).tolist()
        [0.65, 0.35, 0.0]
    """
    _check_settings(how, epochs, exponent, beta)
    _whole("epoch", epoch)
    if how == "progressive" and epoch >= epochs:
        raise ValueError(f"epoch of the progressive sampler must lie in [0, {epochs}); got {epoch}. Raise epochs.")
    counts = as_counts(class_counts, on_empty="ignore").counts.numpy()
    n = counts[counts > 0].astype(np.float64)
    if how == "instance":
        weight = n
    elif how == "class-balanced":
        weight = np.ones_like(n)
    elif how == "square-root":
        weight = np.sqrt(n)
    elif how == "progressive":
        weight = (1 - epoch / epochs) * n / n.sum() + epoch / epochs / n.size
    elif how == "reversed":
        weight = n.max() / n
    elif how == "effective-number":  # its factor 1 - beta cancels
        weight = n / (1 - beta**n)
    else:  # the ratio keeps every power in [0, 1], so that no exponent overflows
        weight = (n / (n.max() if exponent <= 1 else n.min())) ** (1 - exponent)
    probabilities = np.zeros(counts.size)
    probabilities[counts > 0] = weight / weight.sum()
    return probabilities


class LongTailSampler(Sampler[int]):
    """Image indices in training order, for ``DataLoader(dataset, batch_size, sampler=...)``.

    ``how="instance"`` gives every image once per epoch, in random order. All other kinds draw independently and with
    replacement: a class by :func:`class_probabilities`, then one of its images, all equally likely.

    **Order.** The global sequence of an epoch depends on the settings, the seed and the epoch, on nothing else. Call
    ``set_epoch(epoch)`` before each epoch. Without it, an iteration continues where the last one stopped, or with the
    next epoch after a complete one, so that the same order is never repeated by accident.

    **Ranks.** Rank r of W takes places r, r + W, r + 2W, ... of the global sequence: no image is padded or doubled,
    and with equal batch sizes the t-th batches of all ranks are together the t-th batch of a single process with W
    times the batch size. The first ranks get one image more if W does not divide ``length``. A job whose ranks must
    all make the same number of steps passes a length that fits, such as ``length=N // (W * batch) * (W * batch)``.

    **Resuming.** ``state_dict()`` holds the epoch and the number of its samples consumed by all ranks together; it
    may be loaded with another number of ranks, which then share out the rest of the epoch. A ``DataLoader`` with
    workers fetches ahead: count what the training loop consumed (``steps * batch * W`` in this epoch) and save
    ``state_dict(consumed=...)``, or call ``seek(epoch, consumed)`` on resuming. Then
    ``for epoch in range(sampler.epoch, epochs): sampler.set_epoch(epoch)`` finishes the epoch cut short, and goes on.

    Args:
        labels: label of every image: a list, an array, a tensor, or a data set with ``targets``.
        how: one of ``SAMPLERS``.
        seed: whole number, the same on all ranks.
        length: samples per epoch over all ranks; None for one per image. Instance sampling chains whole permutations
            and cuts the last one.
        epochs: of the whole training, for ``how="progressive"``.
        exponent: for ``how="exponent"``.
        beta: for ``how="effective-number"``.
        num_classes: if classes without images follow the last label.
        rank: of this process.
        world_size: number of processes.

    Example:
        >>> sampler = LongTailSampler([0, 0, 0, 0, 0, 0, 1, 1], seed=3)
        >>> sorted(sampler)
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> balanced = LongTailSampler([0] * 900 + [1] * 100, "class-balanced", length=10_000)
        >>> bool(abs((balanced.order(0) >= 900).mean() - 0.5) < 0.02)
        True
        >>> first, second = (LongTailSampler([0, 0, 0, 1, 1], rank=rank, world_size=2) for rank in (0, 1))
        >>> sorted([*first, *second]), len(first), len(second)
        ([0, 1, 2, 3, 4], 3, 2)
    """

    def __init__(
        self,
        labels: Any,
        how: str = "instance",
        *,
        seed: int = 0,
        length: int | None = None,
        epochs: int = 1,
        exponent: float = 1.0,
        beta: float = 0.9999,
        num_classes: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check_settings(how, epochs, exponent, beta)
        values = flat_labels(labels, "labels").numpy()
        self.class_counts = ClassCounts.from_targets(values, num_classes)
        self.how, self.epochs, self.exponent, self.beta = how, int(epochs), float(exponent), float(beta)
        self.seed = _whole("seed", seed)
        self.length = values.size if length is None else _whole("length", length, 1)
        self.world_size = _whole("world_size", world_size, 1)
        self.rank = _whole("rank", rank)
        if rank >= world_size:
            raise ValueError(f"rank must lie in [0, world_size) = [0, {world_size}); got {rank}.")
        self._by_class: NDArray[np.int64] = np.argsort(values, kind="stable")  # images of class 0, of class 1, ...
        self._counts: NDArray[np.int64] = self.class_counts.counts.numpy()
        self._offsets = np.cumsum(self._counts) - self._counts
        self.settings: dict[str, Any] = {"how": how, "seed": self.seed, "length": self.length}
        """All that the order depends on; fit for JSON."""
        self.settings["labels"] = hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:16]
        if how in _OPTION:
            self.settings[_OPTION[how]] = getattr(self, _OPTION[how])
        self.seek(0)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The whole global sequence of an epoch, before it is shared out over ranks."""
        probabilities = class_probabilities(
            self.class_counts, self.how, epoch=epoch, epochs=self.epochs, exponent=self.exponent, beta=self.beta
        )
        # The leading bytes keep this stream apart from others with the same seed and epoch. Only uniforms are drawn,
        # the plainest stream numpy has and the least likely to change between its versions.
        rng = np.random.default_rng([*b"sampler", self.seed, epoch])
        if self.how == "instance":
            images = self._by_class.size
            rounds = -(-self.length // images)
            permutations: NDArray[np.int64] = rng.random((rounds, images)).argsort(axis=1, kind="stable")
            return permutations.ravel()[: self.length]
        edges = probabilities.cumsum()
        classes = np.searchsorted(edges / edges[-1], rng.random(self.length), side="right")
        places = (rng.random(self.length) * self._counts[classes]).astype(np.int64)
        drawn: NDArray[np.int64] = self._by_class[self._offsets[classes] + places]
        return drawn

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; in the epoch the sampler was sought to, to the place sought."""
        self.seek(epoch, self._start if epoch == self.epoch else 0)

    def seek(self, epoch: int, position: int = 0) -> None:
        """Go to the place where ``position`` samples of the epoch have been consumed, by all ranks together.

        Rank r goes on with places position + r, position + r + W, ...; the end of an epoch is the start of the next.
        """
        epoch, position = _whole("epoch", epoch), _whole("position", position)
        if position > self.length:
            raise ValueError(f"position must lie in [0, {self.length}], samples of one epoch; got {position}.")
        self.epoch, self._start = (epoch + 1, 0) if position == self.length else (epoch, position)
        self.position = self._start

    def __iter__(self) -> Iterator[int]:
        if self.position == self.length:
            self.set_epoch(self.epoch + 1)
        start, step = self.position, self.world_size
        for taken, index in enumerate(self.order(self.epoch)[start + self.rank :: step].tolist(), 1):
            self.position = min(start + taken * step, self.length)
            yield index
        self.position = self.length  # the epoch changes with the next iteration: a loader may still be serving this one

    def __len__(self) -> int:
        """This rank's share of a whole epoch, also where an epoch is resumed."""
        return len(range(self.rank, self.length, self.world_size))

    def state_dict(self, *, consumed: int | None = None) -> dict[str, Any]:
        """Epoch, samples of it consumed by all ranks (``consumed`` if given), and the settings; fit for JSON."""
        position = self.position if consumed is None else _whole("consumed", consumed)
        if position > self.length:
            raise ValueError(f"consumed must lie in [0, {self.length}], samples of one epoch; got {consumed}.")
        return {"epoch": self.epoch, "position": position, "settings": dict(self.settings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the sampler of ``state_dict`` stopped. Rank and world size may differ, other settings may not."""
        saved, here = state.get("settings") if isinstance(state, Mapping) else None, self.settings
        if not isinstance(saved, Mapping) or not {"epoch", "position"} <= state.keys():
            raise ValueError("state must be what LongTailSampler.state_dict() returned: epoch, position and settings.")
        differing = [name for name in {**here, **saved} if saved.get(name) != here.get(name)]
        if differing:
            pairs = ", ".join(f"{name} ({saved.get(name)!r} saved, {here.get(name)!r} here)" for name in differing)
            raise ValueError(f"state is of a sampler with another {pairs}; make the sampler as it was when saved.")
        self.seek(state["epoch"], state["position"])


class DeferredSampler:
    """``first`` before the epoch ``switch``, ``then`` from it on. Which one follows from the epoch alone.

    Example:
        >>> labels = [0, 0, 0, 1]
        >>> both = DeferredSampler(LongTailSampler(labels), LongTailSampler(labels, "class-balanced"), switch=1)
        >>> sorted(both.order(0).tolist())
        [0, 1, 2, 3]
    """

    def __init__(self, first: LongTailSampler, then: LongTailSampler, switch: int) -> None:
        if first.length != then.length:
            raise ValueError(f"both samplers must have one length; got {first.length} and {then.length}.")
        self.first, self.then, self.switch = first, then, switch
        self.length, self.class_counts, self.world_size = first.length, first.class_counts, first.world_size
        self.settings = first.settings | {"then": then.settings, "switch": switch}

    def order(self, epoch: int) -> NDArray[np.int64]:
        return (self.first if epoch < self.switch else self.then).order(epoch)


def _check_settings(how: str, epochs: int, exponent: float, beta: float) -> None:
    if how not in SAMPLERS:
        raise ValueError(f"there is no sampler {how!r}; {nearest(how, SAMPLERS)}")
    _whole("epochs", epochs, 1)
    check_number(exponent=exponent, beta=beta)
    if not math.isfinite(exponent):
        raise ValueError(f"exponent must be a finite number; got {exponent}.")
    if not 0 <= beta < 1:
        raise ValueError(f"beta must lie in [0, 1); got {beta}. The usual value is 0.9999.")


def _whole(name: str, value: int, least: int = 0) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number; got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value}.")
    return int(value)
