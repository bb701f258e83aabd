"""Probe mode: the features of a frozen backbone, computed once and kept on disk.

A feature belongs to an image, the weights and the transform; a change of any of them makes new ones.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import nn

from .._utils.files import array_digest, cached_array
from ..data.checks import Track, silent
from ..data.datasets import Data
from ..data.feature_set import FeatureCache, FeatureSet
from ..data.image_set import ImageSet
from ..data.loader import Loader
from ..data.transforms import Preset


def weights_digest(module: nn.Module) -> str:
    """SHA-256 over names and values of all weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        content = value.detach().cpu().reshape(value.shape or (1,)).contiguous().view(torch.uint8)
        digest.update(array_digest(content.numpy()).encode())
    return digest.hexdigest()


def feature_sets(
    backbone: nn.Module,
    data: Data,
    preset: Preset,
    accelerator: Accelerator,
    *,
    batch_size: int = 128,
    workers: int = 0,
    track: Track = silent,
) -> dict[str, FeatureSet]:
    """Features of every split under the test transform. The main process computes; the others read the cache."""
    made_by = f"{weights_digest(backbone)}{preset.describe()}{accelerator.mixed_precision}"
    splits = {"train": data.train, "test": data.test} | ({"val": data.val} if data.val is not None else {})
    found: dict[str, FeatureSet] = {}
    for name, split in splits.items():

        def compute(places: NDArray[np.int64] | None = None, split: ImageSet = split, name: str = name) -> NDArray[Any]:
            images = split if places is None else split.subset(places)
            return _compute(backbone, images, preset, accelerator, batch_size, workers, track, name)

        contents, identity = data.contents.get(name), data.manifest.splits[name]
        with accelerator.main_process_first():
            if contents is not None:
                features = FeatureCache(_short(made_by)).rows(contents, compute)
            else:  # images that were not all read are known by where they lie
                features = cached_array(f"features/{_short(f'{identity.labels}{identity.index}{made_by}')}", compute)
        found[name] = FeatureSet(torch.from_numpy(features), split.labels, split.names)
    return found


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@torch.no_grad()
def _compute(
    backbone: nn.Module, split: ImageSet, preset: Preset, accelerator: Accelerator, size: int, workers: int,
    track: Track, name: str,
) -> NDArray[np.float32]:  # fmt: skip
    backbone.eval().to(accelerator.device)
    loader = Loader(split, preset, batch_size=size, workers=workers, device=accelerator.device)
    parts = []
    for batch in track(loader, f"features of {name}", len(loader)):
        with accelerator.autocast():
            parts.append(backbone(batch.images).float().cpu())
    return torch.cat(parts).numpy()
