"""A constant for each class, fitted to validation logits from the best tau on.

The goal itself is a step function, so a smooth one stands for it: the share that a softmax gives to the true class,
averaged over each class, and of these class accuracies the goal's figure. It is climbed by Adam, under a penalty
``strength * offset_j ** 2 / n_j`` with n_j validation images of the class: what few images say is worth little. A class
without any stays on the line of tau.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..counts import ClassCounts
from .figures import Floats, class_accuracies, lowest_number, score_hits, shrinkage, tail_classes
from .goals import Goal

STRENGTHS = (4.0, 0.5)
"""Penalties that are tried, the strongest first."""
SHARPNESS = 2.0  # of the softmax, against the calibrated one: closer to the steps that it stands for
RIVALS = 8  # best classes of an image that may win it
STEPS, RATE = 80, 0.15
EVERY = 10  # steps after which the rivals are found anew: the offsets may have made others


@dataclass(frozen=True)
class Smooth:
    """The goal's figures of soft class accuracies, as shares."""

    totals: Tensor
    tail: Tensor
    worth: Tensor
    """Images that the prior of a class accuracy is worth, see :func:`~spectail.fit.figures.shrunk_accuracies`."""
    mean: Tensor
    """Means of that prior."""

    def figure(self, name: str, soft: Tensor) -> Tensor:
        """``soft`` are the accuracies of the classes that have images."""
        if name == "overall":
            return (soft * self.totals).sum() / self.totals.sum()
        if name == "balanced":
            return soft.mean()
        if name == "tail":
            return soft[self.tail].mean()
        shrunk = (soft * self.totals + self.worth * self.mean) / (self.totals + self.worth)
        return shrunk.topk(lowest_number(name, len(soft)), largest=False).values.mean()


def fit_offsets(
    logits: NDArray[Any],
    labels: NDArray[Any],
    class_counts: ClassCounts,
    goal: Goal,
    margins: dict[str, float],
    temperature: float,
    strength: float,
) -> Floats:
    """(K,) to be added to logits that are adjusted by the best tau already.

    Args:
        logits: (N, K) adjusted by tau.
        labels: (N,) true classes.
        class_counts: training images per class.
        goal: with its floors.
        margins: how far above its floor each kept figure must be.
        temperature: of these logits; it is the unit of the offsets.
        strength: of the penalty.
    """
    hits, totals = class_accuracies(logits.argmax(1) == labels, labels, len(class_counts))
    seen = np.flatnonzero(totals)
    worth, mean = shrinkage(hits[seen], totals[seen], class_counts.counts.numpy()[seen].astype(np.float64))
    place = np.full(len(totals), -1)
    place[seen] = np.arange(len(seen))
    images = torch.tensor(totals[seen], dtype=torch.float32)
    smooth = Smooth(
        images,
        torch.tensor(place[tail_classes(totals, class_counts)]),
        torch.tensor(worth, dtype=torch.float32),
        torch.tensor(mean, dtype=torch.float32),
    )
    values, target = torch.from_numpy(np.ascontiguousarray(logits, dtype=np.float32)), torch.from_numpy(labels)
    places, own = torch.from_numpy(place), torch.from_numpy(place[labels])
    offsets = torch.zeros(len(seen), requires_grad=True)
    floors: dict[str, Tensor] = {}
    optimiser = torch.optim.Adam([offsets], lr=RATE)
    for step in range(STEPS):
        padded = torch.cat([offsets, offsets.new_zeros(1)])  # a class without images is at -1, with offset 0
        if step % EVERY == 0:
            rivals, leads = _rivals(values, target, padded.detach()[places] * temperature)
            leads, where = leads * (SHARPNESS / temperature), places[rivals]
        share = 1 / (1 + (leads + SHARPNESS * (padded[where] - offsets[own])).clamp(max=60).exp().sum(0))
        soft = torch.zeros(len(seen)).index_add(0, own, share) / images
        if step == 0:  # a soft figure is lower than the real one: floors move by as much
            for name, floor in goal.keep:
                real = float(score_hits(name, hits, totals, class_counts))
                floors[name] = smooth.figure(name, soft).detach() + (floor + margins.get(name, 0.0) - real) / 100
        loss = strength * (offsets.square() / images).mean() - smooth.figure(goal.name, soft)
        for name, limit in floors.items():
            loss = loss + 10 * (limit - smooth.figure(name, soft)).clamp(min=0)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        for group in optimiser.param_groups:  # to a point: a constant rate keeps circling around it
            group["lr"] = RATE * (1 - (step + 1) / STEPS)
    result = np.zeros(len(totals))
    result[seen] = offsets.detach().numpy().astype(np.float64) * temperature
    return result


def _rivals(logits: Tensor, labels: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The best classes apart from the true one if these are the offsets, (8, N), and their lead without them."""
    own = labels[:, None]
    best = (logits + offsets).scatter_(1, own, -torch.inf).topk(min(RIVALS, logits.shape[1] - 1), dim=1).indices
    leads = logits.gather(1, best) - logits.gather(1, own)
    return best.T.contiguous(), leads.T.contiguous()
