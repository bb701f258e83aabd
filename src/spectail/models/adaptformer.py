"""AdaptFormer (Chen et al., NeurIPS 2022): a narrow branch beside the MLP of each block of a transformer."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

WIDTH, SCALE = 64, 0.1
"""Of the paper: AdaptFormer-64, whose branch counts a tenth."""


class AdaptMLP(nn.Module):
    """``mlp(x) + scale * up(relu(down(x)))``, where ``up`` begins at zero: at first the MLP is what it was.

    Args:
        mlp: that of the block; it stays as it is.
        features: numbers in a token.
        width: of the branch.
        scale: a factor, or ``"learned"`` for one that begins at 1 and is trained, as in LIFT.
        dropout: on the branch.
        residual: what the block's norm takes. With it the branch reads that, through a norm of its own, as in LIFT;
            without it, what the MLP reads.

    Example:
        >>> adapted = AdaptMLP(nn.Linear(8, 8), 8, width=2)
        >>> tokens = torch.ones(1, 3, 8)
        >>> torch.equal(adapted(tokens), adapted.mlp(tokens))
        True
    """

    def __init__(
        self,
        mlp: nn.Module,
        features: int,
        width: int = WIDTH,
        scale: float | Literal["learned"] = SCALE,
        dropout: float = 0.0,
        residual: Residual | None = None,
    ) -> None:
        super().__init__()
        self.mlp = mlp
        self.norm = nn.Identity() if residual is None else nn.LayerNorm(features)
        self.down, self.up = nn.Linear(features, width), nn.Linear(width, features)
        self.dropout = nn.Dropout(dropout)
        self.scale: nn.Parameter | float = nn.Parameter(torch.ones(1)) if scale == "learned" else scale
        self._residual = (residual,)  # in a tuple, so that it is no part of this module: the block holds it
        if residual is None:
            nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        else:
            nn.init.kaiming_normal_(self.down.weight, a=math.sqrt(5))
        for value in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(value)

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        [residual] = self._residual
        source = x if residual is None else residual.taken()
        added = self.up(self.dropout(torch.relu(self.down(self.norm(source)))))
        total: Tensor = self.mlp(x, *rest) + added * self.scale
        return total


class Residual(nn.Module):
    """A block's norm that hands on what it was given, for the branch to read."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner = norm
        self._given: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self._given = x
        normed: Tensor = self.inner(x)
        return normed

    def taken(self) -> Tensor:
        """Once: nothing of a step is kept after it."""
        given, self._given = self._given, None
        assert given is not None
        return given


def blocks(backbone: nn.Module) -> dict[str, nn.Module]:
    """Blocks of a transformer by name: what has a layer norm ``norm2`` before an ``mlp``."""

    def is_block(module: nn.Module) -> bool:
        norm, mlp = getattr(module, "norm2", None), getattr(module, "mlp", None)
        return isinstance(norm, nn.LayerNorm) and isinstance(mlp, nn.Module)

    return {name: module for name, module in backbone.named_modules() if is_block(module)}


def adapt(block: nn.Module, width: int, scale: float | Literal["learned"], dropout: float, own_norm: bool) -> AdaptMLP:
    """Put the branch beside the MLP of a block."""
    norm, mlp = block.norm2, block.mlp
    assert isinstance(norm, nn.LayerNorm)
    assert isinstance(mlp, nn.Module)
    residual = Residual(norm) if own_norm else None
    adapted = AdaptMLP(mlp, norm.normalized_shape[0], width, scale, dropout, residual)
    block.mlp = adapted
    if residual is not None:
        block.norm2 = residual
    return adapted
