"""What a head on frozen features is trained with: transform, learning rate and decay, chosen by cross-validation.

On such features these matter more than the loss. They are chosen once, by Balanced Softmax, whatever the method of the
run is: methods that are compared should see the same features.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from numpy.typing import NDArray
from torch import Tensor

from ..data.datasets import Data
from ..data.feature_set import FeatureSet
from ..data.folds import ALWAYS_TRAINED, make_folds
from ..methods.registry import find_method
from ..models.feature_transform import FeatureTransform
from .build import make_pieces
from .config import PRESETS, CARConfig, OptimConfig, TrainConfig
from .config_io import from_dict
from .heads import train_head
from .length import find_length, none_if_unknown
from .reporter import Reporter

AUTO = "auto"
HEADS = (("standard", 0.0), ("standard", 1.0), ("projected", 0.0), ("projected", 1.0))
"""Features and weight decay. Not raw, whose rate would hang on the scale of the numbers, nor power, which is projected
without a limit to its directions."""
JUDGE = "balanced-softmax"
"""The method that candidates are judged with, in its default settings."""
FOLDS = 5
RATE = 0.15
"""Learning rate for one column: a step of AdamW moves a logit by the more, the more columns there are."""


def rate_for(features: str, width: int) -> float:
    """The learning rate of a head on features of so many columns."""
    return float(RATE / math.sqrt(FeatureTransform(features, width).out_width))


def with_head_settings(
    config: TrainConfig, data: Data | None, reporter: Reporter
) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings with the features, rate and decay that do best in cross-validation, where they say auto; and the
    loss of each candidate."""
    if config.features != AUTO:
        return config, {}
    usual, untold = PRESETS["probe"]["optim"], OptimConfig()
    if (config.optim.lr, config.optim.weight_decay) not in (
        (usual["lr"], usual["weight_decay"]),
        (untold.lr, untold.weight_decay),
    ):
        raise ValueError(
            "--features auto chooses --lr and --weight-decay too. Leave these out, or say which features: "
            "--features raw, standard, power or projected."
        )
    if config.optim.optimizer != "adamw":
        raise ValueError(
            f"--features auto chooses a learning rate for AdamW; got --optimizer {config.optim.optimizer}. Leave it "
            "out, or say which features, and --lr."
        )
    plain = replace(
        config, features="raw", method=JUDGE, options=find_method(JUDGE).load().options, car=CARConfig(),
        optim=replace(config.optim, epochs=1),
    )  # fmt: skip
    table = make_pieces(plain, reporter, data).splits["train"]
    assert isinstance(table, FeatureSet)
    folds, losses = make_folds(table.labels, FOLDS, config.seed), {}
    for kind, decay in HEADS:
        way = replace(plain.optim, lr=rate_for(kind, table.features.shape[1]), weight_decay=decay)
        losses[kind, decay] = _loss(replace(plain, optim=way), kind, table, folds)
    found = [losses]
    broadcast_object_list(found)  # ranks must agree, whatever their rounding
    kind, decay = min(found[0], key=lambda head: found[0][head])
    reporter.start(f"features {kind}, weight decay {decay:g}: the lowest loss on held-out images, all classes alike")
    chosen = {"features": kind, "optim": {"lr": rate_for(kind, table.features.shape[1]), "weight_decay": decay}}
    named = {f"{kind}, decay {decay:g}": none_if_unknown(loss) for (kind, decay), loss in found[0].items()}
    return from_dict(chosen, config), chosen | {"losses": named}


def _loss(config: TrainConfig, kind: str, table: FeatureSet, folds: NDArray[np.int64]) -> float:
    """Of all images, each by a head that has not seen it. The first fold says how long the heads are trained."""
    transform = FeatureTransform(kind, table.features.shape[1]).fit_(table.features)  # statistics need no label
    with torch.no_grad():
        features = transform(table.features)
    logits, steps = features.new_zeros(len(table), len(table.names)), 0
    for fold in range(FOLDS):
        out = torch.from_numpy(folds == fold)
        if not out.any():
            continue
        known = features[~out], table.labels[~out], table.names, config
        if steps:
            head = train_head(*known, steps)
        else:
            length = find_length(*known, (features[out], table.labels[out]))
            head, steps = length.head, length.steps
        logits[out] = head.logits(features[out])
    judged = folds != ALWAYS_TRAINED
    return balanced_loss(logits[judged], torch.from_numpy(table.labels[judged]))


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
