"""Probe mode: the features of a frozen backbone, computed once and kept on disk.

A feature belongs to an image, the weights and the transform; a change of any of them makes new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from numpy.typing import NDArray
from torch import nn

from ..data.checks import Track, silent
from ..data.datasets import Data
from ..data.feature_set import FeatureCache, FeatureSet
from ..data.image_set import ImageSet
from ..data.loader import Loader
from ..data.transforms import Preset
from ..models.feature_transform import TransformedBackbone
from ..models.weights import weights_digest
from .hardware import in_fast_format


def head_inputs(
    backbone: nn.Module,
    data: Data,
    preset: Preset | None,
    accelerator: Accelerator,
    *,
    workers: int | Literal["auto"] = 0,
    track: Track = silent,
) -> dict[str, FeatureSet]:
    """What the head sees of every split: the features of a backbone, or those that the data are.

    A `TransformedBackbone` is fitted to the training features here.
    """
    plain, transform = backbone, None
    if isinstance(backbone, TransformedBackbone):
        plain, transform = backbone.backbone, backbone.transform
    if preset is None:
        found = {name: split for name, split in data.splits.items() if isinstance(split, FeatureSet)}
    else:
        found = feature_sets(plain, data, preset, accelerator, workers=workers, track=track)
    if transform is None:
        return found
    fitted = [transform.cpu().fit_(found["train"].features).state_dict()]
    broadcast_object_list(fitted)  # on another processor the same directions may have other signs
    transform.load_state_dict(fitted[0])
    return {name: split.with_features(transform(split.features)) for name, split in found.items()}


def feature_sets(
    backbone: nn.Module,
    data: Data,
    preset: Preset,
    accelerator: Accelerator,
    *,
    workers: int | Literal["auto"] = 0,
    track: Track = silent,
    only: Sequence[str] | None = None,
) -> dict[str, FeatureSet]:
    """Features of every split, or of those that are named, under the test transform. Each rank computes its share and
    reads the others' from the cache; where they have no cache in common, all compute everything."""
    made_by = f"{weights_digest(backbone)}{preset.describe()}{accelerator.mixed_precision}"
    found: dict[str, FeatureSet] = {}
    for name, split in data.splits.items():
        if only is not None and name not in only:
            continue
        assert isinstance(split, ImageSet)

        def compute(places: NDArray[np.int64], split: ImageSet = split, name: str = name) -> NDArray[Any]:
            return _compute(backbone, split.subset(places), preset, accelerator, workers, track, name)

        contents, cache = data.contents.get(name), FeatureCache(_short(made_by))
        if contents is None:  # images that were not all read are known by where they lie
            identity = data.manifest.splits[name]
            contents = np.arange(len(split), dtype=np.uint64)
            cache = FeatureCache(_short(f"{identity.labels}{identity.index}{made_by}"))
        if accelerator.num_processes > 1:
            cache.fill(
                contents, compute, accelerator.process_index, accelerator.num_processes, accelerator.wait_for_everyone
            )
        features = cache.rows(contents, compute)
        found[name] = FeatureSet(torch.from_numpy(features), split.labels, split.names)
    return found


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@torch.no_grad()
def _compute(
    backbone: nn.Module,
    split: ImageSet,
    preset: Preset,
    accelerator: Accelerator,
    workers: int | Literal["auto"],
    track: Track,
    name: str,
) -> NDArray[np.float32]:
    in_fast_format(backbone.eval().to(accelerator.device), accelerator.device)
    loader = Loader(split, preset, batch_size=128, workers=workers, device=accelerator.device)
    parts = []
    for batch in track(loader, f"features of {name}", len(loader)):
        with accelerator.autocast():
            parts.append(backbone(batch.images).float().cpu())
    return torch.cat(parts).numpy()
