"""A run on its device: which precision, which form of the network."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from ..methods.base import Method
from .config import HardwareConfig, TrainConfig, uses_gpu

BACKEND = "inductor"
"""Of torch.compile."""
FORMS = 64
"""Of one network that are compiled, for batches of every size in training and evaluation, before torch gives up and
runs it as it is. A run has about ten; torch's own limit is eight."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of mallopt(3): how much free memory goes back to the system, and how many blocks come from it one by one."""


def with_precision(config: TrainConfig) -> TrainConfig:
    """The configuration with the precision that ``auto`` stands for here, so that a run's folder says what it was."""
    if config.optim.precision != "auto":
        return config
    cuda = uses_gpu(config) and config.device != "mps" and torch.cuda.is_available()
    precision: Literal["bf16", "no"] = "bf16" if cuda and torch.cuda.is_bf16_supported() else "no"
    return replace(config, optim=replace(config.optim, precision=precision))


def set_products(precision: str) -> None:
    """Whether a GPU may shorten the factors of float32 products: not where float32 was asked for."""
    short = precision != "no"
    torch.set_float32_matmul_precision("high" if short else "highest")
    torch.backends.cudnn.allow_tf32 = short


def keep_freed_memory() -> None:
    """On Linux, large tensors take the memory that this process has freed. By default each of them takes new pages from
    the system, which are filled with zeros in every step (`benchmarks/allocator.py`)."""
    if platform.libc_ver()[0] == "glibc":
        settings = ctypes.CDLL(None)
        settings.mallopt(M_MMAP_MAX, 0)
        settings.mallopt(M_TRIM_THRESHOLD, -1)


def check_device(device: str, processes: int = 1) -> None:
    """Say in a sentence that a device is unknown or not here."""
    kind, colon, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (colon and not (kind == "cuda" and number.isdigit())):
        raise ValueError(f"--device must be auto, cpu, cuda, cuda:N or mps; got {device!r}.")
    if kind in ("cuda", "mps") and not getattr(torch, kind).is_available():
        raise ValueError(f"--device {device} is not available here. Use --device cpu or auto.")
    if colon and int(number) >= torch.cuda.device_count():
        raise ValueError(f"--device {device}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0.")
    if colon and processes > 1:
        raise ValueError(f"--device {device} is one GPU, and {processes} processes take one each. Use --device cuda.")


def in_fast_format(model: nn.Module, device: torch.device, wanted: bool | None = None) -> nn.Module:
    """Channels last where convolutions gain by it (`benchmarks/memory_format.py` for CPUs), or where it is wanted."""
    if device.type in ("cuda", "cpu") if wanted is None else wanted:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def fit_to_device(backbone: nn.Module, config: HardwareConfig, method: Method, device: torch.device) -> nn.Module:
    """The backbone in the form that the run asks for; its parameters keep their names."""
    if config.grad_checkpointing:
        try:
            backbone.set_grad_checkpointing(True)  # type: ignore[operator]
        except (AttributeError, AssertionError, NotImplementedError):  # timm's ways to say no
            raise ValueError(
                f"--grad-checkpointing: a {type(backbone).__name__} cannot do it; leave it out, or split the batch "
                "with --accumulation."
            ) from None
    in_fast_format(backbone, device, config.channels_last)
    if config.sync_batchnorm:
        backbone = nn.SyncBatchNorm.convert_sync_batchnorm(backbone)  # type: ignore[no-untyped-call]
    if config.compile:
        if not method.compiles:
            raise ValueError(
                f"--compile: {type(method).__name__} differentiates through its own step, which torch.compile cannot "
                "do; leave it out."
            )
        _compile(backbone)
    return backbone


def _compile(backbone: nn.Module) -> None:
    """A form of its own for each size of batch. One form for all sizes would be made at the second size that comes, and
    that is another step in a run that was resumed: its last digits would differ from those of the uninterrupted one."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, FORMS)
    backbone.compile(backend=BACKEND, dynamic=False)
