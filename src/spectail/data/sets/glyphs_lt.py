"""`glyphs-lt`: the embedded data set. A character is drawn when it is chosen; the test set has 40 images of each."""

from __future__ import annotations

import matplotlib
import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from ..._utils.files import array_digest
from ..catalog import find
from ..config import DataConfig
from ..image_set import ImageSet
from ..images import Images
from . import glyphs
from .source import Source

FACTS = find("glyphs-lt")
TEST = 40  # images of each class
MOST = 100_000  # that it draws of a class: an hour of work


class GlyphImages(Images):
    """Image k of class c is a pure function of (seed, split, c, k)."""

    def __init__(self, split: str, seed: int, keys: NDArray[np.int64]) -> None:
        self.split, self.seed, self.keys = split, seed, keys

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, index: int) -> Image.Image:
        label, number = self.keys[index].tolist()
        return Image.fromarray(glyphs.draw(self.split, self.seed, label, number)).convert("RGB")

    def name(self, index: int) -> str:
        label, number = self.keys[index].tolist()
        return f"{self.split} {glyphs.CHARACTERS[label]} {number}"

    def take(self, indices: NDArray[np.int64]) -> GlyphImages:
        return GlyphImages(self.split, self.seed, self.keys[indices])

    def fingerprint(self) -> str:
        versions = f"{PIL.__version__}-{matplotlib.__version__}"  # other fonts or another renderer, other pixels
        return f"glyphs-{glyphs.DRAWING}-{versions}-{self.split}-{self.seed}-{array_digest(self.keys)}"


def open_source(config: DataConfig) -> Source:
    size = FACTS.classes if config.num_classes is None else config.num_classes
    names = glyphs.class_names(size)
    largest = max([config.max_per_class or FACTS.largest or 0, *(config.counts or ())])
    if largest > MOST:
        raise ValueError(f"glyphs-lt draws at most {MOST:,} images of a class; got {largest:,}. Ask for fewer.")
    train = _whole("train", config.data_seed, size, largest, names)
    return Source(train, _whole("test", config.data_seed, size, TEST, names), drawn=True)


def _whole(split: str, seed: int, classes: int, per_class: int, names: tuple[str, ...]) -> ImageSet:
    keys = np.stack(np.meshgrid(np.arange(classes), np.arange(per_class), indexing="ij"), axis=-1).reshape(-1, 2)
    return ImageSet(GlyphImages(split, seed, keys), keys[:, 0], names)
