"""The model of a finished run, ready for new images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..data.catalog import find
from ..data.manifest import Manifest
from ..data.transforms import Preset
from ..methods.registry import find_method
from ..models.build import build_model
from ..models.weights import read_weights
from .config import TrainConfig
from .config_io import read_yaml
from .setup import head_kind, make_preset


@dataclass(frozen=True)
class Trained:
    config: TrainConfig
    manifest: Manifest
    model: nn.Module
    """As the method uses it for inference, in evaluation mode."""
    preset: Preset


def load_trained(run: Path) -> Trained:
    """Read a run's folder. Neither the data nor the weights it started from are needed."""
    if not (run / "model.safetensors").is_file():
        what = "holds no finished run: model.safetensors is missing" if run.is_dir() else "does not exist"
        raise FileNotFoundError(f"{run} {what}. Expected the folder of a run that has ended.")
    config, manifest = read_yaml(run / "config.yaml"), Manifest.load(run / "manifest.json")
    preset = make_preset(config, find(config.data.dataset).transform)
    method_type = find_method(config.method).load()
    method = method_type(manifest.counts, config.options, epochs=config.optim.epochs)
    size = preset.size if config.model.img_size is None else config.model.img_size
    bare = replace(config.model, init=None, pretrained=False, img_size=size)
    built, _ = build_model(bare, len(manifest.classes), partial(method.make_head, head_kind(config, method)))
    model = method.build(built.backbone, built.head)
    try:
        model.load_state_dict(read_weights(run))
    except RuntimeError:
        raise ValueError(f"the weights in {run} are not of a {config.model.model}: config.yaml was changed.") from None
    inference = method.inference(model)
    return Trained(config, manifest, (Flipped(inference) if config.flip_test else inference).eval(), preset)


class Flipped(nn.Module):
    """Logits averaged over an image and its mirror image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = (self.model(images) + self.model(images.flip(-1))) / 2
        return logits


class Normalised(nn.Module):
    """A model that takes images with values in [0, 1] and normalises them itself: what is exported."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, preset: Preset) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(preset.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(preset.std).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model((images - self.mean) / self.std)
        return logits
