"""Samples: what a split of a data set is made of. Both kinds have labels, names, counts, subsets and digests."""

from __future__ import annotations

from typing import TypeAlias

from .feature_set import FeatureSet
from .image_set import ImageSet

Samples: TypeAlias = ImageSet | FeatureSet
