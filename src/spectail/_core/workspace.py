"""Memory that is used anew at every step, so that the step does not have to ask the system for it again."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Scratch:
    """Named buffers that grow to the largest size asked for.

    On a CPU, large tensors that are allocated and freed at every step go back to the operating system in between, and
    touching fresh pages can cost many times the arithmetic. Contents do not outlive a step and are not copied or saved.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape with undefined contents, in the memory of the last one of this name."""
        wanted = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < wanted or held.dtype != like.dtype or held.device != like.device:
            with torch.inference_mode(False):  # memory taken in inference mode could not be written to outside it
                held = self._held[name] = torch.empty(wanted, dtype=like.dtype, device=like.device)
        return held[:wanted].view(shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Scratch:
        return Scratch()

    def __getstate__(self) -> dict[str, Any]:
        return {"_held": {}}


def take(scratch: Scratch | None, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """For ``out=``: a buffer, or None to let torch allocate."""
    return None if scratch is None else scratch.take(name, shape, like)
