"""Which network to take features from: the one that was asked for, or the best whose weights are at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from .._utils import torchvision_ops  # noqa: F401 - before timm
from .._utils.files import cache_folder
from .._utils.names import nearest
from ..models.build import MODELS, PIXELS, ModelConfig
from ..models.hub import answers, is_cached

PREFERRED = ("vit_small_patch14_reg4_dinov2.lvd142m", "vit_small_patch16_224.augreg_in21k_ft_in1k",
             "resnet50.a1_in1k", "tf_efficientnet_lite0.in1k")  # fmt: skip
"""Best first, all small enough for a CPU. The first is what the hub is asked for."""
AUTO = "auto"
"""What stands for the network until one is found."""
SMALL, UPSCALED = 100, 128
"""Images below so many pixels are shown to a pre-trained network at 128, others at the usual size."""


@dataclass(frozen=True)
class Backbone:
    """A network and whether it knows anything yet."""

    model: ModelConfig
    frozen: bool
    """Its features are used as they are. False: it starts from random weights and must be trained."""
    note: str
    """What was taken and why, in a sentence."""


def choose_backbone(asked: ModelConfig, pixels: int) -> Backbone:
    """The network for images of so many pixels.

    A weight file names its network: ``--init resnet50.safetensors`` needs no ``--model``. Without either, weight files
    in ``weights`` of the cache folder and what the hub has left on this machine are tried, then the hub itself.
    """
    sized = replace(asked, img_size=asked.img_size or (UPSCALED if pixels < SMALL else PIXELS))
    if asked.init is not None:
        name = asked.model if asked.model != AUTO else _named_by(asked.init)
        return Backbone(replace(sized, model=name, pretrained=False), True, f"features of {name} ({asked.init.name})")
    if asked.model != AUTO and asked.model not in MODELS:
        return Backbone(replace(sized, pretrained=True), True, f"features of {asked.model}")
    if asked.model == AUTO:
        for path in _files():
            name = _named_by(path)
            return Backbone(replace(sized, model=name, init=path), True, f"features of {name} ({path.name})")
        for name in PREFERRED:
            if is_cached(name):
                return Backbone(replace(sized, model=name, pretrained=True), True, f"features of {name}")
        if answers(PREFERRED[0]):
            name = PREFERRED[0]
            return Backbone(replace(sized, model=name, pretrained=True), True, f"features of {name}, from the hub")
    size = asked.img_size or min(pixels, 64)
    why = "" if asked.model != AUTO else (
        ": no pre-trained weights are at hand, and the hub does not answer. For a far better classifier download a "
        f"weight file such as that of timm/{PREFERRED[-1]} and pass it with --init FILE"
    )  # fmt: skip
    name = ModelConfig.model if asked.model == AUTO else asked.model
    note = f"a small network ({name}) is trained from scratch{why}"
    return Backbone(replace(asked, model=name, img_size=size), False, note)


def _named_by(path: Path) -> str:
    """The timm model that a weight file, or its folder in the hub's cache, is named after."""
    import timm  # noqa: PLC0415 - slow to import

    for word in (path.name.removesuffix(path.suffix), path.name, path.parent.name):
        if timm.is_model(word):
            return word
    known = nearest(path.stem, timm.list_models())
    raise ValueError(f"--init {path.name}: the file's name is no model of timm; say which one with --model. {known}")


def _files() -> list[Path]:
    """Weight files that the user has put into the cache folder."""
    folder = cache_folder() / "weights"
    return sorted(path for path in folder.glob("*") if path.suffix in (".safetensors", ".pth", ".bin"))
