"""The Meta Sampler of BALMS: a sampling rate for each class, learned by looking one step ahead."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .._core import waits
from .._utils.checks import check_choice
from ..counts import ClassCounts


class MetaSampler(nn.Module):
    """Draws training images with P(class c) proportional to n_c rho_c, rho = sigmoid(psi), and moves psi with Adam.

    A draw is a Gumbel-max sample. Its straight-through weight has the value 1 and the gradient of the soft sample,
    which is how the loss of a drawn image tells psi about itself.

    Args:
        counts: training images per class.
        power: rates begin at (n_c / N)^-power, scaled so that the smallest and the largest add up to 1.
        lr: learning rate of Adam.
        level: ``"class"`` draws a class and then one of its images, ``"item"`` draws among all images as the authors
            do. The law of the draw is the same; the soft sample, and so the gradient, is not. Memory and time of
            ``"item"`` grow with batch size times training images.

    State and distributed: psi and Adam's moments are buffers; every rank holds the same ones and draws the same global
    batch from the run's generator.
    """

    psi: Tensor
    log_counts: Tensor
    first: Tensor
    second: Tensor
    moves: Tensor

    def __init__(self, counts: ClassCounts, power: float = 0.0, lr: float = 0.01, level: str = "class") -> None:
        super().__init__()
        check_choice("level", level, ("class", "item"))
        self.lr, self.level = lr, level
        rates = initial_rates(counts, power)
        self.register_buffer("psi", torch.logit(rates).float())
        self.register_buffer("log_counts", counts.counts.float().log())
        for name in ("first", "second"):
            self.register_buffer(name, torch.zeros(len(counts)))
        self.register_buffer("moves", torch.zeros(()))
        self._moves = 0  # the same on the host, which need not ask then
        self._by_class: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self._moves = int(self.moves)

    def draw(self, size: int, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Indices of ``size`` images, and the Gumbel noise behind them: (size, K) or (size, N).

        Waits for the device: which images come next depends on rates that the step before has moved.
        """
        with torch.no_grad():
            width = len(self.psi) if self.level == "class" else len(labels)
            # Gumbel noise from uniforms: torch's own exponential draws are many times slower on a CPU
            noise = torch.rand(size, width, generator=generator).clamp_min_(1e-20).log_().neg_().log_().neg_()
            # by numpy, which is several times faster than torch with short rows and small arrays
            drawn = (self._scores(labels).cpu() + noise).numpy().argmax(1)
            if self.level == "item":
                return torch.from_numpy(drawn), noise
            if self._by_class is None:
                counts = labels.bincount(minlength=width).cpu().numpy()
                self._by_class = labels.argsort(stable=True).cpu().numpy(), counts, counts.cumsum() - counts
            # uniform inside the class: images sorted by class, an offset, and a share of the class's size
            order, counts, offsets = self._by_class
            share = torch.rand(size, generator=generator, dtype=torch.float64).numpy()
            return torch.from_numpy(order[offsets[drawn] + (share * counts[drawn]).astype(np.int64)]), noise

    @torch.no_grad()
    def gradient(self, along: Tensor, rows: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
        """(K,) gradient with respect to psi of sum_b G_b along_b, where G_b is the straight-through weight of image b:
        its value is 1, its gradient that of the soft sample s_b at the entry that was drawn."""
        soft = (self._scores(labels) + waits.sent(noise, self.psi.device).to(self.psi)).softmax(1)
        drawn = waits.sent(labels[rows] if self.level == "class" else rows, soft.device)
        weight = along * soft.gather(1, drawn[:, None]).squeeze(1)
        slope = (-weight @ soft).index_add_(0, drawn, weight)  # d s_d / d score_j = s_d (1[j = d] - s_j)
        if self.level == "item":
            slope = torch.zeros_like(self.psi).index_add_(0, waits.sent(labels, slope.device), slope)
        return slope * torch.sigmoid(-self.psi)

    def move(self, gradient: Tensor) -> None:
        """One step of Adam on psi."""
        self.moves += 1
        self.first.lerp_(gradient, 0.1)
        self.second.lerp_(gradient * gradient, 0.001)
        self._moves += 1
        root = (self.second / (1 - 0.999**self._moves)).sqrt_().add_(1e-8)
        self.psi.addcdiv_(self.first, root, value=-self.lr / (1 - 0.9**self._moves))

    def _scores(self, labels: Tensor) -> Tensor:
        rates = F.logsigmoid(self.psi)
        return rates + self.log_counts.to(rates) if self.level == "class" else rates[waits.sent(labels, rates.device)]


def initial_rates(counts: ClassCounts, power: float) -> Tensor:
    """(K,) float64.

    Example:
        >>> initial_rates(ClassCounts([100, 20, 5]), 0.1).round(decimals=5)
        tensor([0.4257, 0.5000, 0.5743], dtype=torch.float64)
    """
    rates = counts.frequencies.double() ** -power
    return rates / (rates.min() + rates.max())
