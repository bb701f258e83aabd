"""The ResNets of CIFAR papers (He et al. 2016, section 4.2): three stages of 16, 32 and 64 channels, 6n + 2 layers.

ResNet-32 has 0.46 million parameters and 64 features. It is not ResNet-34.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3 x 3 convolutions. Where the size changes, the shortcut takes every second pixel and pads channels with
    zeros (option A): it has no parameters."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.stride != 1 or self.extra:
            x = F.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2)
            )
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """Features of the last stage, averaged over the image."""

    num_features = 64

    def __init__(self, depth: int = 32) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"the depth of a CIFAR ResNet is 6n + 2, such as 20, 32, 44 or 56; got {depth}.")
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        channels, stages = 16, []
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            blocks = []
            for i in range((depth - 2) // 6):
                blocks.append(Block(channels, width, stride if i == 0 else 1))
                channels = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        features: Tensor = self.stages(x).mean((2, 3))
        return features
