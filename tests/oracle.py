"""CAR by slow loops, written from the formulas of the paper and of nothing else; and the data the tests run it on.

Everything here is float64 and differentiable. One sample at a time, one label of that sample at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from spectail import MixedTarget

Target = Tensor | MixedTarget


def row(
    f: Tensor,
    j: int,
    skip: int | None,
    gamma: float,
    competitors: str,
    gate_grad: bool,
    surrogate: str,
    temperature: float,
    baseline_grad: bool,
) -> Tensor:
    """What one sample with scores ``f`` and label j adds to column j; ``skip`` is a class that is no error."""
    others = [i for i in range(len(f)) if i != j]
    lead = f - f[j]
    above = lead if baseline_grad else f - f[j].detach()
    if surrogate in ("full", "no-gate"):
        pool = others if competitors == "non-target" else [*others, j]
        grown = (lead / temperature).exp()
        select = grown / grown[pool].sum()
    else:
        total = above[others].relu().sum()
        select = above.relu() / total if total > 0 else torch.zeros_like(f)
    if surrogate == "no-gate":
        gate = torch.ones_like(f)
    elif surrogate == "no-both":
        gate = (gamma + lead).relu().detach()
    else:
        gate = 1 / (1 + (-gamma - lead).exp())
        gate = gate if gate_grad else gate.detach()
    keep = torch.tensor([float(i not in (j, skip)) for i in range(len(f))], dtype=f.dtype)
    return select * gate * keep


def labels_of(target: Target, q: int, mixed: str, ignore_index: int) -> list[tuple[int, float, int | None]]:
    """The labels of sample q as (class, mass, class that is no error)."""
    if isinstance(target, MixedTarget):
        a, b, lam = int(target.a[q]), int(target.b[q]), float(target.lam[q])
        if ignore_index in (a, b):
            return []
        if mixed == "dominant":
            return [(a if lam >= 0.5 else b, 1.0, None)]
        if mixed == "clean":
            return [(a if lam > 0 else b, 1.0, None)] if a == b or lam in (0.0, 1.0) else []
        masked = mixed == "masked" and 0 < lam < 1
        pairs = [(a, lam, b if masked else None), (b, 1 - lam, a if masked else None)]
        return [pair for pair in pairs if pair[1] > 0]
    if target.ndim == 2:
        return [(j, mass, None) for j, mass in enumerate(target[q].tolist()) if mass > 0]
    return [] if int(target[q]) == ignore_index else [(int(target[q]), 1.0, None)]


def columns_of(
    logits: Tensor,
    target: Target,
    gamma: float = 0.0,
    competitors: str = "all",
    gate_grad: bool = True,
    surrogate: str = "full",
    mixed: str = "masked",
    ignore_index: int = -100,
    temperature: float = 1.0,
    baseline_grad: bool = True,
) -> tuple[dict[int, Tensor], dict[int, float]]:
    """Summed rows and label mass of each class in the batch."""
    columns: dict[int, Tensor] = {}
    mass: dict[int, float] = {}
    for q, f in enumerate(logits.double()):
        for j, share, skip in labels_of(target, q, mixed, ignore_index):
            options = (gamma, competitors, gate_grad, surrogate, temperature, baseline_grad)
            columns[j] = columns.get(j, 0) + share * row(f, j, skip, *options)
            mass[j] = mass.get(j, 0.0) + share
    return columns, mass


def replace_columns(matrix: Tensor, columns: dict[int, Tensor]) -> Tensor:
    if not columns:
        return matrix
    return matrix.index_copy(1, torch.tensor(list(columns)), torch.stack(list(columns.values()), 1))


def damped_confusion(columns: dict[int, Tensor], mass: dict[int, float], num_classes: int) -> Tensor:
    damped = {j: total / max(mass[j], 1.0) for j, total in columns.items()}
    return replace_columns(torch.zeros(num_classes, num_classes, dtype=torch.float64), damped)


def soft_confusion(logits: Tensor, target: Target, **options: object) -> Tensor:
    return damped_confusion(*columns_of(logits, target, **options), logits.shape[1])


def hard_confusion(pred: Tensor, target: Target, num_classes: int, mixed: str = "masked") -> Tensor:
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    mass = torch.zeros(num_classes, dtype=torch.float64)
    for q, i in enumerate(pred.tolist()):
        for j, share, skip in labels_of(target, q, mixed, -100):
            mass[j] += share
            counts[i, j] += share * (i not in (j, skip))
    return torch.stack([counts[:, j] / mass[j] if mass[j] > 0 else counts[:, j] for j in range(num_classes)], 1)


def weights_of(counts: list[int], r0: float = 0.2, normalize: bool = False) -> Tensor:
    raw = [(n / sum(counts) + r0) ** -0.5 for n in counts]
    mean = sum(raw) / len(raw) if normalize else 1.0
    return torch.tensor([value / mean for value in raw], dtype=torch.float64)


class SlowCAR:
    """The regulariser, with the options of ``CAR``."""

    def __init__(
        self,
        counts: list[int],
        *,
        beta: float = 0.5,
        r0: float = 0.2,
        ema: str = "batch",
        ema_start: str = "zero",
        weighting: str | None = "frequency",
        normalize_weights: bool = False,
        prior_shift: float = 0.0,
        norm: str = "spectral",
        sharpness: float = 20.0,
        **batch_options: object,
    ) -> None:
        self.beta, self.ema, self.ema_start, self.batch_options = beta, ema, ema_start, batch_options
        self.norm, self.sharpness = norm, sharpness
        size, total = len(counts), sum(counts)
        self.weights = weights_of(counts, r0, normalize_weights) if weighting else torch.ones(size, dtype=torch.float64)
        self.shift = prior_shift * torch.tensor([n / total for n in counts], dtype=torch.float64).log()
        self.confusion = torch.zeros(size, size, dtype=torch.float64)
        self.seen: set[int] = set()

    def __call__(self, logits: Tensor, target: Target, commit: bool = True) -> Tensor:
        columns, mass = columns_of(logits.double() + self.shift, target, **self.batch_options)
        if not mass:  # no usable label: nothing to say, nothing to learn
            return logits.double().sum() * 0
        after = self._batch(columns, mass) if self.ema == "batch" else self._by_class(columns, mass)
        self.latest = after
        if commit:
            self.confusion = after.detach()
            self.seen |= set(mass)
        if self.norm == "worst":
            return self._worst(after) + 0 * logits.double().sum()
        used = after.detach().any(0)  # columns of zeros change nothing
        self.weighted = after[:, used] * self.weights[used]
        norm = torch.linalg.matrix_norm(self.weighted, 2) if used.any() else after.sum()
        return norm + 0 * logits.double().sum()  # a gradient even where all is constant

    def gap(self) -> float:
        """Second singular value over the first, at the latest call; 0 if there is none."""
        if self.norm == "worst":
            return 0.0
        values = torch.linalg.svdvals(self.weighted.detach()).tolist()
        return values[1] / values[0] if len(values) > 1 and values[0] > 0 else 0.0

    def _worst(self, confusion: Tensor) -> Tensor:
        """Class errors, each with its share in a softmax that is not differentiated."""
        errors = [weight * column.sum() for weight, column in zip(self.weights, confusion.T, strict=True)]
        known = [error.item() for error in errors]
        grown = [math.exp(self.sharpness * error / (max(known) or 1.0)) for error in known]
        return sum(share / sum(grown) * error for share, error in zip(grown, errors, strict=True))

    def _batch(self, columns: dict[int, Tensor], mass: dict[int, float]) -> Tensor:
        new = damped_confusion(columns, mass, len(self.weights))
        if self.ema_start == "first" and not self.seen:
            return new.detach()
        return self.beta * self.confusion + (1 - self.beta) * new

    def _by_class(self, columns: dict[int, Tensor], mass: dict[int, float]) -> Tensor:
        after: dict[int, Tensor] = {}
        for j, total in columns.items():
            rate, new = (1 - self.beta) * min(mass[j], 1.0), total / mass[j]
            if self.ema_start == "first" and j not in self.seen:
                rate, new = min(mass[j], 1.0), new.detach()
            after[j] = (1 - rate) * self.confusion[:, j] + rate * new
        return replace_columns(self.confusion, after)


def long_tail(num_classes: int, largest: int = 300, factor: float = 100.0) -> list[int]:
    return [max(1, int(largest * factor ** (-c / (num_classes - 1)))) for c in range(num_classes)]


def make_target(kind: str, labels: Tensor, num_classes: int, rng: torch.Generator) -> Target:
    """The same labels as ``"hard"``, ``"soft"`` (three classes each), ``"mixed"`` (some pure) or ``"ignored"`` ones."""
    size = len(labels)
    if kind == "hard":
        return labels
    if kind == "ignored":
        return labels.where(torch.rand(size, generator=rng) > 0.3, -100)
    if kind == "soft":
        mass = torch.rand(size, 3, generator=rng, dtype=torch.float64)
        mass = mass / mass.sum(1, keepdim=True)
        where = torch.stack([labels, labels.flip(0), labels.roll(1)], 1)
        return torch.zeros(size, num_classes, dtype=torch.float64).scatter_add_(1, where, mass)
    lam = torch.rand(size, generator=rng, dtype=torch.float64)
    lam[::5], lam[3::5] = 1.0, 0.0
    return MixedTarget(labels, labels.roll(1), lam)


def batches(
    counts: list[int],
    steps: int,
    size: int = 24,
    dtype: torch.dtype = torch.float32,
    kind: str = "hard",
    seed: int = 0,
    scale: float = 1.5,
    lead: float = 1.5,
) -> Iterator[tuple[Tensor, Target]]:
    """Batches drawn with the class frequencies: normal scores times ``scale``, the true class ahead by ``lead``."""
    rng = torch.Generator().manual_seed(seed)
    frequency = torch.tensor(counts, dtype=torch.float64)
    for _ in range(steps):
        labels = torch.multinomial(frequency, size, replacement=True, generator=rng)
        logits = scale * torch.randn(size, len(counts), generator=rng, dtype=torch.float64)
        logits[torch.arange(size), labels] += lead
        yield logits.to(dtype), make_target(kind, labels, len(counts), rng)


def one_batch(num_classes: int = 7, **options: object) -> tuple[Tensor, Target]:
    return next(batches(long_tail(num_classes), 1, **options))


def value_and_gradient(fn: Callable[..., Tensor], logits: Tensor, target: Target) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    value = fn(logits, target)
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient


def assert_near(found: Tensor, wanted: Tensor, tolerance: float, what: str = "") -> None:
    """The error is at most ``tolerance`` times the size of what was wanted, as a whole."""
    found, wanted = found.detach().double(), wanted.detach().double()
    error, size = float((found - wanted).norm()), float(wanted.norm())
    assert error <= tolerance * size, f"{what} off by {error:.3g}, at size {size:.3g}"


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same_state(module: nn.Module, wanted: dict[str, Tensor]) -> None:
    found = module.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, f"{name} changed from {value.dtype} to {found[name].dtype}"
        assert torch.equal(found[name], value), f"{name} changed"
