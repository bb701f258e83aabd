"""SAFA-R: features of rare classes are moved along directions that are taken from samples of frequent classes.

A reconstruction of SAFA (Hong et al. 2022, "SAFA: Sample-Adaptive Feature Augmentation for Long-Tailed Image
Classification"), for which no code was released. The paper names the parts: directions that fit the sample, recycling,
a contrastive and a mode-seeking loss. Their exact form is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._core.dtypes import at_least_single
from ..counts import CountsLike, as_counts


def head_classes(class_counts: CountsLike, share: float = 0.2) -> Tensor:
    """(K,) True for the largest classes, ``share`` of all of them: at least one, and never all.

    Example:
        >>> head_classes([5, 80, 100, 7, 20], share=0.4).tolist()
        [False, True, True, False, False]
    """
    if not 0 < share < 1:
        raise ValueError(f"head_share must lie between 0 and 1, as a share of the classes; got {share}.")
    counts = as_counts(class_counts, on_empty="ignore").counts
    number = min(max(round(share * len(counts)), 1), len(counts) - 1)
    found = torch.zeros(len(counts), dtype=torch.bool)
    found[counts.sort(descending=True, stable=True).indices[:number]] = True
    return found


class Pairs(NamedTuple):
    """Rows of a batch: a tail sample, and two head samples to take directions from."""

    tail: Tensor
    first: Tensor
    second: Tensor


def draw_pairs(is_head: Tensor, copies: int = 1, generator: torch.Generator | None = None) -> Pairs:
    """Two head samples, drawn with replacement, for each tail sample, ``copies`` times.

    Without a tail or without a head sample there are no pairs. ``is_head`` is on the host, and so are the pairs.

    Example:
        >>> draw_pairs(torch.tensor([False, True, False]), copies=2)
        Pairs(tail=tensor([0, 2, 0, 2]), first=tensor([1, 1, 1, 1]), second=tensor([1, 1, 1, 1]))
    """
    heads, tail = is_head.nonzero().flatten(), (~is_head).nonzero().flatten().repeat(copies)
    if not len(heads):
        tail = tail[:0]
    places = torch.randint(max(len(heads), 1), (2, len(tail)), generator=generator)
    return Pairs(tail, heads[places[0]], heads[places[1]])


class DirectionNets(nn.Module):
    """The two networks: E reads a direction from a feature, T moves a feature along a direction.

    delta = E(h) and h^ = h + T([h; delta]), both with one hidden layer of the width of the features. The last layer of
    T begins at zero, so that at first nothing moves.

    Args:
        in_features: width A of the features.
        code_size: width d of a direction; by default min(A, 128).
    """

    def __init__(self, in_features: int, code_size: int | None = None) -> None:
        super().__init__()
        code_size = min(in_features, 128) if code_size is None else code_size
        self.reader = _two_layers(in_features, in_features, code_size)
        self.mover = _two_layers(in_features + code_size, in_features, in_features)
        for parameter in self.mover[-1].parameters():
            nn.init.zeros_(parameter)

    def read(self, features: Tensor) -> Tensor:
        """(N, A) features to (N, d) directions."""
        found: Tensor = self.reader(features)
        return found

    def move(self, features: Tensor, directions: Tensor) -> Tensor:
        """(N, A) features, moved along (N, d) directions."""
        shift: Tensor = self.mover(torch.cat([features, directions], dim=1))
        return features + shift


def recycle_loss(read: Tensor, direction: Tensor, returned: Tensor, source: Tensor) -> Tensor:
    """mean |E(h^) - delta| + mean |h^ + T([h^; E(h)]) - h|: what was moved still tells its direction, and moving it
    along the direction of its source brings it back. ``direction`` and ``source`` are goals and get no gradient.

    Example:
        >>> one, two = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 5.0]])
        >>> recycle_loss(one, two, one, one)
        tensor(2.)
    """
    return _mean((read - direction.detach()).abs()) + _mean((returned - source.detach()).abs())


def info_nce(anchors: Tensor, candidates: Tensor, positive: Tensor, temperature: float = 0.1) -> Tensor:
    """InfoNCE on unit vectors: -log softmax(cos(anchor, candidates) / temperature) at the positive, averaged.

    Args:
        anchors: (P, d).
        candidates: (N, d). All but the positive are negatives, whatever their class.
        positive: (P,) rows of the candidates. As a positive a candidate gets no gradient.
        temperature: of the softmax.

    Example:
        >>> anchors, candidates = torch.eye(2), torch.eye(2)
        >>> info_nce(anchors, candidates, torch.tensor([0, 1]), temperature=1.0)  # log(1 + exp(-1))
        tensor(0.3133)
    """
    anchors, candidates = F.normalize(anchors, dim=1), F.normalize(candidates, dim=1)
    own = (anchors * candidates.detach()[positive]).sum(1)
    scores = (anchors @ candidates.T).scatter(1, positive[:, None], own[:, None]) / temperature
    return _mean(scores.logsumexp(1) - own / temperature)


def mode_seeking_loss(
    first: Tensor, second: Tensor, moved_first: Tensor, moved_second: Tensor, *, clamp: float = 10.0, eps: float = 1e-5
) -> Tensor:
    """Different directions must lead to different features: mean |delta_1 - delta_2| / (mean |h^_1 - h^_2| + eps) of
    each sample, at most ``clamp``, averaged. Directions get no gradient.

    The limit matters at the beginning, when nothing moves yet and the ratio is of the size of 1 / eps.

    Example:
        >>> zero, one = torch.zeros(1, 2), torch.ones(1, 2)
        >>> mode_seeking_loss(zero, one, zero, 4 * one), mode_seeking_loss(zero, one, one, one)
        (tensor(0.2500), tensor(10.))
    """
    apart = (first - second).detach().abs().mean(1)
    return _mean((apart / ((moved_first - moved_second).abs().mean(1) + eps)).clamp(max=clamp))


class Augmentation(NamedTuple):
    """Moved features of the pairs, and the losses that train the two networks."""

    moved: Tensor
    recycle: Tensor
    contrastive: Tensor
    mode_seeking: Tensor
    shift: Tensor
    """How far features were moved, as a share of their size; without gradient."""


def augment(
    nets: DirectionNets, features: Tensor, pairs: Pairs, *, temperature: float = 0.1, clamp: float = 10.0
) -> Augmentation:
    """Move the tail features of a batch along the directions of head samples. Without pairs every loss is 0.

    No gradient reaches ``features``. In the contrastive loss a moved feature must tell the direction it was moved along
    from those of all other samples of the batch, of its own class too: so a direction cannot stand for a class.
    """
    features = at_least_single(features.detach())
    with torch.autocast(features.device.type, enabled=False):  # 1e-5 is lost in half precision
        directions, source = nets.read(features), features[pairs.tail]
        first, second = directions[pairs.first], directions[pairs.second]
        moved, other = nets.move(source, first), nets.move(source, second)
        read = nets.read(moved)
        returned = nets.move(moved, directions[pairs.tail])
        shift = (moved - source).detach().abs().sum() / source.abs().sum().clamp_min(1e-12)
        return Augmentation(
            moved,
            recycle_loss(read, first, returned, source),
            info_nce(read, directions, pairs.first, temperature),
            mode_seeking_loss(first, second, moved, other, clamp=clamp),
            shift,
        )


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _mean(values: Tensor) -> Tensor:
    """The mean, and 0 for nothing, with a gradient of 0: no parameter is left out of a step."""
    return values.sum() / max(values.numel(), 1)
