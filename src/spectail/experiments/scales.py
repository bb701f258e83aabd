"""How large a run is: the paper's own size, a tenth of it, or what a laptop can do. Every change is said."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..training.recipes import find_recipe
from .cells import Cell, merged, method_settings, nested

Scale = Literal["quick", "complete", "short", "paper"]
SCALES: dict[str, str] = {
    "quick": "a ResNet-20 for 12 epochs from scratch, and a linear head on frozen features in place of fine-tuning. On"
    " a CPU a run takes seconds to half an hour for CIFAR and glyphs-lt, days for large data sets",
    "complete": "small networks trained to the end or close to it: a small CNN or a ResNet-32 from scratch, an"
    " EfficientNet-Lite0 fine-tuned at 64 pixels. On a CPU a run takes minutes to two hours for CIFAR and glyphs-lt",
    "short": "the paper's models for a tenth of its epochs, with small images at their own size",
    "paper": "the paper's models and epochs",
}
BACKBONES = {
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
    "vit_large": "vit_large_patch16_224",
    "resnet": "resnet50",
    "swin": "swin_tiny_patch4_window7_224",
}
WEIGHTS = {"vit_small": ".augreg_in1k", "vit_base": ".augreg_in1k"}
"""Tags of timm's weights of ImageNet-1k alone, which the paper means, where the usual ones have seen more."""
OTHER_WEIGHTS = ("vit_tiny", "vit_large")
OUR_SIZES = {"resnet": "ResNet-50 (the paper names no size)", "swin": "Swin-Tiny (the paper names no size)"}
OUR_DECAY = {
    "scratch": "weight decay 5e-3, that of WB (the paper names no number)",
    "pretrained": "cosine schedule and weight decay 0.05 (the paper names none)",
}
OPTIMISER = {
    "scratch": {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 5e-3},
    "pretrained": {"optimizer": "adamw", "lr": 2e-4, "weight_decay": 0.05},
}
"""That of the paper for all methods; WB and LOS would else bring their own, which belongs to their recipes."""
OWN_OPTIMISER = ("wb", "los")
SEVERAL_VARIANTS = ("cb", "remix", "cmo", "concutmix", "metasaug")
"""Methods published in several variants, of which the paper names none."""
SMALL_IMAGES = {"cifar100-lt": (32, 4), "cifar10-lt": (32, 4), "tiny-imagenet-lt": (64, 8)}
"""Own size of the images, and the patches that leave a ViT 64 of them."""
EPOCHS = {"scratch": 200, "pretrained": 100}
WATCHED = {"watch_test": 0.2}
"""Part of the test set on which it is watched, and nothing else decided, whether a training has come to its end."""
CONVOLUTIONS = {"hardware": {"channels_last": True}}
"""Faster on a CPU. So is ResNet-32 in bf16, but not the depthwise convolutions of an EfficientNet."""
BATCH = {"demo": 64}
"""Images in a batch by preset, where they are not 128."""
UNTIL_THE_END = 0
"""Epochs of a head that finds its length itself."""
ABOUT = 24
"""Epochs that such a head usually takes."""
LONGER = {("scratch", "inat2018"): 300}


@dataclass(frozen=True)
class Overrides:
    """What a person changes about a whole experiment; each change is noted beside its numbers."""

    model: str | None = None
    """Network for all cells. By default that of the scale."""
    init: Path | None = None
    """File of weights to start from. By default those of the scale."""
    epochs: int | None = None
    """Epochs of each run. By default those of the scale."""
    img_size: int | None = None
    """Input size in pixels. By default that of the scale."""
    batch_size: int | None = None
    """Images in one optimiser step. By default those of the scale."""
    accumulation: int | None = None
    """Number of micro-batches into which the batch of a step is split. By default that of the scale."""
    precision: Literal["auto", "no", "tf32", "bf16", "fp16"] | None = None
    """Precision of the network, as for `spectail train`."""
    data_seed: int | None = None
    """Seed of the subset and of held-out splits. By default that of the experiment."""
    imagenet_lt: Literal["exponential", "official"] = "exponential"
    """Images of ImageNet-LT: the exponential cut, or the official lists, which exist for one cut only."""


@dataclass(frozen=True)
class Sized:
    """A cell at a scale: settings for `from_dict`, the second over the first, and what differs from the paper."""

    base: dict[str, Any]
    own: dict[str, Any]
    notes: tuple[str, ...]
    model: str
    pixels: int
    epochs: int
    probe: bool
    refused: str | None = field(default=None)
    """Why the cell cannot run at this scale."""


def sized(cell: Cell, scale: Scale, overrides: Overrides | None = None) -> Sized:
    """What a cell trains at a scale.

    Example:
        >>> cell = Cell("scratch", "cifar100-lt", 100.0, "vit_small", "cmo+car", "CAR + CMO")
        >>> sized(cell, "paper").model, sized(cell, "quick").model, sized(cell, "short").epochs
        ('vit_small_patch16_224', 'resnet20', 20)
    """
    overrides = overrides if overrides is not None else Overrides()
    own = merged(method_settings(cell.method), {"data": _data(cell, overrides)}, nested(cell.changes))
    if cell.dataset == "glyphs-lt":
        found = _glyphs(scale)
    elif scale == "quick":
        found = _quick(cell)
    elif scale == "complete":
        found = _complete(cell)
    else:
        found = _paper(cell, scale)
    notes = list(found.notes)
    if own["data"]["dataset"] == "imagenet-lt-exp":
        notes.append("exponential cut of ILSVRC-2012, not the official ImageNet-LT lists")
    elif cell.dataset == "imagenet-lt":
        notes.append("official ImageNet-LT lists, 115,846 images (imbalance factor 256)")
    if own["method"] == "safa-r":
        notes.append("SAFA-R, our reconstruction of SAFA, which has no public code")
    method = own["method"]
    if cell.dataset == "glyphs-lt" or scale == "quick":
        notes += ["SGD 0.01 and decay 5e-3 in stage one, as published"] * (method in OWN_OPTIMISER)
    elif method in OWN_OPTIMISER:
        own = merged({"optim": OPTIMISER[cell.setting]}, own)
    found = _changed(replace(found, own=own), overrides, notes)
    found = _with_recipe(found, cell)
    whole = LONGER.get((cell.setting, cell.dataset), EPOCHS[cell.setting])
    if cell.dataset == "glyphs-lt":
        found = replace(found, notes=(*found.notes, f"{found.epochs} epoch{'s' * (found.epochs > 1)}"))
    elif found.epochs not in (whole, UNTIL_THE_END):
        found = replace(found, notes=(*found.notes, f"{found.epochs} epochs instead of {whole}"))
    if cell.dataset == "imagenet-lt" and overrides.imagenet_lt == "official" and cell.imbalance != 100.0:
        found = replace(found, refused="the official ImageNet-LT lists have no other imbalance factor")
    if overrides.init is not None and cell.setting == "scratch":
        found = replace(found, refused="it trains from scratch, and --init gives weights")
    if found.probe and _needs_images(method):
        found = replace(found, refused=f"{method} works on images, and this scale trains a head on stored features")
    if found.probe and "tuning" in own:
        found = replace(found, refused="it tunes a network, and this scale trains a head on stored features")
    if not found.probe and "features" in own:
        found = replace(found, refused="it is about a head on stored features; use --scale quick")
    return found


def _with_recipe(found: Sized, cell: Cell) -> Sized:
    """The options and the head that the method was published with on this data set; the network, the optimiser and the
    images are those of the scale."""
    method = found.own["method"]
    try:
        recipe = find_recipe(method, cell.dataset)
    except ValueError:  # a data set of ours
        return found
    notes, options = list(found.notes), dict(recipe.options)
    if options.get("stage2_epochs") is not None:  # never longer than published: that was worse where it was tried
        share = min(1.0, (found.epochs or ABOUT) / recipe.optim["epochs"])
        options["stage2_epochs"] = max(1, round(options["stage2_epochs"] * share))
    if options.get("meta_data") == "val":
        options["meta_data"] = "train"
        notes.append("meta batches from the training set, not from validation data")
    if method in SEVERAL_VARIANTS:
        notes.append(f"variant: {recipe.variant} (the paper of CAR names none)")
    if "stage2_lr" in options and options.get("frozen", True):
        notes.append("second stage by SGD, as published")
    own = {"options": options} | ({"model": recipe.rest["model"]} if "model" in recipe.rest else {})
    return replace(found, own=merged(own, found.own), notes=tuple(notes))


def _needs_images(method: str) -> bool:
    from ..methods.registry import find_method  # noqa: PLC0415 - it takes torch, which most plans do without

    return find_method(method).load().needs_images


def _data(cell: Cell, overrides: Overrides) -> dict[str, Any]:
    if cell.imbalance is None or (cell.dataset == "imagenet-lt" and overrides.imagenet_lt == "official"):
        return {"dataset": cell.dataset}
    name = "imagenet-lt-exp" if cell.dataset == "imagenet-lt" else cell.dataset
    return {"dataset": name, "imbalance": cell.imbalance}


def _glyphs(scale: Scale) -> Sized:
    """The embedded set is ours, so that no scale of it is the paper's."""
    epochs = {"quick": 14, "complete": 45, "short": 30, "paper": 60}[scale]
    base: dict[str, Any] = {"preset": "demo", "optim": {"epochs": epochs}}
    if scale == "complete":
        base = merged(base, {"optim": {"optimizer": "adamw", "lr": 5e-3, "weight_decay": 0.05}}, WATCHED)
    return Sized(base, {}, ("embedded data set, small CNN",), "small-cnn", 32, epochs, False)


def _quick(cell: Cell) -> Sized:
    if cell.setting == "pretrained":
        model = BACKBONES.get(cell.backbone, cell.backbone)
        base = {"preset": "probe", "model": {"model": model, "pretrained": True, "img_size": 224}}
        notes = ("linear head on frozen features instead of fine-tuning, as many epochs as it needs",)
        return Sized(base, {}, notes, model, 224, UNTIL_THE_END, True)
    base = {"model": {"model": "resnet20", "img_size": 32},
            "optim": {"epochs": 12, "optimizer": "sgd", "lr": 0.1, "weight_decay": 2e-4,
                      "warmup_epochs": 1.0}}  # fmt: skip
    return Sized(base, {}, (f"ResNet-20 at 32 x 32 instead of {cell.backbone}, SGD 0.1",), "resnet20",
                 32, 12, False)  # fmt: skip


def _complete(cell: Cell) -> Sized:
    if cell.setting == "pretrained":
        model, pixels, epochs = "tf_efficientnet_lite0", 64, 12
        base = {"preset": "finetune", "transform": "cifar", "model": {"model": model, "img_size": pixels},
                "optim": {"epochs": epochs, "lr": 1e-3}}  # fmt: skip
        note = f"EfficientNet-Lite0 at 64 x 64 instead of {cell.backbone}"
    else:
        model, pixels, epochs = "resnet32", 32, 60
        base = {"model": {"model": model, "img_size": pixels},
                "optim": {"epochs": epochs, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4,
                          "warmup_epochs": 1.0, "precision": "bf16"}}  # fmt: skip
        note = f"ResNet-32 at 32 x 32 instead of {cell.backbone}, SGD 0.1, bf16"
    return Sized(merged(base, CONVOLUTIONS, WATCHED), {}, (note,), model, pixels, epochs, False)


def _paper(cell: Cell, scale: Scale) -> Sized:
    model = BACKBONES.get(cell.backbone, cell.backbone)
    whole = LONGER.get((cell.setting, cell.dataset), EPOCHS[cell.setting])
    epochs = whole if scale == "paper" else whole // 10
    base: dict[str, Any] = {"preset": "scratch" if cell.setting == "scratch" else "finetune",
                            "model": {"model": model}, "optim": {"epochs": epochs}}  # fmt: skip
    notes = [OUR_SIZES[cell.backbone]] if cell.backbone in OUR_SIZES else []
    if cell.setting == "pretrained":
        model += WEIGHTS.get(cell.backbone, "")
        base["model"] = {"model": model}
        if cell.backbone in OTHER_WEIGHTS:
            notes.append("weights of ImageNet-21k, fine-tuned on 1k: timm has none of ImageNet-1k alone")
    notes.append(OUR_DECAY[cell.setting])
    pixels, small = 224, SMALL_IMAGES.get(cell.dataset)
    if cell.setting == "scratch" and small is not None:
        if scale == "short" and model.startswith("vit"):
            pixels, patch = small
            base["model"] |= {"img_size": pixels, "patch_size": patch}
            base["transform"] = None  # that of the data set
            notes.append(f"{pixels} x {pixels} pixels with patches of {patch}")
        else:
            notes.append("224 x 224 pixels, as in the authors' script (the paper names no size)")
    return Sized(base, {}, tuple(notes), model, pixels, epochs, False)


def _changed(found: Sized, overrides: Overrides, notes: list[str]) -> Sized:
    base, own = found.base, found.own
    if overrides.model is not None and overrides.model != found.model:
        base = merged(base, {"model": {"model": overrides.model}})
        notes.append(f"{overrides.model} instead of {found.model}")
        found = replace(found, model=overrides.model)
    if overrides.init is not None:
        base = merged(base, {"model": {"init": str(overrides.init), "pretrained": False}})
        notes.append(f"starts from {overrides.init.name}")
    if overrides.epochs is not None and overrides.epochs != found.epochs:
        base = merged(base, {"optim": {"epochs": overrides.epochs}})
        found = replace(found, epochs=overrides.epochs)
    if overrides.img_size is not None and overrides.img_size != found.pixels:
        base = merged(base, {"model": {"img_size": overrides.img_size}})
        notes.append(f"{overrides.img_size} x {overrides.img_size} pixels instead of {found.pixels}")
        found = replace(found, pixels=overrides.img_size)
    if overrides.batch_size is not None and overrides.batch_size != BATCH.get(base.get("preset", ""), 128):
        base = merged(base, {"optim": {"batch_size": overrides.batch_size}})
        notes.append(f"batch of {overrides.batch_size}")
    for name in ("accumulation", "precision"):
        value = getattr(overrides, name)
        if value is not None:
            base = merged(base, {"optim": {name: value}})
            notes.append(f"{name} {value}")
    if overrides.data_seed:  # 0 is what a cut has anyway
        own = merged(own, {"data": {"data_seed": overrides.data_seed}})
        notes.append(f"data seed {overrides.data_seed}")
    return replace(found, base=base, own=own, notes=tuple(notes))
