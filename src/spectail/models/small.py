"""Small networks in plain torch, for small images and short runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three convolutions with batch norm and pooling: two minutes on one CPU core for the embedded data set."""

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        # The first layer halves the image at once: full-size maps would cost more than all the rest.
        self.layers = nn.Sequential(
            _Convolution(3, 32, kernel=5, stride=2), _Convolution(32, 64, pool=2), _Convolution(64, 128, pool=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x).mean((2, 3))
        return features


class _Convolution(nn.Module):
    def __init__(self, inside: int, outside: int, kernel: int = 3, stride: int = 1, pool: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        return F.max_pool2d(x, self.pool) if self.pool > 1 else x


class SmallViT(nn.Module):
    """A vision transformer for small images: patches of ``patch_size``, pre-norm blocks, mean over the patches.

    The default (width 192, 6 blocks, 3 heads) is half as deep as ViT-Tiny.
    """

    def __init__(
        self, img_size: int = 32, patch_size: int = 4, width: int = 192, depth: int = 6, heads: int = 3
    ) -> None:
        super().__init__()
        if img_size % patch_size:
            raise ValueError(f"img_size must be a multiple of patch_size; got {img_size} and {patch_size}.")
        self.num_features = width
        self.patches = nn.Conv2d(3, width, patch_size, patch_size)
        # the position embedding; its name is in the weights of saved runs
        self.place = nn.Parameter(torch.zeros(1, (img_size // patch_size) ** 2, width))
        nn.init.trunc_normal_(self.place, std=0.02)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        if tokens.shape[1] != self.place.shape[1]:
            raise ValueError(
                f"small-vit was built for {self.place.shape[1]} patches; the images have {tokens.shape[1]}."
            )
        features: Tensor = self.norm(self.blocks(tokens + self.place)).mean(1)
        return features


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed: Tensor = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(mixed)
        mixed = self.mlp(self.norm2(x))
        return x + mixed
