"""From a name to a Classifier, with weights from timm or from a file and a report of what was loaded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import nn

from .._utils import torchvision_ops  # noqa: F401 - before timm
from .._utils.checks import AtLeastOne, BelowOne, Limits
from .._utils.errors import MissingWeights, is_lack_of_memory
from .._utils.names import nearest
from . import hub
from .cifar_resnet import CifarResNet
from .classifier import Classifier
from .heads import make_head
from .small import SmallCNN, SmallViT
from .weights import LoadReport, load_weights

NO_MODEL = "none"
"""What stands for the network where the data are features and only a head is trained."""
PIXELS = 224
"""Input size that networks are usually pre-trained with."""


@dataclass(frozen=True)
class ModelConfig:
    """Which network, and where its weights come from."""

    model: str = "small-cnn"
    """Name of the network: small-cnn, small-vit, resnet20, resnet32, resnet34-cifar, or any timm model; none for
    features."""
    img_size: Annotated[int, Limits(8, 4096)] | None = None
    """Input size in pixels. By default that of the transform."""
    patch_size: AtLeastOne | None = None
    """Patch size of a vision transformer, such as 4 for 32 x 32 images. By default that of the model."""
    drop_path: BelowOne = 0.0
    """Probability with which a timm model skips its last block in training (stochastic depth); it rises from 0 in the
    first block."""
    pretrained: bool = False
    """Load the pretrained weights of timm, which are downloaded once."""
    head: Literal["linear", "cosine"] | None = None
    """Kind of classifier. By default the one that the method needs, or linear."""
    init: Path | None = None
    """Start from weights in a .safetensors or .pth file or in the folder of a run. By default they are random."""

    @property
    def has_weights(self) -> bool:
        """Whether it starts from weights that were learned before."""
        return self.pretrained or self.init is not None


def _resnet34(options: dict[str, Any]) -> nn.Module:
    """ResNet-34 for 32 x 32 images: a 3 x 3 stem of stride 1, no pooling after it."""
    import timm  # noqa: PLC0415

    backbone: nn.Module = timm.create_model("resnet34", num_classes=0, zero_init_last=False)
    stem = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    backbone.conv1, backbone.maxpool = stem, nn.Identity()
    return backbone


MODELS: dict[str, tuple[str, Callable[[dict[str, Any]], nn.Module]]] = {
    "small-cnn": ("CNN with three convolutions, for small images such as glyphs-lt", lambda options: SmallCNN()),
    "small-vit": ("ViT of width 192 and depth 6, for small images", lambda options: SmallViT(**options)),
    "resnet20": ("ResNet-20 for 32 x 32 images, as in CIFAR papers", lambda options: CifarResNet(20)),
    "resnet32": ("ResNet-32 for 32 x 32 images, the usual network for CIFAR-LT", lambda options: CifarResNet(32)),
    "resnet34-cifar": (
        "ResNet-34 of full width with a stem for 32 x 32 images, as in Weight Balancing and LOS",
        _resnet34,
    ),
}


def build_model(
    config: ModelConfig, num_classes: int, head: str | Callable[[int], nn.Module] = "linear"
) -> tuple[Classifier, LoadReport | None]:
    """The network with a new head, and what was loaded into it (None when it starts from random weights).

    ``head`` is a kind, or a function from the number of features to a module.
    """
    options: dict[str, Any] = {}
    if config.drop_path:
        options["drop_path_rate"] = config.drop_path
    if config.patch_size is not None:
        options["patch_size"] = config.patch_size
    if config.img_size is not None and (config.model == "small-vit" or config.patch_size or _takes_size(config.model)):
        options["img_size"] = config.img_size
    if config.model in MODELS:
        if config.pretrained and config.init is None:
            raise ValueError(f"{config.model} has no pretrained weights; give a file with --init, or a timm model.")
        if config.drop_path:
            raise ValueError(f"--drop-path is for models of timm; {config.model} cannot leave out blocks.")
        if config.patch_size is not None and config.model != "small-vit":
            raise ValueError(f"--patch-size means nothing for {config.model}.")
        backbone = MODELS[config.model][1](options)
    else:
        backbone = _from_timm(config, options)
    width = feature_width(backbone)
    new = make_head(head, width, num_classes) if isinstance(head, str) else head(width)
    model = Classifier(backbone, new)
    return model, load_weights(model.backbone, config.init) if config.init is not None else None


def feature_width(backbone: nn.Module) -> int:
    """Numbers in a feature. Some timm models have a hidden layer before the classifier, and the head sees its width."""
    width: Any = getattr(backbone, "head_hidden_size", None) or backbone.num_features
    return int(width)


def _from_timm(config: ModelConfig, options: dict[str, Any]) -> nn.Module:
    import timm  # noqa: PLC0415 - slow to import, so only where it is needed

    if not timm.is_model(config.model):
        raise ValueError(f"unknown model {config.model!r}; {nearest(config.model, [*MODELS, *timm.list_models()])}")
    pretrained = config.pretrained and config.init is None  # a file given takes the place of the hub
    if pretrained:
        options = options | _weights_at_hand(config.model)
    try:
        backbone: nn.Module = timm.create_model(config.model, pretrained=pretrained, num_classes=0, **options)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None:
            raise
        flag = unknown[1].removesuffix("_rate").replace("_", "-")
        raise ValueError(f"{config.model} does not take --{flag}.") from None
    except (OSError, RuntimeError) as error:
        if not pretrained or is_lack_of_memory(error):
            raise
        raise MissingWeights(
            f"the weights of {config.model} could not be fetched ({str(error).splitlines()[0]}). "
            "Give them as a file with --init."
        ) from None
    return backbone


def _weights_at_hand(name: str) -> dict[str, Any]:
    """Options of timm that take weights from the cache. Those that are not there are asked for once, not for long."""
    file, place = hub.cached_file(name), hub.place_of(name)
    if file is not None:
        return {"pretrained_cfg_overlay": {"file": str(file)}}
    if place is not None and not hub.answers(name):
        raise MissingWeights(
            f"the weights of {name} are not on this machine, and the hub did not answer within {hub.WAIT:.0f} seconds. "
            f"Fetch {place[1]} of {place[0]} elsewhere and pass it with --init FILE."
        )
    return {}


def _takes_size(name: str) -> bool:
    """Transformers are built for one input size; convolutional networks take any."""
    return bool(re.match(r"(vit|deit|convit|flexivit|swin|beit|eva|cait|xcit|mixer|mlp_mixer|small-vit)", name))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
