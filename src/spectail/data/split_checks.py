"""The splits of a data set, checked: what cannot be read is left out or refused, what is there twice is named."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import Checked, Track, check_images
from .config import DataConfig
from .feature_set import FeatureSet
from .image_set import ImageSet
from .images import FileImages
from .samples import Samples

Done = dict[str, tuple[Samples, Checked]]


def check_splits(splits: dict[str, Samples], config: DataConfig, track: Track) -> tuple[Done, dict[str, Any]]:
    """Read or check the images of every split; note what is broken, and samples that are in two places."""
    done = {name: _checked(data, config, track) for name, data in splits.items()}
    lost = next((label for label, n in enumerate(done["train"][0].counts.tolist()) if not n), None)
    if lost is not None:
        raise ValueError(f"{splits['train'].counts.describe(lost)} has no training image left without its broken ones.")
    sets = {name: data for name, (data, _) in done.items()}
    contents = {name: result.contents for name, (_, result) in done.items() if result.contents is not None}
    whole = len(contents) == len(done)
    checks = {
        "read": f"all {sets['train'].unit}" if whole else "none" if config.check == "none" else "a sample",
        "broken": {name: list(result.broken) for name, (_, result) in done.items() if result.broken},
        "duplicates": _duplicates(sets, contents) if whole else _same_paths(sets),
    }
    return done, checks


def _checked(data: Samples, config: DataConfig, track: Track) -> tuple[Samples, Checked]:
    if isinstance(data, FeatureSet):
        return data, Checked(np.arange(len(data)), contents=data.digests())
    images, result = check_images(
        data.images, in_memory=config.in_memory, check=config.check, skip_broken=config.skip_broken, track=track
    )
    return ImageSet(images, data.labels[result.kept], data.names), result


def _duplicates(sets: dict[str, Samples], known: dict[str, NDArray[np.uint64]]) -> dict[str, Any]:
    """Samples of one split that are in another one too, and equal training samples under two labels."""
    result: dict[str, Any] = {}
    for name, values in known.items():
        if name != "train":
            shared = np.flatnonzero(np.isin(values, known["train"]))
            examples = [sets[name].name_of(int(at)) for at in shared[:5]]
            result[f"train and {name}"] = {"images": len(shared), "examples": examples}
    labels = sets["train"].labels
    pairs = np.unique(np.stack([known["train"], labels.astype(np.uint64)]), axis=1)
    result["train, under two labels"] = {"images": int(pairs.shape[1] - len(np.unique(known["train"])))}
    return result


def _same_paths(splits: dict[str, Samples]) -> dict[str, Any] | None:
    """Where not all images were read: files that are listed in two splits."""
    images = {name: data.images for name, data in splits.items() if isinstance(data, ImageSet)}
    files = {name: some for name, some in images.items() if isinstance(some, FileImages)}
    if "train" not in files:
        return None
    known = {hash(path) for path in files["train"].paths}
    result: dict[str, Any] = {}
    for name, some in files.items():
        if name != "train" and some.root == files["train"].root:
            shared = [path for path in some.paths if hash(path) in known]
            if shared:
                result[f"train and {name}, by path"] = {"images": len(shared), "examples": shared[:5]}
    return result or None
