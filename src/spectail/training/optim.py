"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .config import OptimConfig


def make_optimizer(
    module: nn.Module,
    optim: OptimConfig,
    undecayed: Sequence[nn.Parameter] = (),
    *,
    fused: bool = False,
    scales: Mapping[nn.Parameter, float] | None = None,
) -> torch.optim.Optimizer:
    """AdamW or SGD over what is trainable. AdamW's decay spares biases and norms; SGD's only what is ``undecayed``.

    ``fused`` lets AdamW move all parameters in one kernel, ``scales`` are factors of the learning rates of some.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("nothing is trainable in this stage.")
    spared = {id(parameter) for parameter in undecayed}
    if optim.optimizer == "adamw" and not optim.decay_all:
        spared |= {id(parameter) for parameter in trainable if parameter.ndim <= 1}
    decayed = [parameter for parameter in trainable if id(parameter) not in spared]
    rest = [parameter for parameter in trainable if id(parameter) in spared]
    parts = ((decayed, optim.weight_decay), (rest, 0.0))
    groups: list[dict[str, Any]] = [{"params": part, "weight_decay": decay} for part, decay in parts if part]
    if scales:
        groups = _scaled(groups, optim.lr, scales)
    if optim.optimizer == "sgd":
        return torch.optim.SGD(groups, optim.lr, optim.momentum, nesterov=optim.nesterov)
    return torch.optim.AdamW(groups, optim.lr, fused=fused)


def _scaled(groups: list[dict[str, Any]], lr: float, scales: Mapping[nn.Parameter, float]) -> list[dict[str, Any]]:
    """A group for each factor, the largest first: the learning rate that is shown is that of the first group."""
    parts: dict[tuple[float, int], dict[str, Any]] = {}
    for place, group in enumerate(groups):
        for parameter in group["params"]:
            scale = scales.get(parameter, 1.0)
            part = parts.setdefault((-scale, place), group | {"params": [], "lr": lr * scale})
            part["params"].append(parameter)
    return [parts[key] for key in sorted(parts)]


def layer_scales(backbone: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """decay ** (layers above) for each parameter, by timm's order of the layers; nothing for a decay of 1."""
    if decay == 1:
        return {}
    matcher = getattr(backbone, "group_matcher", None)
    if matcher is None:
        raise ValueError(
            "--layer-decay needs a model of timm, which knows the order of its layers; got a "
            f"{type(backbone).__name__}."
        )
    from timm.models import group_parameters  # noqa: PLC0415 - slow to import, and seldom needed

    layers = group_parameters(backbone, matcher(coarse=False), reverse=True)
    top = max(layers.values())
    return {parameter: decay ** (top - layers[name]) for name, parameter in backbone.named_parameters()}


def rate(optim: OptimConfig, step: int, steps: int, per_epoch: int) -> float:
    """Factor of the learning rate at a step: linear warm-up, then cosine, steps or constant.

    Example:
        >>> optim = OptimConfig(schedule="step", milestones=(0.5,), decay_factor=0.1, warmup_epochs=1)
        >>> [round(rate(optim, step, 8, 2), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1]
    """
    warmup = round(optim.warmup_epochs * per_epoch)
    if step < warmup:
        return optim.warmup_start + (1 - optim.warmup_start) * (step + 1) / warmup
    if optim.schedule == "cosine":
        done = (step - warmup) / max(steps - warmup, 1)
        low = optim.min_lr / optim.lr
        return low + (1 - low) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    if optim.schedule == "cosine-epochs":  # one value an epoch, one epoch ahead: the last runs at zero
        done = (step // per_epoch + 1) * per_epoch / steps
        return (1 + math.cos(math.pi * min(done, 1.0))) / 2
    if optim.schedule == "step":
        return float(optim.decay_factor ** bisect_right(sorted(optim.milestones), step / steps))
    return 1.0
