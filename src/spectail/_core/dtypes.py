"""How exact a device can count."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def holds_float64(device: torch.device) -> bool:
    """Whether a device has numbers of double precision; Apple GPUs have not.

    Example:
        >>> holds_float64(torch.device("cpu")), holds_float64(torch.device("mps"))
        (True, False)
    """
    return device.type != "mps"


def widest(device: torch.device | None) -> torch.dtype:
    """The most exact floating-point numbers of a device; None for the CPU.

    Example:
        >>> widest(None), widest(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float64 if holds_float64(device or torch.device("cpu")) else torch.float32


def at_least_single(values: Tensor) -> Tensor:
    """In single precision, or in double where they are so already."""
    return values if values.dtype == torch.float64 else values.float()


def full_precision(device: torch.device) -> Any:
    """A context in which autocast rounds nothing.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16), full_precision(torch.device("cpu")):
        ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
        torch.float32
    """
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else contextlib.nullcontext()
