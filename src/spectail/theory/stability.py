"""What averaging does to CAR's gradient: measured on a fixed linear model, beside what the paper predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..car import CAR
from ..counts import ClassCounts, CountsLike
from .gap import cm_gap

BETAS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
MODES = ("batch", "class")
MEMORIES = 4  # histories forget their start over so many time constants before anything is measured
LOOK = 10  # steps between two looks at the CM gap


class LinearProblem(NamedTuple):
    """A training set and the linear classifier that is looked at: logits are ``features @ weight.T + bias``."""

    features: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Point:
    """What was measured at one beta, over many batches with the model held fixed.

    Attributes:
        beta: share of the history that survives a step.
        norm: mean norm of the gradient of CAR with respect to the weight.
        variance: total variance of that gradient over batches, the trace of its covariance.
        mean_norm: norm of the mean gradient, the part that is not noise.
        turn: mean angle, in degrees, by which the right singular vector turns from one step to the next.
        gap: mean relative CM gap, see :func:`~spectail.theory.cm_gap`.
        aligned: mean cosine between the right singular vector and that of the whole training set.
        warm_up: steps that went before.
    """

    beta: float
    norm: float
    variance: float
    mean_norm: float
    turn: float
    gap: float
    aligned: float
    warm_up: int

    @property
    def noise(self) -> float:
        """Variance over the squared mean gradient: no rescaling of the gradient changes it."""
        return self.variance / self.mean_norm**2 if self.mean_norm else math.inf


@dataclass(frozen=True)
class Stability:
    """Curves over beta for each kind of averaging; ``measured[mode][0]`` is beta = 0, to which gains refer."""

    measured: dict[str, list[Point]]

    @property
    def betas(self) -> list[float]:
        return [point.beta for point in next(iter(self.measured.values()))]

    @property
    def predicted_gain(self) -> list[float]:
        """1 - beta: the factor on the way from the batch's confusion to the weights."""
        return [1 - beta for beta in self.betas]

    @property
    def predicted_variance(self) -> list[float]:
        """(1 - beta)^2: the variance, if the factor were all that averaging changes."""
        return [(1 - beta) ** 2 for beta in self.betas]

    def gain(self, mode: str) -> list[float]:
        """Gradient norm over that without averaging."""
        points = self.measured[mode]
        return [point.norm / points[0].norm for point in points]

    def variance(self, mode: str) -> list[float]:
        """Gradient variance over that without averaging."""
        points = self.measured[mode]
        return [point.variance / points[0].variance for point in points]


def linear_problem(class_counts: CountsLike, dim: int = 16, spread: float = 0.6, seed: int = 0) -> LinearProblem:
    """Gaussian classes with unit means on a sphere, and the classifier that is best for them under their priors.

    ``spread`` is the standard deviation within a class, in every direction. float64.

    Example:
        >>> problem = linear_problem([60, 20, 5], dim=4)
        >>> problem.features.shape, problem.weight.shape
        (torch.Size([85, 4]), torch.Size([3, 4]))
    """
    if not spread > 0:
        raise ValueError(f"spread is a standard deviation and must be above 0; got {spread}.")
    counts = class_counts if isinstance(class_counts, ClassCounts) else ClassCounts(class_counts)
    random = torch.Generator().manual_seed(seed)
    means = torch.randn(len(counts), dim, generator=random, dtype=torch.float64)
    means = torch.nn.functional.normalize(means)
    labels = torch.arange(len(counts)).repeat_interleave(counts.counts)
    noise = torch.randn(counts.total, dim, generator=random, dtype=torch.float64)
    prior = (counts.counts.clamp_min(1).double() / counts.total).log()
    return LinearProblem(means[labels] + spread * noise, labels, means / spread**2, prior)


def ema_stability(
    problem: LinearProblem,
    *,
    betas: Sequence[float] = BETAS,
    modes: Sequence[str] = MODES,
    steps: int = 400,
    batch_size: int = 64,
    seed: int = 0,
    **car_options: Any,
) -> Stability:
    r"""Measure how averaging changes the gradient of CAR, beside the factors of the paper's stability analysis.

    The model does not move. Batches are independent draws from the training set, the same for every beta. CAR sees
    them one after the other, and the gradient :math:`g_t = \nabla_W R_t` is taken at each step. Two predictions:

    .. math:: \lVert g \rVert \propto 1 - \beta, \qquad \mathrm{Var}[g] \propto (1 - \beta)^2

    The factor 1 - beta in front of the batch's confusion is exact. What it leaves out is that the singular vectors
    in the gradient belong to the averaged matrix, so they depend on beta too.

    Args:
        problem: from :func:`linear_problem`, or a linear head on features of your own.
        betas: shares of history; 0 is measured in any case, as the reference.
        modes: values of CAR's ``ema``.
        steps: batches measured, after a warm-up of four times the memory of the rarest class.
        batch_size: samples in a batch.
        seed: of the batches.
        car_options: everything else :class:`~spectail.CAR` takes.

    Example:
        >>> result = ema_stability(linear_problem([60, 20, 5], dim=4), betas=[0.5], steps=20, batch_size=16)
        >>> result.betas, result.predicted_variance
        ([0.0, 0.5], [1.0, 0.25])
        >>> [gain < 1 for gain in result.gain("batch")]
        [False, True]

    Reference: CAR, CVPR 2026, the appendix on the stability of the average.
    """
    if steps < 2 or batch_size < 1:
        raise ValueError(f"steps must be 2 or more and batch_size 1 or more; got {steps} and {batch_size}.")
    if not modes:
        raise ValueError("modes must name at least one kind of averaging: 'batch', 'class'.")
    if {"beta", "ema"} & car_options.keys():
        raise ValueError("beta and ema are what is varied: pass betas and modes instead.")
    counts = ClassCounts.from_targets(problem.labels, len(problem.weight))
    measured = {
        mode: [
            _measure(problem, CAR(counts, beta=beta, ema=mode, sync=False, **car_options), steps, batch_size, seed)
            for beta in sorted({0.0, *map(float, betas)})
        ]
        for mode in modes
    }
    return Stability(measured)


def _measure(problem: LinearProblem, car: CAR, steps: int, batch_size: int, seed: int) -> Point:
    images, warm_up = len(problem.labels), _warm_up(car, batch_size)
    random = torch.Generator().manual_seed(seed)
    batches = torch.randint(images, (steps, batch_size), generator=random)  # first, so that all betas get the same
    weight = problem.weight.detach().clone().requires_grad_()
    whole = [(problem.features @ problem.weight.detach().T + problem.bias, problem.labels)]

    def regulariser(batch: Tensor) -> Tensor:
        value: Tensor = car(problem.features[batch] @ weight.T + problem.bias, problem.labels[batch])
        return value

    for _ in range(warm_up):
        regulariser(torch.randint(images, (batch_size,), generator=random))
    total = torch.zeros_like(weight)
    norms, turns, gaps = [], [], []
    for step, batch in enumerate(batches):
        before = _direction(car)
        (gradient,) = torch.autograd.grad(regulariser(batch), weight)
        total += gradient
        norms.append(float(gradient.norm()))
        turns.append(math.degrees(math.acos(min(1.0, abs(float(before @ _direction(car)))))))
        if step % LOOK == 0:
            gaps.append(cm_gap(car, whole))
    mean_norm = float(total.norm()) / steps
    return Point(
        beta=car.beta,
        norm=sum(norms) / steps,
        variance=(sum(norm**2 for norm in norms) - steps * mean_norm**2) / (steps - 1),
        mean_norm=mean_norm,
        turn=sum(turns) / steps,
        gap=sum(gap.relative for gap in gaps) / len(gaps),
        aligned=sum(gap.right for gap in gaps) / len(gaps),
        warm_up=warm_up,
    )


def _warm_up(car: CAR, batch_size: int) -> int:
    """Steps until the start is forgotten, even by the class that comes least often and learns only when it comes."""
    rarest = float(car.counts.frequencies[car.counts.counts > 0].min())
    present = 1 - (1 - rarest) ** batch_size
    return math.ceil(MEMORIES / ((1 - car.beta) * present))


def _direction(car: CAR) -> Tensor:
    assert car.last is not None  # the warm-up has at least one step
    return car.last.right
