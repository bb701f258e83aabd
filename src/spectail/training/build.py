"""From a TrainConfig to the pieces of a run: accelerator, data, transforms, method, and the model, made here only."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from numpy.typing import NDArray
from torch import nn

from ..counts import ClassCounts
from ..data.datasets import Data, load
from ..data.feature_set import FeatureSet
from ..data.samples import Samples
from ..data.transforms import Preset, preset, with_margin
from ..losses.base import LabelLoss
from ..methods.base import Method
from ..methods.registry import Entry, find_method
from ..models.build import MODELS, build_model, feature_width
from ..models.classifier import Classifier
from ..models.feature_transform import FeatureTransform, transformed
from ..models.tuning import add_lasting, tune
from ..models.weights import LoadReport
from .config import TrainConfig, has_gpu
from .hardware import check_device, fit_to_device, keep_freed_memory, set_products, with_precision
from .head_start import set_scale, start_head
from .probe import head_inputs
from .reporter import Reporter


@dataclass
class Pieces:
    """What a run is made of."""

    accelerator: Accelerator
    data: Data
    preset: Preset | None
    """None where the data are features."""
    entry: Entry
    method: Method
    model: Classifier
    splits: dict[str, Samples]
    """What training and evaluation read: images, or features in probe mode."""
    backbone: nn.Module | None
    """In probe mode the frozen backbone with the transform of its features, which the model then lacks."""
    crops: int = 1
    """Of each test image."""

    def whole_model(self, model: Classifier) -> Classifier:
        """The model that takes images, in probe mode too."""
        return model if self.backbone is None else Classifier(self.backbone, model.head)

    def inputs(self) -> Preset | None:
        return None if self.backbone is not None else self.preset

    def test_inputs(self) -> Preset | None:
        """As :meth:`inputs`, for the evaluation."""
        inputs = self.inputs()
        return with_margin(inputs) if inputs is not None and self.crops > 1 else inputs


def make_accelerator(config: TrainConfig) -> Accelerator:
    check_device(config.device, int(os.environ.get("WORLD_SIZE", "1")))
    if ":" in config.device:
        torch.cuda.set_device(config.device)
    asked = with_precision(config).optim.precision
    mixed = asked if asked in ("bf16", "fp16") else "no"
    set_products(asked)
    if AcceleratorState._shared_state.get("_mixed_precision", mixed) != mixed:
        AcceleratorState._reset_state()  # a second run in one process may have another precision
    accelerator = Accelerator(
        cpu=config.device == "cpu" or (config.device == "auto" and not has_gpu()),  # launchers start several only then
        mixed_precision=mixed,
        log_with=list(config.trackers) or None,
        project_dir=str(config.output),
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=False),
            InitProcessGroupKwargs(timeout=timedelta(hours=6)),  # while one rank checks data or computes features
        ],
    )
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    if accelerator.num_processes > 1:
        atexit.register(_leave_gloo)
    return accelerator


def _leave_gloo() -> None:
    """End gloo's threads before the interpreter does: one that drops a tensor later aborts a process that is done."""
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def load_data(config: TrainConfig, reporter: Reporter | None = None) -> Data:
    """The images of a run."""
    with make_accelerator(config).main_process_first():  # the others find the cache filled
        return load(config.data, track=(reporter or Reporter()).track)


def make_pieces(config: TrainConfig, reporter: Reporter, data: Data | None = None) -> Pieces:
    """``data`` are the images of the run where somebody has loaded them already."""
    entry = find_method(config.method)
    accelerator = make_accelerator(config)
    data = load_data(config, reporter) if data is None else data
    describe(data, reporter)
    torch.manual_seed(config.seed)
    method = make_method(config, data.counts)
    if config.probe and method.needs_images:
        advice = "Choose another method." if isinstance(data.train, FeatureSet) else "Leave --probe out."
        raise ValueError(f"{config.method} works on images and cannot be used in probe mode. {advice}")
    transforms = None if isinstance(data.train, FeatureSet) else make_preset(config, data.transform)
    model, report = make_model(config, method, transforms, data.width)
    if report is not None:
        reporter.start(str(report))
    splits, backbone = data.splits, None
    if not config.probe and transforms is not None:
        start_head(config, model, data, transforms, accelerator, reporter)
        _tune(config, model, transforms.size, reporter)
    if config.probe:
        if transforms is not None and not config.model.has_weights and config.stage1 is None:
            reporter.start("note: --probe leaves the backbone at random weights; give some with --init.")
        backbone = model.backbone.requires_grad_(False)
        inputs = head_inputs(backbone, data, transforms, accelerator, workers=config.workers, track=reporter.track)
        torch.manual_seed(config.seed)  # whether the features came from the cache must not matter
        width = inputs["train"].features.shape[1]
        model = method.build(nn.Identity(), make_head(config, method, width))
        splits = dict(inputs)
    else:
        model.backbone = fit_to_device(model.backbone, config.hardware, method, accelerator.device)
    if config.watch_test:
        splits["watched"] = splits["test"].subset(evenly(len(data.test), config.watch_test))
    return Pieces(accelerator, data, transforms, entry, method, model, splits, backbone, config.test_crops)


def describe(data: Data, reporter: Reporter) -> None:
    """Say what the data are and what was left out of them."""
    found = f"{len(data.train):,} training {data.train.unit} of {len(data.counts):,} classes"
    reporter.start(f"{data.manifest.dataset}: {found}, identity {data.manifest.identity}")
    for line in data.manifest.left_out():
        reporter.start(line)


def _tune(config: TrainConfig, model: Classifier, size: int, reporter: Reporter) -> None:
    how = config.tuning.tune
    if how == "full":
        return
    tuned, total = tune(model, config.tuning, size)
    torch.manual_seed(config.seed)  # as many draws as without it
    trained = f"{tuned:,} of {total:,} parameters of the backbone ({100 * tuned / total:.2f} %), and the head"
    reporter.start(f"--tune {how} trains {trained}")
    if not config.model.has_weights:
        reporter.start(f"note: --tune {how} leaves most of the backbone at random weights; give some with --init.")


def evenly(length: int, share: float) -> NDArray[np.int64]:
    """Places spread over all of a sorted set, one at least."""
    return np.unique(np.linspace(0, length - 1, max(1, round(share * length))).round().astype(np.int64))


def make_method(config: TrainConfig, counts: ClassCounts) -> Method:
    method = find_method(config.method).load()(counts, config.options, epochs=config.optim.epochs)
    if config.optim.label_smoothing:
        losses = [module for module in method.modules() if isinstance(module, LabelLoss)]
        if not losses:
            raise ValueError(f"--label-smoothing: the loss of {config.method} does not come from labels; leave it out.")
        for loss in losses:
            loss.smoothing = config.optim.label_smoothing
    return method


def make_model(
    config: TrainConfig, method: Method, transforms: Preset | None, width: int | None = None, *, start: bool = True
) -> tuple[Classifier, LoadReport | None]:
    """The network that a method trains, and what was loaded into it.

    Args:
        transforms: of the images; None for data that are features, which have no network before the head.
        width: of such features.
        start: False leaves the weights out that a run starts from: those of its end will be loaded.
    """
    new_head = partial(make_head, config, method)
    kind = config.features or "raw"
    if transforms is None:
        assert width is not None
        transform = FeatureTransform(kind, width)
        return method.build(transformed(nn.Identity(), transform), new_head(transform.out_width)), None
    wanted = config.model if start else replace(config.model, init=None, pretrained=False)
    if wanted.img_size is None:
        wanted = replace(wanted, img_size=transforms.size)
    built, report = build_model(wanted, len(method.counts), new_head)
    transform = FeatureTransform(kind, feature_width(built.backbone))
    head = built.head if transform.out_width == transform.width else new_head(transform.out_width)
    set_scale(head, config)
    model = method.build(transformed(built.backbone, transform), head)
    if not start:
        add_lasting(model, config.tuning)
    return model, report


def make_head(config: TrainConfig, method: Method, width: int) -> nn.Module:
    """The head of a run, for features of this width."""
    head = method.make_head(head_kind(config, method), width)
    set_scale(head, config)
    return head


def head_kind(config: TrainConfig, method: Method) -> str:
    """The head that the run asks for, if the method can work with it."""
    needed, asked = method.head, config.model.head
    if needed is not None and asked is not None and asked != needed:
        raise ValueError(f"{config.method} needs a {needed} head; got --head {asked}. Leave --head out.")
    return asked or needed or method.usual_head


def make_preset(config: TrainConfig, usual: str, *, testing: bool = False) -> Preset:
    """The transform, ``usual`` unless the run names one. With a checkpoint its own normalisation is used.

    ``testing`` gives test images the size that several crops are cut from, where the run asks for them.
    """
    declared = config.model.model not in MODELS and config.model.has_weights and config.normalization == "model"
    made = preset(
        config.transform or usual,
        size=config.model.img_size,
        model=config.model.model if declared else None,
        randaugment=config.rand_augment,
        erasing=config.random_erasing,
    )
    return with_margin(made) if testing and config.test_crops > 1 else made
