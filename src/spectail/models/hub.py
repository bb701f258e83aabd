"""The hub of pre-trained weights: what it has left on this machine, and whether it answers at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from .._utils import torchvision_ops  # noqa: F401 - before timm

WAIT = 10.0
"""Seconds that the hub may take to answer."""


def place_of(name: str) -> tuple[str, str] | None:
    """Where the hub has the weights of a timm model: repository and file; None if they are elsewhere."""
    import timm  # noqa: PLC0415 - slow to import

    settings = timm.get_pretrained_cfg(name)
    return (settings.hf_hub_id, "model.safetensors") if settings is not None and settings.hf_hub_id else None


def cached_file(name: str) -> Path | None:
    """The weights of a model that were fetched before."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    where = place_of(name)
    found = try_to_load_from_cache(*where) if where is not None else None
    return Path(found) if isinstance(found, str) else None


def is_cached(name: str) -> bool:
    return cached_file(name) is not None


def answers(name: str, ask: Callable[[str], object] | None = None, wait: float = WAIT) -> bool:
    """Whether the hub has an answer for a model within a few seconds: one try, without the client's many retries."""

    def head(url: str) -> object:
        from huggingface_hub import get_hf_file_metadata  # noqa: PLC0415

        return get_hf_file_metadata(url, timeout=wait / 2)

    heard: list[bool] = []

    def try_once() -> None:
        from huggingface_hub import hf_hub_url  # noqa: PLC0415

        where = place_of(name)
        try:
            heard.append(where is not None and bool((ask or head)(hf_hub_url(*where))))
        except Exception:  # whatever it is, there are no weights
            heard.append(False)

    thread = threading.Thread(target=try_once, daemon=True)
    thread.start()
    thread.join(wait)
    return bool(heard) and heard[0]
