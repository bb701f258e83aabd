"""What a head on frozen features is trained with: transform, learning rate and weight decay, chosen on held-out images.

On such features these matter more than the loss. They are chosen once, by Balanced Softmax, whatever the method of the
run is: methods that are compared should see the same features.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from numpy.typing import NDArray
from torch import Tensor

from ..data.datasets import Data
from ..data.feature_set import FeatureSet
from ..data.longtail import hold_out
from ..models.feature_transform import FeatureTransform
from .build import make_pieces
from .config import PRESETS, CARConfig, TrainConfig
from .config_io import from_dict
from .length import HELD_OUT, find_length
from .reporter import Reporter

AUTO = "auto"
HEADS = (("standard", 0.0), ("standard", 1.0), ("projected", 0.0), ("projected", 1.0))
"""Features and weight decay."""
RATE = 0.15
"""Learning rate for one column: a step of AdamW moves a logit by the more, the more columns there are."""


def rate_for(features: str, width: int) -> float:
    """The learning rate of a head on features of so many columns."""
    return float(RATE / math.sqrt(FeatureTransform(features, width).out_width))


def with_head_settings(config: TrainConfig, data: Data | None, reporter: Reporter) -> TrainConfig:
    """The settings with the features, rate and decay that do best on a fifth of each class, where they say auto."""
    if config.features != AUTO:
        return config
    usual = PRESETS["probe"]["optim"]
    if (config.optim.lr, config.optim.weight_decay) != (usual["lr"], usual["weight_decay"]):
        raise ValueError(
            "--features auto chooses --lr and --weight-decay too. Leave these out, or say which features: "
            "--features raw, standard, power or projected."
        )
    plain = replace(config, features="raw", method="ce", optim=replace(config.optim, epochs=1), car=CARConfig())
    table = make_pieces(from_dict({"method": "balanced-softmax"}, plain), reporter, data).splits["train"]
    assert isinstance(table, FeatureSet)
    held = hold_out(table.labels, table.names, fraction=HELD_OUT, seed=config.seed)
    losses = {}
    for kind, decay in HEADS:
        way = replace(plain.optim, lr=rate_for(kind, table.features.shape[1]), weight_decay=decay)
        tried = from_dict({"method": "balanced-softmax"}, replace(plain, optim=way))
        losses[kind, decay] = _loss(tried, kind, table, held)
    found = [min(losses, key=lambda head: losses[head])]
    broadcast_object_list(found)  # ranks must agree, whatever their rounding
    kind, decay = found[0]
    reporter.start(f"features {kind}, weight decay {decay:g}: the lowest loss on held-out images, all classes alike")
    optim = {"lr": rate_for(kind, table.features.shape[1]), "weight_decay": decay}
    return from_dict({"features": kind, "optim": optim}, config)


def _loss(config: TrainConfig, kind: str, table: FeatureSet, held: NDArray[np.bool_]) -> float:
    transform = FeatureTransform(kind, table.features.shape[1]).fit_(table.features)  # statistics need no label
    with torch.no_grad():
        features, out = transform(table.features), torch.from_numpy(held)
    split = (features[out], table.labels[held])
    head = find_length(features[~out], table.labels[~held], table.names, config, split).head
    return balanced_loss(head.logits(split[0]), torch.from_numpy(split[1]))


def balanced_loss(logits: Tensor, labels: Tensor) -> float:
    """Cross entropy, mean over classes of the mean over images.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, -9.0]])
        >>> round(balanced_loss(logits, torch.tensor([0, 1, 0])), 4) == round((math.log(2) / 2 + math.log(2)) / 2, 4)
        True
    """
    losses = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    sums = torch.zeros(logits.shape[1], dtype=losses.dtype).index_add_(0, labels, losses)
    images = torch.bincount(labels, minlength=logits.shape[1])
    return float((sums / images)[images > 0].mean())
