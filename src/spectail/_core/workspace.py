"""Memory that is used anew at every step, so that the step does not have to ask the system for it again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Scratch:
    """Named buffers on the CPU that grow to the largest size asked for.

    Large tensors that are allocated and freed at every step go back to the operating system in between, and touching
    fresh pages can cost many times the arithmetic. Contents do not outlive a step and are not copied or saved.
    """

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], like: NDArray[Any]) -> NDArray[Any]:
        """An array of this shape with undefined contents, in the memory of the last one of this name."""
        wanted = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.size < wanted or held.dtype != like.dtype:
            held = self._held[name] = np.empty(wanted, like.dtype)
        return held[:wanted].reshape(shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Scratch:
        return Scratch()

    def __getstate__(self) -> dict[str, Any]:
        return {"_held": {}}


def take(scratch: Scratch | None, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """For ``out=``: a buffer, or None to let torch allocate."""
    return None if scratch is None else torch.from_numpy(scratch.array(name, shape, like.numpy()))
