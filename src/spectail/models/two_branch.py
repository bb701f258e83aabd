"""Two branches over one trunk (BBN): the last block of a backbone is doubled, everything before it is shared."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .classifier import Classifier

CONTAINERS = ("stages", "layer4", "layers", "blocks", "features")


class Branches(nn.Module):
    """Two copies of a block. ``use`` says which runs; ``both`` puts their outputs one after the other in the batch, so
    that the trunk before them runs once and whatever follows treats them alike."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conventional = block
        self.rebalancing = copy.deepcopy(block)
        self.use = "both"

    def forward(self, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        if self.use == "both":
            return torch.cat([self.conventional(x, *rest, **options), self.rebalancing(x, *rest, **options)])
        output: Tensor = getattr(self, self.use)(x, *rest, **options)
        return output


class TwoBranchClassifier(Classifier):
    """One linear head on the features of both branches. ``model(images)`` sends the same image through both."""

    def __init__(self, backbone: nn.Module, head: nn.Module, block_path: str | None = None) -> None:
        super().__init__(backbone, head)
        self.block_path = last_block(backbone) if block_path is None else block_path
        try:
            block = backbone.get_submodule(self.block_path)
        except AttributeError:
            raise ValueError(
                f"the {type(backbone).__name__} has no block {self.block_path!r} to be doubled. {_advice(backbone)}"
            ) from None
        parent, _, name = self.block_path.rpartition(".")
        setattr(backbone.get_submodule(parent), name, Branches(block))

    @property
    def branches(self) -> Branches:
        branches = self.backbone.get_submodule(self.block_path)
        assert isinstance(branches, Branches)
        return branches

    def branch(self, images: Tensor, which: str) -> Tensor:
        """Features of one branch."""
        branches = self.branches
        branches.use = which
        try:
            features: Tensor = self.backbone(images)
        finally:
            branches.use = "both"
        return features

    def forward(self, images: Tensor, *, features: bool = False) -> Any:
        joined = self.backbone(images).unflatten(0, (2, -1)).transpose(0, 1).flatten(1)
        logits = self.head(joined)
        return (joined, logits) if features else logits


def last_block(backbone: nn.Module) -> str:
    """Name of the last block: of CIFAR ResNets, ResNets, ViTs, Swins, EfficientNets and the like.

    Example:
        >>> from spectail.models.cifar_resnet import CifarResNet
        >>> last_block(CifarResNet(32))
        'stages.2.4'
    """
    for start in CONTAINERS:
        module: nn.Module | None = getattr(backbone, start, None)
        if not isinstance(module, nn.Module):
            continue
        path = start
        while True:
            inner = getattr(module, "blocks", None)
            if isinstance(module, nn.Sequential | nn.ModuleList):
                named = [(name, child) for name, child in module.named_children() if [*child.parameters()]]
                if not named:
                    break
                name, module = named[-1]
                path += f".{name}"
            elif isinstance(inner, nn.Module):
                path, module = f"{path}.blocks", inner
            else:
                break
        return path
    raise ValueError(
        f"the last block of a {type(backbone).__name__} is not known; name the one to double with --branch-at, such as "
        "layer4.2."
    )


def _advice(backbone: nn.Module) -> str:
    try:
        return f"Its last one is {last_block(backbone)!r}, which is doubled without --branch-at."
    except ValueError:
        return f"Its parts are {', '.join(name for name, _ in backbone.named_children())}."
