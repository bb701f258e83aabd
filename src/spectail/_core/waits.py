"""How the host gets by without waiting for a device.

An accelerator works behind: the host hands it operations and goes on. Reading a value, or a plain copy between the two,
stops the host until everything handed over so far is done, and then the device until there is work again.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reads_are_free(device: torch.device) -> bool:
    """Whether the host can look at values of a device without waiting. Tests say no to take an accelerator's path.

    Example:
        >>> reads_are_free(torch.device("cpu")), reads_are_free(torch.device("cuda"))
        (True, False)
    """
    return device.type == "cpu"


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Values of the host on a device, without a wait.

    Example:
        >>> sent(torch.arange(3), torch.device("cpu"))
        tensor([0, 1, 2])
    """
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()  # out of other memory a large copy would wait
    return values.to(device, non_blocking=_safe(device))


def on_its_way(value: Tensor) -> Tensor:
    """A value of a device in memory of the host, where it arrives some time later; until then it is 0.

    Example:
        >>> on_its_way(torch.tensor(2.5))
        tensor(2.5000)
    """
    place = torch.zeros(value.shape, dtype=value.dtype, pin_memory=value.device.type == "cuda")
    return place.copy_(value.detach(), non_blocking=_safe(value.device))


def _safe(device: torch.device) -> bool:
    """Apple GPUs go on reading host memory that has been freed meanwhile (pytorch issues 139550, 189690)."""
    return device.type != "mps"


def reading_waits(value: object) -> bool:
    """Whether looking at a tensor would make the program wait for a device, or break a compiled graph."""
    return torch.compiler.is_compiling() or (isinstance(value, Tensor) and value.device.type != "cpu")
