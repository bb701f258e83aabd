"""DataConfig: everything that decides which images a run sees. One place for defaults, shared by every command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class DataConfig:
    """Which data set, and how it is cut."""

    dataset: str = "glyphs-lt"
    """A name from `spectail list datasets`, or the path of a folder of class folders, of a list, or of a .parquet, .npz
    or .npy file."""
    root: Path | None = None
    """Folder that holds the files of the data set. By default the cache folder, into which CIFAR is downloaded."""
    imbalance: float | None = None
    """Imbalance factor: images of the largest class over those of the smallest. By default the usual factor of a
    benchmark; data of your own stay as they are."""
    profile: Literal["exponential", "step"] = "exponential"
    """Shape of the long tail."""
    counts: tuple[int, ...] | None = None
    """Images per class, one number for each class, instead of a profile. By default the profile decides."""
    max_per_class: int | None = None
    """Size of the largest class under a profile. By default that of the benchmark, or the most that every class
    can supply."""
    order: Literal["label", "size"] | None = None
    """Which class becomes the largest: that of the first label, or the one with most images. By default label for
    benchmarks, size for data of your own."""
    cap: bool = False
    """Where a class has fewer images than the profile asks for, take all it has and record it."""
    selection: Literal["ldam", "first-n"] = "ldam"
    """Which images a class keeps: a seeded draw, as in the code of LDAM and most papers since, or the first ones."""
    data_seed: int = 0
    """Seed of the subset and of held-out splits. It is not the training seed: runs with different seeds share
    their data."""
    val_fraction: float = 0.0
    """Fraction of each class's training images to hold out for validation."""
    val_per_class: int = 0
    """Number of training images of each class to hold out for validation, instead of a fraction."""
    val_seed: int | None = None
    """Seed that chooses the images held out for validation. By default the data seed."""
    test_fraction: float = 0.2
    """Fraction of each class to hold out as test set where the data have none."""
    num_classes: int | None = None
    """Number of classes of glyphs-lt. By default 100."""
    test_list: Path | None = None
    """Test list that belongs to list:FILE. By default a list beside it with test or val in place of train in its
    name."""
    lists: Path | None = None
    """Folder of the list or JSON files of imagenet-lt and inat2018. By default the root."""
    image_column: str | None = None
    """Parquet column that holds the encoded images. By default the schema decides."""
    feature_column: str | None = None
    """Parquet column that holds lists of numbers, for features:FILE. By default the schema decides."""
    label_column: str | None = None
    """Parquet column that holds the labels. By default the schema decides."""
    remap_labels: bool = False
    """Close gaps in the labels of a list, a parquet file or features by numbering the classes that occur."""
    strict: bool = False
    """Stop at an image that cannot be read or a class folder without images, instead of leaving it out with a note.
    Benchmarks are always strict."""
    check: Literal["quick", "full", "none"] = "quick"
    """Images to decode as a check: all of a small set and a sample of a large one, all, or none."""
    in_memory: Literal["auto", "yes", "no"] = "auto"
    """Hold decoded images in memory: when they are small, always, or never."""
    groups: Literal["count", "oltr", "if100", "ranges", "thirds"] = "count"
    """Convention that divides classes into head, medium and tail."""
