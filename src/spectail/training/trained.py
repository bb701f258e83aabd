"""The model of a finished run, ready for new images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .._utils.checks import check_choice
from .._utils.errors import is_lack_of_memory
from ..counts import ClassCounts
from ..data.catalog import find
from ..data.manifest import Manifest
from ..data.transforms import Preset
from ..methods.base import Method
from ..methods.registry import find_method
from ..models.adjustment import Adjustment
from ..models.classifier import Classifier
from ..models.weights import read_weights
from .build import make_method, make_model, make_preset
from .config import TrainConfig
from .run_folder import RunFolder

POST_HOC = ("logit-adjustment", "tau-norm")


@dataclass(frozen=True)
class Trained:
    config: TrainConfig
    manifest: Manifest
    model: nn.Module
    """As the method uses it for inference, in evaluation mode."""
    preset: Preset | None
    """How images become what the model takes; None for a model of features."""

    @property
    def width(self) -> int:
        """Numbers in a row of features, for a model of features."""
        return int(self.manifest.statistics["features"])


def load_trained(
    run: Path, post_hoc: str | None = None, tau: float | None = None, adjust: Path | Adjustment | None = None
) -> Trained:
    """Read a run's folder. Neither the data nor the weights it started from are needed.

    An ``adjustment.json`` in the folder is applied: the results of such a run have it too.

    Args:
        run: folder of a run that has ended.
        post_hoc: ``"logit-adjustment"`` or ``"tau-norm"``, put on a run that was trained without.
        tau: of ``post_hoc`` (default 1), or in place of the run's own where it acts after training.
        adjust: an adjustment chosen on predictions of the run, or its file; it comes after the run's own.
    """
    RunFolder(run).require("model.safetensors")
    own = RunFolder(run).adjustment()
    changed = "post_hoc" if post_hoc is not None else "tau"
    if (post_hoc is not None or tau is not None) and (own is not None or adjust is not None):
        what = "--adjust FILE" if adjust is not None else f"the adjustment.json in {run}"
        raise ValueError(f"{what} was chosen for the logits as they are; leave out --{changed.replace('_', '-')}.")
    config, manifest = RunFolder(run).config(), Manifest.load(run / "manifest.json")
    if tau is not None and post_hoc is None:
        if not hasattr(config.options, "tau"):
            raise ValueError(f"{run} is a run of {config.method}, which has no tau. {_USE}")
        config = replace(config, options=replace(config.options, tau=tau))  # type: ignore[call-arg]
    entry = find(config.data.dataset)
    usual = entry.transform.removesuffix("-fast")  # a run without a name had none of the fast ones
    preset = None if entry.has_features else make_preset(config, usual, testing=True)
    method = make_method(config, manifest.counts)
    model, _ = make_model(config, method, preset, manifest.statistics.get("features"), start=False)
    try:
        model.load_state_dict(read_weights(run))
    except RuntimeError as error:
        if is_lack_of_memory(error):
            raise
        raise ValueError(f"the weights in {run} are not of a {config.model.model}: config.yaml was changed.") from None
    inference = method.inference(model)
    if tau is not None and post_hoc is None and inference is model:
        raise ValueError(f"{run} is a run of {config.method}, whose tau acts in training only. {_USE}")
    if post_hoc is not None:
        if method.adjusts_at_inference or type(method).inference is not Method.inference:
            raise ValueError(
                f"{run} is a run of {config.method}: its logits are adjusted already. Leave --post-hoc out."
            )
        inference = _adjusted(run, model, manifest.counts, post_hoc, tau)
    for one in (own, Adjustment.load(adjust) if isinstance(adjust, Path) else adjust):
        if one is not None:
            one.require_classes(manifest.classes, f"the run in {run}")
            inference = one.on(inference)
    return Trained(config, manifest, tested(inference, config, preset).eval(), preset)


_USE = "To adjust its logits pass --post-hoc logit-adjustment or tau-norm."


def _adjusted(run: Path, model: Classifier, counts: ClassCounts, post_hoc: str, tau: float | None) -> nn.Module:
    """What a method that acts after training makes of the model."""
    check_choice("post_hoc", post_hoc, POST_HOC)
    kind = find_method(post_hoc).load()
    if kind.head == "linear" and (type(model) is not Classifier or type(model.head) is not nn.Linear):
        raise ValueError(f"{post_hoc} needs a plain linear head, which the network in {run} does not have.")
    options = kind.options if tau is None else replace(kind.options, tau=tau)  # type: ignore[call-arg]
    return kind(counts, options, epochs=1).inference(model)


def tested(model: nn.Module, config: TrainConfig, preset: Preset | None) -> nn.Module:
    """The model with what is averaged at test time."""
    if config.flip_test:
        model = Flipped(model)
    return FiveCrops(model, preset.size) if config.test_crops > 1 and preset is not None else model


class FiveCrops(nn.Module):
    """Logits averaged over the four corners and the centre of a larger image."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, images: Tensor) -> Tensor:
        size, rest = self.size, images.shape[-1] - self.size
        places = ((0, 0), (0, rest), (rest, 0), (rest, rest), (rest // 2, rest // 2))
        crops = [self.model(images[..., y : y + size, x : x + size]) for y, x in places]
        logits: Tensor = torch.stack(crops).mean(0)
        return logits


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
