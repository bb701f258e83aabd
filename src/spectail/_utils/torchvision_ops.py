"""Import torchvision (and so timm) beside a torch that its compiled operators do not fit.

A CUDA build of torchvision cannot load its operators beside a CPU-only torch, and ``import torchvision`` then fails on
two missing names. Import this module first: it declares the two names when, and only when, they are missing. The
operators themselves (non-maximum suppression for detection) stay unavailable; spectail never calls them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

LIBRARIES = (".so", ".pyd", ".dylib")


def missing() -> list[str]:
    """The operators that torchvision will look for and not find."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return []
    # Whatever they are called: a name is declared twice, which ends the process, if the library that has it is missed.
    for library in sorted(path for path in Path(spec.origin).parent.iterdir() if path.suffix in LIBRARIES):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError:
            continue
    return [name for name in SCHEMAS if not hasattr(torch.ops.torchvision, name)]


def declare(names: list[str]) -> torch.library.Library | None:
    """Schemas without an implementation. The library object must stay alive for them to last."""
    if not names:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in names:
        library.define(SCHEMAS[name])  # type: ignore[no-untyped-call]
    return library


_declared = declare(missing()) or globals().get("_declared")
