"""DataConfig: everything that decides which images a run sees. One place for defaults, shared by every command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class DataConfig:
    """Which data set, and how it is cut."""

    dataset: str = "glyphs-lt"
    """A name from `spectail list datasets`, or folder:PATH, list:FILE, parquet:PATH."""
    root: Path | None = None
    """Where the files lie (or where a download may go)."""
    imbalance: float | None = None
    """Largest class over smallest class. Default: the data set's own; folders, lists and parquet stay as they are."""
    profile: Literal["exponential", "step", "pareto"] = "exponential"
    """Shape of the long tail."""
    counts: tuple[int, ...] | None = None
    """Images per class, given one by one instead of by a profile."""
    max_per_class: int | None = None
    """Size of the largest class under a profile. Default: the most that every class can supply."""
    order: Literal["label", "size"] | None = None
    """Which class is largest: the first label, or the one with most images. Default: label for the benchmarks."""
    cap: bool = False
    """Where a class has fewer images than the profile asks, take what there is and record it."""
    selection: Literal["ldam", "first-n"] = "ldam"
    """Which images a class keeps: the seeded shuffle that most of the field shares, or the first ones."""
    data_seed: int = 0
    """Seed of the subset and of held-out splits. Not the training seed: runs with different seeds share their data."""
    val_fraction: float = 0.0
    """Share of each class's training images to hold out for validation."""
    val_per_class: int = 0
    """Number of training images of each class to hold out for validation, instead of a share."""
    val_seed: int | None = None
    """Which images are held out for validation. Default: the data seed. Other seeds split the same training images."""
    test_fraction: float = 0.2
    """Share of each class to hold out as test set where the data has none."""
    num_classes: int | None = None
    """Number of classes of glyphs-lt (default 100)."""
    test_list: Path | None = None
    """Test list that goes with list:FILE."""
    lists: Path | None = None
    """Folder of the list or JSON files of imagenet-lt and inat2018. Default: the root."""
    image_column: str | None = None
    """Parquet column of the encoded images, when it cannot be told from the schema."""
    label_column: str | None = None
    """Parquet column of the labels, when it cannot be told from the schema."""
    remap_labels: bool = False
    """Close gaps in the labels of a list or parquet file by numbering the classes that occur."""
    skip_broken: bool = False
    """Leave unreadable images out, and record them, instead of stopping."""
    check: Literal["quick", "full", "none"] = "quick"
    """Images to decode as a check: all of a small set and a sample of a large one, all, or none."""
    in_memory: Literal["auto", "yes", "no"] = "auto"
    """Hold decoded images in memory: when they are small, always, or never."""
    groups: Literal["count", "oltr", "if100", "ranges", "thirds"] = "count"
    """Convention for head, medium and tail classes."""
