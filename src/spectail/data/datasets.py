"""From a DataConfig to training, validation and test sets with a manifest."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..counts import ClassCounts
from . import longtail
from .catalog import Entry, check_options, find
from .checks import Track, silent
from .config import DataConfig
from .feature_set import FeatureSet
from .manifest import Manifest, Split, describe_groups, describe_statistics
from .paths import full_name
from .samples import Samples
from .sets.source import Source
from .split_checks import check_splits


@dataclass(frozen=True)
class Data:
    """The splits of a data set, and the manifest that identifies them."""

    train: Samples
    test: Samples
    val: Samples | None
    manifest: Manifest
    transform: str
    """Name of the usual transform preset for this set."""
    contents: dict[str, NDArray[np.uint64] | None] = field(default_factory=dict)
    """What each image of a split shows, as a digest; None where not all images were read."""

    @property
    def splits(self) -> dict[str, Samples]:
        """Those there are, by name."""
        return {"train": self.train, "test": self.test} | ({"val": self.val} if self.val is not None else {})

    @property
    def width(self) -> int | None:
        """Numbers in a row of features; None for images."""
        return self.train.features.shape[1] if isinstance(self.train, FeatureSet) else None

    @property
    def counts(self) -> ClassCounts:
        """Images per class of the training split, after anything held out of it."""
        return self.train.counts


def load(config: DataConfig | str, /, *, track: Track = silent, **options: Any) -> Data:
    """Find or build a data set.

    Args:
        config: a `DataConfig`, or the name of a data set with options of `DataConfig` as keywords.
        track: shows progress of long work.

    Example:
        >>> data = load("glyphs-lt", num_classes=4, max_per_class=8, imbalance=4)
        >>> data.counts, len(data.test)
        (ClassCounts([8, 5, 3, 2]), 160)
    """
    config = DataConfig(dataset=config, **options) if isinstance(config, str) else replace(config, **options)
    config = replace(
        config,
        dataset=full_name(config.dataset),
        root=_path(config.root),
        lists=_path(config.lists),
        test_list=_path(config.test_list),
    )
    entry = find(config.dataset)
    check_options(config, entry)
    source = entry.open(config)
    notes = list(source.notes)
    train, test, val = source.train, source.test, source.val
    if len(train.names) < 2:
        raise ValueError(f"{config.dataset} has one class, {train.names[0]!r}; a classifier needs two or more.")
    train.counts.groups(config.groups)  # an impossible convention is said before any work
    if test is None and not config.test_fraction:
        raise ValueError(f"{config.dataset} has no test set, and --test-fraction is 0. Hold some images out for it.")
    if test is None:
        train, test = _held_out(train, fraction=config.test_fraction, per_class=0, seed=config.data_seed)
        notes.append(f"the test set is {config.test_fraction:.0%} of each class, held out: the data has none")
    elif config.test_fraction != DataConfig.test_fraction:
        raise ValueError(f"--test-fraction means nothing for {config.dataset}: it has a test set. Leave it out.")
    _check_classes(train, test)
    train, rule, ranks = _cut(train, config, entry)
    if config.val_fraction or config.val_per_class:
        if val is not None:
            notes.append("the data's own validation set is not used: --val-fraction or --val-per-class was given")
        seed = config.data_seed if config.val_seed is None else config.val_seed
        train, val = _held_out(train, fraction=config.val_fraction, per_class=config.val_per_class, seed=seed)
        notes.append("the validation set was held out of the training set")
    elif config.val_seed is not None:
        raise ValueError("--val-seed means nothing without --val-fraction or --val-per-class. Leave it out.")
    if config.data_seed and not _draws(config, source, rule):
        raise ValueError(f"--data-seed means nothing for {config.dataset}: nothing is drawn. Leave it out.")
    splits: dict[str, Samples] = {"train": train, "test": test} | ({"val": val} if val is not None else {})
    checked, checks = check_splits(splits, config, track, may_lack="strict" in entry.takes)
    checks["left_out"] = [*source.left_out, *checks["left_out"]]
    if "capped" in rule:
        rule["capped"] = [label for label, name in enumerate(checked["train"][0].names)
                          if train.names.index(name) in rule["capped"]]  # fmt: skip
    manifest = Manifest(
        dataset=_portable(config.dataset),
        rule=rule,
        classes=list(checked["train"][0].names),
        splits={
            name: Split.of(data, result.contents, splits[name].subset(result.kept).index_digest())
            for name, (data, result) in checked.items()
        },
        ranks=ranks,
        groups=describe_groups(checked["train"][0].counts, config.groups),
        statistics=describe_statistics(checked["train"][0]),
        files=source.files,
        notes=notes,
        checks=checks,
        options=_options(config),
        version=__version__,
    )
    held = checked["val"][0] if val is not None else None
    contents = {name: result.contents for name, (_, result) in checked.items()}
    return Data(checked["train"][0], checked["test"][0], held, manifest, entry.transform, contents)


def _cut(train: Samples, config: DataConfig, entry: Entry) -> tuple[Samples, dict[str, Any], str | None]:
    """Apply the profile: the subset, the rule in words, and the hash of the ranks."""
    available = train.counts
    imbalance = config.imbalance if config.imbalance is not None else entry.imbalance
    if config.counts is None and imbalance is None:
        return train, {"profile": "lists" if entry.fixed else "as it is"}, None
    rule: dict[str, Any] = {"profile": "given", "selection": config.selection, "seed": config.data_seed}
    if config.counts is not None:
        if len(config.counts) != len(available):
            raise ValueError(f"--counts must give {len(available)} numbers, one per class; got {len(config.counts)}.")
        wanted = np.array(config.counts)
        longtail.check_supply(wanted.tolist(), available, imbalance=None)
    else:
        assert imbalance is not None
        order = config.order or entry.order
        have = available.counts.numpy()
        ranked = np.argsort(-have, kind="stable") if order == "size" else np.arange(len(have))
        largest = config.max_per_class if config.max_per_class is not None else entry.largest
        wanted = np.zeros_like(have)
        wanted[ranked] = longtail.profile(config.profile, have[ranked].tolist(), imbalance, largest=largest)
        rule |= {"profile": config.profile, "imbalance": float(imbalance), "largest": int(wanted.max()), "order": order}
        if config.cap or entry.cap:
            rule["capped"] = np.flatnonzero(wanted > have).tolist()
            wanted = np.minimum(wanted, have)
        longtail.check_supply(wanted.tolist(), available, imbalance=imbalance)
    kept, ranks = longtail.select(train.labels, wanted.tolist(), selection=config.selection, seed=config.data_seed)
    return train.subset(kept), rule, ranks


def _held_out(train: Samples, *, fraction: float, per_class: int, seed: int) -> tuple[Samples, Samples]:
    held = longtail.hold_out(train.labels, train.names, fraction=fraction, per_class=per_class, seed=seed)
    if not held.any():
        if train.counts.counts.max() == 1:
            raise ValueError("every class has one image, so that none can be held out for a test. Add images.")
        raise ValueError(
            f"nothing can be held out: a fraction of {fraction:g} takes no image from classes of "
            f"{int(train.counts.counts.max())} or fewer. Use a larger fraction."
        )
    return train.subset(~held), train.subset(held)


def _check_classes(train: Samples, test: Samples) -> None:
    counts, tested = train.counts, test.counts.tolist()
    for label, (have, wanted) in enumerate(zip(counts.tolist(), tested, strict=True)):
        if not have:
            also = " but is in the test set" if wanted else ""
            raise ValueError(f"{counts.describe(label)} has no training image{also}. Add some or remove the class.")


def _draws(config: DataConfig, source: Source, rule: dict[str, Any]) -> bool:
    """Whether the seed decides anything."""
    held_out = source.test is None or ((config.val_fraction or config.val_per_class) and config.val_seed is None)
    return bool(held_out or rule.get("selection") == "ldam" or source.drawn)


def _options(config: DataConfig) -> dict[str, Any]:
    """What the user chose, for the record; where the files lie is nobody else's business."""
    chosen = {option.name: getattr(config, option.name) for option in fields(DataConfig)}
    private = ("dataset", "root", "lists", "test_list")
    return {name: value for name, value in chosen.items() if name not in private and value != getattr(DataConfig, name)}


def _path(value: Path | str | None) -> Path | None:
    return None if value is None else Path(value).expanduser()


def _portable(dataset: str) -> str:
    """The name without the machine's path."""
    kind, _, path = dataset.partition(":")
    return f"{kind}:{Path(path).expanduser().resolve().name}" if path else kind
