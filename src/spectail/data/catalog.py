"""The data sets by name: what each is, how it is cut by default, and which module reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from .._utils.names import nearest
from .config import DataConfig

if TYPE_CHECKING:
    from .sets.source import Source


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue."""

    name: str
    summary: str
    reader: str
    """``module:function`` under ``data/sets``."""
    transform: str
    """Name of the usual transform preset; none where there are no images."""
    imbalance: float | None = None
    """Default imbalance factor; None leaves the data as it is."""
    largest: int | None = None
    """n_max under a profile; None for the most that the data supplies."""
    fixed: bool = False
    """Defined by its lists: cannot be cut."""
    classes: int = 0
    """Number of classes; 0 where the user's files decide."""
    images: int = 0
    """Training images of a set that cannot be cut."""
    test: int = 0
    """Test images; 0 where the user's files or options decide."""
    order: str = "label"
    cap: bool = False
    takes: frozenset[str] = frozenset()
    """Options that only this kind of data set understands."""

    @property
    def has_features(self) -> bool:
        """Whether it holds features in place of images, which no network has to see."""
        return self.transform == "none"

    def open(self, config: DataConfig) -> Source:
        module, function = self.reader.split(":")
        reader: Callable[[DataConfig], Source] = getattr(import_module(f".sets.{module}", __package__), function)
        return reader(config)


ENTRIES = [
    Entry("cifar10-lt", "CIFAR-10, cut to an exponential long tail", "cifar:open_source", "cifar", 100, 5000,
          classes=10, test=10_000, takes=frozenset({"root", "image_column", "label_column"})),
    Entry("cifar100-lt", "CIFAR-100, cut to an exponential long tail", "cifar:open_source", "cifar", 100, 500,
          classes=100, test=10_000, takes=frozenset({"root", "image_column", "label_column"})),
    Entry("tiny-imagenet-lt", "Tiny-ImageNet-200, cut to an exponential long tail", "tiny_imagenet:open_source", "tiny",
          100, 500, classes=200, test=10_000, takes=frozenset({"root"})),
    Entry("imagenet-lt", "ImageNet-LT, defined by its official lists (Liu et al. 2019)", "imagenet_lt:open_source",
          "imagenet-fast",
          fixed=True, classes=1000, images=115_846, test=50_000, takes=frozenset({"root", "lists"})),
    Entry("imagenet-lt-exp", "ILSVRC-2012, cut to an exponential long tail; not the official ImageNet-LT",
          "imagenet_lt:open_exponential", "imagenet-fast", 100, 1280, cap=True, classes=1000, test=50_000,
          takes=frozenset({"root"})),
    Entry("inat2018", "iNaturalist 2018, long-tailed by nature", "inat2018:open_source", "inat-fast",
          fixed=True, classes=8_142, images=437_513, test=24_426, takes=frozenset({"root", "lists"})),
    Entry("glyphs-lt", "images of characters, drawn from fonts; needs no download", "glyphs_lt:open_source", "glyphs",
          100, 200, classes=100, takes=frozenset({"num_classes"})),
]  # fmt: skip
OWN = [
    Entry("folder:PATH", "your images, one folder per class, with or without train, val and test above them",
          "folder:open_source", "imagenet-fast", order="size", takes=frozenset({"test_fraction", "strict"})),
    Entry("list:FILE", "your images, listed in a file with a path and a label per line", "lists:open_source",
          "imagenet-fast", order="size",
          takes=frozenset({"root", "test_list", "test_fraction", "remap_labels", "strict"})),
    Entry("features:FILE", "your features and labels, in a .npz, .npy or .parquet file", "features:open_source", "none",
          order="size", takes=frozenset({"feature_column", "label_column", "test_fraction", "remap_labels"})),
    Entry("parquet:PATH", "your images, in parquet files with an image and a label per row", "parquet:open_source",
          "imagenet-fast", order="size",
          takes=frozenset({"image_column", "label_column", "test_fraction", "remap_labels", "strict"})),
]  # fmt: skip
SPECIAL = {"root", "lists", "num_classes", "test_list", "test_fraction", "remap_labels", "image_column",
           "feature_column", "label_column", "strict"}  # fmt: skip


def find(name: str) -> Entry:
    """The entry of a name as :func:`spectail.data.paths.full_name` gives it, or the nearest names."""
    entry = known_entry(name)
    if entry is None:
        raise ValueError(f"unknown data set {name!r}; {nearest(name, NAMES)}")
    return entry


def known_entry(name: str) -> Entry | None:
    """The entry of a name of the catalogue, or of a path with its kind before it."""
    for entry in OWN:
        prefix = entry.name.split(":")[0] + ":"
        if name.startswith(prefix):
            if name == prefix:
                raise ValueError(f"{name} needs a path: write {entry.name}.")
            return entry
    return next((entry for entry in ENTRIES if name == entry.name), None)


NAMES = [entry.name for entry in [*ENTRIES, *OWN]]


def check_options(config: DataConfig, entry: Entry) -> None:
    """No option is silently ignored: one that means nothing for this data set is refused."""
    changed = {option.name for option in dataclasses.fields(config) if getattr(config, option.name) != option.default}
    for name in sorted(changed & SPECIAL - entry.takes):
        raise ValueError(f"--{name.replace('_', '-')} means nothing for {config.dataset}. Leave it out.")
    cutting = changed & {"imbalance", "counts", "profile", "max_per_class", "order", "cap", "selection"}
    if entry.fixed and cutting:
        hint = " For a set drawn by the exponential rule use imagenet-lt-exp." if entry.name == "imagenet-lt" else ""
        raise ValueError(
            f"{entry.name} is defined by its lists and cannot be cut with --{min(cutting).replace('_', '-')}.{hint}"
        )
    if config.counts is not None and cutting - {"counts", "selection"}:
        other = min(cutting - {"counts", "selection"}).replace("_", "-")
        raise ValueError(f"--counts and --{other} exclude each other: counts say everything.")
    if entry.imbalance is None and not entry.fixed and config.imbalance is None and config.counts is None and cutting:
        name = min(cutting).replace("_", "-")
        raise ValueError(f"--{name} needs --imbalance: without it {config.dataset} is used as it is.")
