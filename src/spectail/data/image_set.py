"""ImageSet: images with labels and class names, a torch data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ..counts import ClassCounts
from .images import ArrayImages, Images


class ImageSet(Dataset[tuple[Any, int]]):
    """Images, their labels as one array, and the class names. Indexing gives ``(transform(image), label)``.

    Example:
        >>> images = ArrayImages(np.zeros((3, 8, 8, 3), dtype=np.uint8))
        >>> data = ImageSet(images, [0, 1, 1], ["cat", "otter"])
        >>> len(data), data[2][1], data.counts
        (3, 1, ClassCounts([1, 2]))
    """

    unit = "images"

    def __init__(
        self,
        images: Images,
        labels: Sequence[int] | NDArray[np.integer[Any]],
        names: Sequence[str],
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.images = images
        self.labels = np.asarray(labels, dtype=np.int64)
        self.names = tuple(names)
        self.transform = transform
        if self.labels.shape != (len(images),):
            raise ValueError(f"an image set needs one label per image: got {len(images)} images, {len(labels)} labels.")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.images.read(index)
        return (image if self.transform is None else self.transform(image)), int(self.labels[index])

    @property
    def targets(self) -> NDArray[np.int64]:
        """The labels, under the name that torchvision's data sets use."""
        return self.labels

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts(np.bincount(self.labels, minlength=len(self.names)), self.names)

    @property
    def pixels(self) -> NDArray[np.uint8] | None:
        """All images as one array when they are held in memory, else None."""
        return self.images.pixels if isinstance(self.images, ArrayImages) else None

    def subset(self, indices: NDArray[Any]) -> ImageSet:
        """The samples at ``indices`` (positions or a mask), in that order."""
        if indices.dtype == bool and indices.shape != self.labels.shape:
            raise ValueError(f"a mask needs one entry per image: got {len(indices)} for {len(self)} images.")
        chosen = np.flatnonzero(indices) if indices.dtype == bool else indices
        return ImageSet(self.images.take(chosen), self.labels[chosen], self.names, self.transform)

    def with_classes(self, labels: NDArray[np.int64], names: Sequence[str]) -> ImageSet:
        """The same samples under other labels and class names."""
        return ImageSet(self.images, labels, names, self.transform)

    def name_of(self, index: int) -> str:
        """What to call a sample in messages, manifests and reports."""
        return self.images.name(index)

    def sample_names(self) -> list[str] | None:
        """Names of all samples where they lead to stored images, such as paths; None where images are drawn."""
        return [self.images.name(index) for index in range(len(self))] if self.images.named else None

    def index_digest(self) -> str | None:
        """Identifies the images by where they are stored, when that means something elsewhere."""
        return self.images.index_digest()

    def with_transform(self, transform: Callable[[Any], Any] | None) -> ImageSet:
        return ImageSet(self.images, self.labels, self.names, transform)
