"""From a TrainConfig to the pieces of a run: accelerator, data, transforms, method, and the model, made here only."""

from __future__ import annotations

import atexit
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from ..counts import ClassCounts
from ..data.datasets import Data, load
from ..data.feature_set import FeatureSet
from ..data.image_set import ImageSet
from ..data.transforms import Preset, preset
from ..methods.base import Method
from ..methods.registry import Entry, find_method
from ..models.build import MODELS, build_model
from ..models.classifier import Classifier
from ..models.weights import LoadReport
from .config import TrainConfig, has_gpu
from .probe import feature_sets
from .reporter import Reporter


@dataclass
class Pieces:
    """What a run is made of."""

    accelerator: Accelerator
    data: Data
    preset: Preset
    entry: Entry
    method: Method
    model: Classifier
    splits: dict[str, ImageSet | FeatureSet]
    """What training and evaluation read: images, or features in probe mode."""
    backbone: nn.Module | None
    """In probe mode the frozen backbone, which the model then lacks."""
    stage1: Method | None = None
    """The method of the run that --stage1 has loaded into the model."""

    def whole_model(self, model: Classifier) -> Classifier:
        """The model that takes images, in probe mode too."""
        return model if self.backbone is None else Classifier(self.backbone, model.head)

    def inputs(self) -> Preset | None:
        return None if self.backbone is not None else self.preset


def make_accelerator(config: TrainConfig) -> Accelerator:
    if config.device not in ("auto", "cpu", "cuda", "mps"):
        raise ValueError(f"device must be auto, cpu, cuda or mps; got {config.device!r}.")
    if config.device in ("cuda", "mps") and not getattr(torch, config.device).is_available():
        raise ValueError(f"--device {config.device} is not available here. Use --device cpu or auto.")
    if AcceleratorState._shared_state.get("_mixed_precision", config.optim.precision) != config.optim.precision:
        AcceleratorState._reset_state()  # a second run in one process may have another precision
    accelerator = Accelerator(
        cpu=config.device == "cpu" or (config.device == "auto" and not has_gpu()),  # launchers start several only then
        mixed_precision=config.optim.precision,
        log_with=list(config.trackers) or None,
        project_dir=str(config.output),
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=False)],
    )
    if accelerator.num_processes > 1:
        atexit.register(_leave_gloo)
    return accelerator


def _leave_gloo() -> None:
    """End gloo's threads before the interpreter does: one that drops a tensor later aborts a process that is done."""
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def make_pieces(config: TrainConfig, reporter: Reporter) -> Pieces:
    entry = find_method(config.method)
    accelerator = make_accelerator(config)
    with accelerator.main_process_first():  # the others find the cache filled
        data = load(config.data, track=reporter.track)
    reporter.start(f"{data.manifest.dataset}: {len(data.train):,} training images of {len(data.counts):,} classes, "
                   f"identity {data.manifest.identity}")  # fmt: skip
    torch.manual_seed(config.seed)
    method = make_method(config, data.counts)
    if config.probe and method.needs_images:
        raise ValueError(f"{config.method} works on images and cannot be used in probe mode. Leave --probe out.")
    transforms = make_preset(config, data.transform)
    model, report = make_model(config, method, transforms)
    if report is not None:
        reporter.start(str(report))
    splits: dict[str, Any] = {"train": data.train, "test": data.test}
    if data.val is not None:
        splits["val"] = data.val
    backbone = None
    if config.probe:
        backbone = model.backbone.requires_grad_(False)
        splits = dict(
            feature_sets(backbone, data, transforms, accelerator, workers=config.workers, track=reporter.track)
        )
        torch.manual_seed(config.seed)  # whether the features came from the cache must not matter
        width = splits["train"].features.shape[1]
        model = method.build(nn.Identity(), method.make_head(head_kind(config, method), width))
    return Pieces(accelerator, data, transforms, entry, method, model, splits, backbone)


def make_method(config: TrainConfig, counts: ClassCounts) -> Method:
    return find_method(config.method).load()(counts, config.options, epochs=config.optim.epochs)


def make_model(
    config: TrainConfig, method: Method, transforms: Preset, *, start: bool = True
) -> tuple[Classifier, LoadReport | None]:
    """The network that a method trains, and what was loaded into it.

    ``start=False`` leaves the weights out that a run starts from: those of its end will be loaded.
    """
    wanted = config.model if start else replace(config.model, init=None, pretrained=False)
    if wanted.img_size is None:
        wanted = replace(wanted, img_size=transforms.size)
    new_head = partial(method.make_head, head_kind(config, method))
    built, report = build_model(wanted, len(method.counts), new_head)
    return method.build(built.backbone, built.head), report


def head_kind(config: TrainConfig, method: Method) -> str:
    """The head that the run asks for, if the method can work with it."""
    needed, asked = method.head, config.model.head
    if needed is not None and asked is not None and asked != needed:
        raise ValueError(f"{config.method} needs a {needed} head; got --head {asked}. Leave --head out.")
    return asked or needed or "linear"


def make_preset(config: TrainConfig, usual: str) -> Preset:
    """The transform, ``usual`` unless the run names one. With a checkpoint its own normalisation is used."""
    has_weights = config.model.pretrained or config.model.init is not None
    declared = config.model.model not in MODELS and has_weights and config.normalization == "model"
    return preset(config.transform or usual, size=config.model.img_size, model=config.model.model if declared else None)
