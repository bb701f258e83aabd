"""Long-tailed data: benchmarks, data of one's own, an embedded set, samplers and transforms.

`load` gives training, validation and test sets with a manifest that proves which images they hold. Needs the ``train``
extra: ``pip install 'spectail[train]'``.
"""

from .config import DataConfig
from .imageset import ImageSet
from .load import Data, load
from .longtail import exponential, pareto, step
from .manifest import Manifest
from .samplers import LongTailSampler, class_probabilities

__all__ = [
    "Data",
    "DataConfig",
    "ImageSet",
    "LongTailSampler",
    "Manifest",
    "class_probabilities",
    "exponential",
    "load",
    "pareto",
    "step",
]
