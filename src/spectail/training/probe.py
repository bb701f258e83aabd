"""Probe mode: the features of a frozen backbone, computed once and kept on disk.

The key of the cache is the data, the weights and the transform; a change of any of them makes new features.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import nn

from ..data.features import FeatureSet
from ..data.imageset import ImageSet
from ..data.loader import Loader
from ..data.loading import Data
from ..data.settle import Track, silent
from ..data.storage import array_digest, cached_array
from ..data.transforms import Preset


def weights_digest(module: nn.Module) -> str:
    """SHA-256 over names and values of all weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(array_digest(value.detach().cpu().contiguous().view(torch.uint8).numpy() if value.ndim else
                                   value.detach().cpu().reshape(1).view(torch.uint8).numpy()).encode())  # fmt: skip
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
    weights = weights_digest(backbone)
    splits = {"train": data.train, "test": data.test} | ({"val": data.val} if data.val is not None else {})
    found: dict[str, FeatureSet] = {}
    for name, split in splits.items():
        identity = data.manifest.splits[name]
        key = f"{identity.labels}{identity.content or identity.index}{weights}{preset.describe()}"
        key += str(accelerator.mixed_precision)
        cached = f"features/{hashlib.sha256(key.encode()).hexdigest()[:32]}"

        def build(split: ImageSet = split, name: str = name) -> NDArray[Any]:
            return _compute(backbone, split, preset, accelerator, batch_size, workers, track, name)

        with accelerator.main_process_first():
            features = torch.from_numpy(cached_array(cached, build))
        found[name] = FeatureSet(features, split.labels, split.names)
    return found


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
