"""What a loader gives and a method takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """``images`` is a tensor, or a tuple of them with several views; ``indices`` are positions in the image set."""

    images: Any
    labels: Tensor
    indices: Tensor
