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

SHOWN = 5  # samples that a manifest names
Done = dict[str, tuple[Samples, Checked]]


ALWAYS = "A benchmark is used whole or not at all: replace what is broken."
ON_REQUEST = "Replace what is broken, or leave --strict out."


def check_splits(
    splits: dict[str, Samples], config: DataConfig, track: Track, *, may_lack: bool
) -> tuple[Done, dict[str, Any]]:
    """Read or check the images of every split; note what is broken, and samples that are in two places.

    ``may_lack`` says that broken images are left out where the user does not ask otherwise, and with them classes
    that have no other training image.
    """
    strict = ALWAYS if not may_lack else ON_REQUEST if config.strict else ""
    done = {name: _checked(data, config, track, strict) for name, data in splits.items()}
    broken = {name: list(result.broken) for name, (_, result) in done.items() if result.broken}
    _check_rest(splits, done, broken, config.dataset)
    lost = [label for label, count in enumerate(done["train"][0].counts.tolist()) if not count]
    had = splits["train"].counts.tolist()
    names = splits["train"].names
    left_out = [f"class {names[label]!r}: none of its {had[label]} training images can be read" for label in lost]
    if lost:
        done = _without(done, lost)
    sets = {name: data for name, (data, _) in done.items()}
    contents = {name: result.contents for name, (_, result) in done.items() if result.contents is not None}
    whole = len(contents) == len(done)
    checks = {
        "read": f"all {sets['train'].unit}" if whole else "none" if config.check == "none" else "a sample",
        "broken": broken,
        "left_out": left_out,
        "duplicates": _duplicates(sets, contents) if whole else _same_paths(sets),
    }
    return done, checks


def _checked(data: Samples, config: DataConfig, track: Track, strict: str) -> tuple[Samples, Checked]:
    if isinstance(data, FeatureSet):
        return data, Checked(np.arange(len(data)), contents=data.digests())
    images, result = check_images(
        data.images, in_memory=config.in_memory, check=config.check, strict=strict, track=track
    )
    return ImageSet(images, data.labels[result.kept], data.names), result


def _check_rest(splits: dict[str, Samples], done: Done, broken: dict[str, list[str]], dataset: str) -> None:
    """Refuse to go on with what is left of data of which most is broken: the root may be wrong."""
    total, lacking = sum(map(len, splits.values())), sum(map(len, broken.values()))
    empty = next((name for name, (data, _) in done.items() if not len(data)), None)
    if 2 * lacking > total or empty is not None:
        problems = [problem for some in broken.values() for problem in some]
        what = f"{lacking:,} of {total:,} images" if 2 * lacking > total else f"all images of the {empty} split"
        shown = "; ".join(problems[:3]) + ("; ..." if len(problems) > 3 else "")
        table = lacking == total and dataset.endswith(".csv")
        advice = " If this is a table of predictions, spectail analyze reads it." if table else ""
        raise ValueError(f"{what} cannot be read: {shown}. Check --root and the files.{advice}")


def _without(done: Done, lost: list[int]) -> Done:
    """The splits without some classes; the others are numbered anew."""
    names = done["train"][0].names
    kept = np.setdiff1d(np.arange(len(names)), lost)
    if len(kept) < 2:
        raise ValueError(f"only the class {names[kept[0]]!r} has images that can be read; a classifier needs two.")
    left: Done = {}
    for name, (data, result) in done.items():
        there = np.flatnonzero(np.isin(data.labels, kept))
        some = data.subset(there)
        relabelled = some.with_classes(np.searchsorted(kept, some.labels), [names[label] for label in kept])
        contents = None if result.contents is None else result.contents[there]
        left[name] = relabelled, Checked(result.kept[there], result.broken, contents)
    return left


def _duplicates(sets: dict[str, Samples], known: dict[str, NDArray[np.uint64]]) -> dict[str, Any]:
    """Samples of one split that are in another one too, and equal training samples under two labels."""
    result: dict[str, Any] = {}
    train = sets["train"]
    for name, values in known.items():
        if name != "train":
            shared = np.flatnonzero(np.isin(values, known["train"]))
            twins = [int(np.flatnonzero(known["train"] == values[at])[0]) for at in shared[:SHOWN]]
            examples = [
                f"{sets[name].name_of(int(at))} (train: {train.name_of(twin)})"
                for at, twin in zip(shared, twins, strict=False)
            ]
            result[f"train and {name}"] = {"images": len(shared), "examples": examples}
    pairs, first = np.unique(np.stack([known["train"], train.labels.astype(np.uint64)]), axis=1, return_index=True)
    again = np.flatnonzero(pairs[0, 1:] == pairs[0, :-1])  # the same content as the next, under another label
    examples = [" and ".join(train.name_of(int(at)) for at in sorted(first[one : one + 2])) for one in again[:SHOWN]]
    result["train, under two labels"] = {"images": len(again), "examples": examples}
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
                result[f"train and {name}, by path"] = {"images": len(shared), "examples": shared[:SHOWN]}
    return result or None
