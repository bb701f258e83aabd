"""Class vectors from class names: the text encoder of a CLIP model, through open_clip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._utils.errors import first_line, is_lack_of_memory

PROMPT = "a photo of a {}."
INSTEAD = "or use --head-init means."


@torch.no_grad()
def class_texts(names: Sequence[str], weights: str, width: int) -> Tensor:
    """(K, width) of length one: the embeddings of prompts with the class names.

    Features of timm's CLIP networks are those before the projection into the common space, so the embeddings are taken
    back through it, as LIFT does.

    Args:
        names: of the classes.
        weights: ``ARCHITECTURE:FILE`` or ``ARCHITECTURE:TAG`` of open_clip.
        width: numbers in a feature.
    """
    architecture, _, source = weights.partition(":")
    if all(name.strip().isdigit() for name in names):
        raise ValueError(
            f"--head-init text needs names of the classes, and they are numbers such as {names[0]!r}. Name them, "
            f"{INSTEAD}"
        )
    try:
        import open_clip  # noqa: PLC0415 - optional
    except ImportError:
        raise ValueError(
            f"--head-init text needs the package open_clip_torch: pip install open_clip_torch, {INSTEAD}"
        ) from None

    if architecture not in open_clip.list_models():
        raise ValueError(f"--text-weights {weights}: open_clip has no architecture {architecture!r}.")
    path = Path(source).expanduser()
    if not path.is_file() and source not in open_clip.list_pretrained_tags_by_model(architecture):
        raise ValueError(f"--text-weights {weights}: there is no file {source!r}. Give ARCHITECTURE:FILE, {INSTEAD}")
    try:
        clip: Any = open_clip.create_model(architecture, pretrained=str(path) if path.is_file() else source).eval()
    except (OSError, RuntimeError) as error:
        if is_lack_of_memory(error):
            raise
        raise ValueError(
            f"--text-weights {weights} could not be loaded ({first_line(error)}). Give a file, {INSTEAD}"
        ) from None
    tokens = open_clip.get_tokenizer(architecture)([PROMPT.format(name.replace("_", " ")) for name in names])
    texts: Tensor = F.normalize(clip.encode_text(tokens).float(), dim=1)
    if texts.shape[1] == width:
        return texts
    projection = getattr(clip.visual, "proj", None)
    if not isinstance(projection, Tensor) or projection.shape != (width, texts.shape[1]):
        raise ValueError(
            f"--text-weights {weights}: its texts have {texts.shape[1]} numbers and features of the network {width}, "
            f"without a projection between them. Use the image encoder of the same checkpoint, {INSTEAD}"
        )
    return F.normalize(texts @ projection.float().T, dim=1)
