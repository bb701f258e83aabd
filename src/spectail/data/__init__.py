"""Long-tailed data: benchmarks, data of one's own, an embedded set, samplers, transforms and loaders.

`load` gives training, validation and test sets with a manifest that proves which images they hold. Needs the ``train``
extra: ``pip install '.[train]'`` from a clone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import Batch
    from .config import DataConfig
    from .datasets import Data, load
    from .decoding import BrokenImage
    from .feature_set import FeatureSet
    from .image_set import ImageSet
    from .images import ArrayImages
    from .loader import Loader
    from .longtail import exponential, hold_out, select, step
    from .manifest import Manifest
    from .samplers import SAMPLERS, LongTailSampler, class_probabilities
    from .transforms import PRESETS, Preset, Views, preset

_HOMES = {
    "batch": ["Batch"],
    "config": ["DataConfig"],
    "feature_set": ["FeatureSet"],
    "decoding": ["BrokenImage"],
    "images": ["ArrayImages"],
    "image_set": ["ImageSet"],
    "datasets": ["Data", "load"],
    "loader": ["Loader"],
    "longtail": ["exponential", "hold_out", "select", "step"],
    "manifest": ["Manifest"],
    "samplers": ["SAMPLERS", "LongTailSampler", "class_probabilities"],
    "transforms": ["PRESETS", "Preset", "Views", "preset"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "PRESETS", "SAMPLERS", "ArrayImages", "Batch", "BrokenImage", "Data", "DataConfig", "FeatureSet",
    "ImageSet", "Loader", "LongTailSampler", "Manifest", "Preset", "Views", "class_probabilities",
    "exponential", "hold_out", "load", "preset", "select", "step",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: transforms bring torchvision, which takes seconds."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
