"""Where the head of a network starts: at class means of frozen features, at texts, or at random."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from ..data.datasets import Data
from ..data.feature_set import FeatureSet
from ..data.transforms import Preset
from ..models.classifier import Classifier
from ..models.heads import CosineHead
from ..models.text import class_texts
from .config import TrainConfig
from .probe import feature_sets
from .reporter import Reporter

SCALE = 30.0
"""Of a linear head that starts at class vectors: that of a cosine head."""


def set_scale(head: nn.Module, config: TrainConfig) -> None:
    """``--head-scale``, for a cosine head whose method has no scale of its own."""
    scale = config.tuning.head_scale
    if scale is None:
        return
    if hasattr(config.options, "scale"):
        raise ValueError(f"--head-scale: {config.method} has a scale of its own; pass --scale instead.")
    if isinstance(head, CosineHead):
        head.scale = scale
    elif start_of(config) == "random":
        raise ValueError("--head-scale is for a cosine head (--head cosine), or one that starts at class means.")


def start_of(config: TrainConfig) -> str:
    """Where the head starts, by default too."""
    return config.tuning.head_init or ("random" if config.tuning.tune == "full" else "means")


def start_head(
    config: TrainConfig,
    model: Classifier,
    data: Data,
    preset: Preset,
    accelerator: Accelerator,
    reporter: Reporter,
) -> None:
    """Set the class vectors of the head; the backbone is still as it was loaded."""
    tuning, how = config.tuning, start_of(config)
    if how == "random":
        return
    head: Any = model.head
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or len(weight) != len(data.counts):
        raise ValueError(f"--head-init {how}: the head of {config.method} has no vector for each class; use random.")
    options: dict[str, Any] = {"workers": config.workers, "track": reporter.track, "only": ("train",)}
    train = feature_sets(_features(model), data, preset, accelerator, **options)["train"]
    if how == "means":
        vectors = class_means(train, len(data.counts))
    else:
        assert tuning.text_weights is not None
        vectors = class_texts(data.train.names, tuning.text_weights, weight.shape[1])
    put(head, vectors, float(train.features.norm(dim=1).mean()), tuning.head_scale or SCALE)
    torch.manual_seed(config.seed)  # whether the features came from the cache must not matter


def class_means(train: FeatureSet, classes: int) -> Tensor:
    """(K, A) of length one; zero for a class without images."""
    labels = torch.as_tensor(train.labels).long()
    sums = torch.zeros(classes, train.features.shape[1], dtype=torch.float64)
    sums.index_add_(0, labels, train.features.double())
    return F.normalize(sums / torch.bincount(labels, minlength=classes).clamp_min(1)[:, None], dim=1).float()


@torch.no_grad()
def put(head: Any, vectors: Tensor, length: float, scale: float) -> None:
    """Make the vectors those of the head. A linear one gives the logits of a cosine head for features of ``length``,
    which is what features have on average."""
    known = vectors.norm(dim=1, keepdim=True) > 0
    if isinstance(head, CosineHead):
        head.weight.copy_(vectors.where(known, head.weight))
        return
    head.weight.copy_((vectors * (scale / max(length, 1e-12))).where(known, head.weight))
    if isinstance(getattr(head, "bias", None), Tensor):
        head.bias.zero_()


def _features(model: Classifier) -> nn.Module:
    """What the head sees. A plain model is known by its backbone, so that its features are those of --probe."""
    return model.backbone if type(model) is Classifier else _Joined(model)


class _Joined(nn.Module):
    """The features of a model that arranges its backbone in its own way."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images, features=True)[0]
        return features
