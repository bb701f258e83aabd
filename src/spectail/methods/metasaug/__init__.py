"""MetaSAug: `method` says what it does in a step, `look_ahead` how the covariances are corrected."""

from .method import MetaSAug, MetaSAugOptions

__all__ = ["MetaSAug", "MetaSAugOptions"]
