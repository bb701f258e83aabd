"""The label factor of ReMix (Chou et al. 2020, "Remix: Rebalanced Mixup")."""

from __future__ import annotations

import torch
from torch import Tensor

from ..targets import class_indices


def remix_share(
    counts: Tensor, first: Tensor, second: Tensor, lam: float, kappa: float = 3.0, tau: float = 0.5
) -> Tensor:
    """(N,) label mass of ``first``. All of it goes to the rarer class if the classes differ by ``kappa`` or more in
    size and the rarer image makes up more than 1 - tau of the mix; else it is the share of the image.

    Args:
        counts: (K,) training images per class.
        first, second: (N,) labels of the two images of each mix.
        lam: share of the first image.

    Example:
        >>> counts = torch.tensor([500, 100])
        >>> remix_share(counts, torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), 0.3)
        tensor([0.0000, 0.0000, 0.3000])
    """
    first, second = class_indices(first, "remix_share"), class_indices(second, "remix_share")
    one, two = counts[first], counts[second]
    share = torch.full(first.shape, lam, dtype=torch.get_default_dtype(), device=first.device)
    if 1 - lam < tau:
        share = share.masked_fill(kappa * one <= two, 1.0)
    if lam < tau:  # comes first in the rule, so it wins where both hold
        share = share.masked_fill(one >= kappa * two, 0.0)
    return share
