"""Which part of a network is trained: all of it, its head, or a small part of the backbone as well."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from .._utils.checks import AtLeastOne, BelowOne, Positive
from . import adaptformer
from .classifier import Classifier
from .weights import weights_digest

RANK, SCALE = 8, 1.0
"""Of LoRA."""


@dataclass(frozen=True)
class TuneConfig:
    """Which part of the network is trained, and where its head starts."""

    tune: Literal["full", "head", "lora", "bias", "norm", "adaptformer"] = "full"
    """Part of the network that is trained."""
    tune_rank: AtLeastOne | Literal["classes"] | None = None
    """Rank of LoRA, or width of AdaptFormer; classes is the largest power of two up to half the classes for each block,
    as in LIFT. By default 8 for LoRA and 64 for AdaptFormer."""
    tune_scale: Positive | Literal["learned"] | None = None
    """Factor of what LoRA or AdaptFormer adds; learned trains one for each block (AdaptFormer). By default 1 for LoRA
    and 0.1 for AdaptFormer."""
    tune_dropout: BelowOne = 0.0
    """Dropout inside LoRA or AdaptFormer."""
    tune_targets: tuple[str, ...] = ()
    """Words from the names of the layers to tune, such as attn mlp, or layer4. By default LoRA takes the attention of a
    transformer and the convolutions of other networks; bias and norm take all of theirs."""
    tune_norm: bool = False
    """Let each branch of AdaptFormer read the input of the block's norm through a norm of its own, as LIFT does."""
    head_init: Literal["means", "text", "random"] | None = None
    """Where the head starts: at the class means of frozen features, at embeddings of the class names (text, which needs
    --text-weights), or at random. By default means for any --tune but full."""
    head_scale: Positive | None = None
    """Factor of a cosine head, and of a linear one that starts at means or text. By default 30, or that of the
    method."""
    text_weights: str | None = None
    """A CLIP checkpoint of open_clip for --head-init text, as ARCHITECTURE:FILE or ARCHITECTURE:TAG, such as
    ViT-B-16-quickgelu:openai. By default none."""


def tune(model: Classifier, config: TuneConfig, size: int) -> tuple[int, int]:
    """Add what the configuration asks for to the backbone, and freeze the rest of it.

    ``model.tuned`` then names what moves in the backbone, and ``model.base`` is the digest of what does not.

    Args:
        model: the whole network; a head of any kind is left alone.
        config: what to do.
        size: of its images, in pixels.

    Returns:
        The number of parameters that are trained beside the head, and how many the backbone had.
    """
    backbone = model.backbone
    total = sum(parameter.numel() for parameter in backbone.parameters())
    if config.tune == "full":
        return total, total
    model.base = weights_digest(backbone)
    if config.tune == "head":
        model.tuned = frozenset()
    elif config.tune == "lora":
        model.tuned = _lora(model, config, size)
    elif config.tune == "adaptformer":
        model.tuned = _adaptformer(model, config)
    else:
        found = _biases(backbone) if config.tune == "bias" else _norms(backbone)
        model.tuned = frozenset(_chosen(found, config.tune_targets, backbone))
    model.freeze_backbone(False)
    return sum(value.numel() for value in backbone.parameters() if value.requires_grad), total


def add_lasting(model: Classifier, config: TuneConfig) -> None:
    """What is still in the network after :func:`merged`, for weights that were saved then."""
    if config.tune == "adaptformer":
        _adaptformer(model, config)


def merged(model: Classifier) -> Classifier:
    """The model with low-rank updates added to the weights: the same function and the plain network's names.

    AdaptFormer is not linear and stays. A model without updates is returned as it is.
    """
    if not any(hasattr(module, "get_base_layer") for module in model.modules()):
        return model
    model = copy.deepcopy(model)
    for parent in list(model.backbone.modules()):
        for name, child in parent.named_children():
            if hasattr(child, "get_base_layer"):
                child.merge()  # type: ignore[operator]
                setattr(parent, name, child.get_base_layer())  # type: ignore[operator]
    model.tuned = None
    return model


def trained_part(model: Classifier, state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Of a state whose names of the model begin with ``prefix``, all but the frozen weights of the backbone."""
    if model.tuned is None:
        return state
    start = f"{prefix}backbone."
    return {
        name: value
        for name, value in state.items()
        if not name.startswith(start) or name.removeprefix(start) in model.tuned
    }


def _lora(model: Classifier, config: TuneConfig, size: int) -> frozenset[str]:
    try:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - slow to import
    except ImportError:
        raise ValueError("--tune lora needs the package peft: pip install 'spectail[peft]'.") from None

    if config.tune_scale == "learned":
        raise ValueError("--tune-scale learned belongs to --tune adaptformer; give LoRA a number.")
    backbone = model.backbone
    layers = _called(backbone, {name: one for name, one in backbone.named_modules() if _takes_lora(one)}, size)
    attention = [name for name in layers if _has_word(name, "attn")]
    targets = _chosen(layers, config.tune_targets, backbone) if config.tune_targets else attention or layers
    if not targets:
        raise ValueError(f"--tune lora: a {type(backbone).__name__} has no layer that it could be put on.")
    rank = _rank(config, model) or RANK
    alpha = rank * (config.tune_scale or SCALE)
    settings = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=config.tune_dropout, target_modules=targets)
    before = set(backbone.parameters())
    inject_adapter_in_model(settings, backbone)
    return _new(backbone, before)


@torch.no_grad()
def _called(backbone: nn.Module, layers: dict[str, nn.Module], size: int) -> list[str]:
    """Those that the network calls. Some of timm's read the weight of a layer and multiply by it themselves, as the
    attention of BEiT, EVA and Swin V2 does: what is added to such a layer would never run."""
    seen: set[nn.Module] = set()
    hooks = [layer.register_forward_pre_hook(lambda module, _: seen.add(module)) for layer in layers.values()]
    was_training, device = backbone.training, next(backbone.parameters()).device
    backbone.eval()(torch.zeros(1, 3, size, size, device=device))
    backbone.train(was_training)
    for hook in hooks:
        hook.remove()
    return [name for name, layer in layers.items() if layer in seen]


def _takes_lora(module: nn.Module) -> bool:
    """Linear layers and convolutions, but neither depthwise ones nor the stem, which sees the three colours."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.in_channels > 3
    return type(module) is nn.Linear


def _rank(config: TuneConfig, model: Classifier) -> int | None:
    if config.tune_rank != "classes":
        return config.tune_rank
    weight = getattr(model.head, "weight", None)
    found = adaptformer.blocks(model.backbone)
    if not isinstance(weight, Tensor) or not found:
        raise ValueError("--tune-rank classes is for transformers with one class vector for each class; give a number.")
    return int(2 ** max(0, math.floor(math.log2(len(weight) / (2 * len(found))))))


def _adaptformer(model: Classifier, config: TuneConfig) -> frozenset[str]:
    backbone = model.backbone
    found = adaptformer.blocks(backbone)
    if not found:
        raise ValueError(
            f"--tune adaptformer needs the blocks of a transformer, which a {type(backbone).__name__} does not have. "
            "Use --tune lora."
        )
    before = set(backbone.parameters())
    width, scale = _rank(config, model) or adaptformer.WIDTH, config.tune_scale or adaptformer.SCALE
    for name in _chosen(found, config.tune_targets, backbone):
        adaptformer.adapt(found[name], width, scale, config.tune_dropout, config.tune_norm)
    return _new(backbone, before)


def _new(backbone: nn.Module, before: set[nn.Parameter]) -> frozenset[str]:
    return frozenset(name for name, value in backbone.named_parameters() if value not in before)


def _biases(backbone: nn.Module) -> list[str]:
    return [name for name, _ in backbone.named_parameters() if name.rpartition(".")[2].endswith("bias")]


def _norms(backbone: nn.Module) -> list[str]:
    """Weights, biases and running statistics."""
    found = (name for name, module in backbone.named_modules() if "norm" in type(module).__name__.lower())
    own = {name: set(backbone.get_submodule(name).state_dict()) for name in found}
    return [f"{name}.{part}" for name, parts in own.items() for part in sorted(parts) if "." not in part]


def _chosen(names: Iterable[str], words: Sequence[str], backbone: nn.Module) -> list[str]:
    """The names in which one of the words stands; each word must be of use."""
    names = list(names)
    for word in words:
        if not any(_has_word(name, word) for name in names):
            parts = sorted({part for name in names for part in name.split(".") if not part.isdigit()})
            raise ValueError(
                f"--tune-targets {word} matches no layer of a {type(backbone).__name__} that can be tuned so; their "
                f"names are made of {', '.join(parts[:12])}."
            )
    chosen = [name for name in names if not words or any(_has_word(name, word) for word in words)]
    if not chosen:
        raise ValueError(f"a {type(backbone).__name__} has no such part to tune.")
    return chosen


def _has_word(name: str, word: str) -> bool:
    """Whether a word, or several with dots between, is part of a dotted name."""
    return f".{word.strip('.')}." in f".{name}."
