"""TrainConfig: a run's settings, complete. Presets, YAML files and flags all end here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from .._utils.checks import AtLeastOne, BelowOne, Limits, Natural, NotNegative, Positive, Proportion, Seed, check_limits
from .._utils.names import nearest
from ..counts import ClassCounts
from ..data.config import DataConfig
from ..methods.base import Options, Stage
from ..methods.deferred import LossOptions
from ..models.build import ModelConfig
from ..models.tuning import TuneConfig


@dataclass(frozen=True)
class OptimConfig:
    """Optimiser, schedule, precision and regularisation."""

    epochs: Natural = 20
    """Passes over the training images; 0 trains a probe until its held-out loss stops falling."""
    batch_size: AtLeastOne = 128
    """Images in one optimiser step, over all processes and micro-batches."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """The optimiser: AdamW, or SGD with momentum."""
    lr: Positive = 1e-3
    """Learning rate at its highest point."""
    weight_decay: NotNegative = 0.05
    """Weight decay. AdamW decouples it and spares biases and norms; SGD applies it to everything."""
    decay_all: bool = False
    """Let AdamW decay biases and norms too, as the authors' script does."""
    momentum: BelowOne = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Use Nesterov momentum in SGD."""
    schedule: Literal["cosine", "cosine-epochs", "step", "constant"] = "cosine"
    """How the learning rate falls. cosine-epochs changes it once an epoch, one epoch ahead, as some released code
    does."""
    warmup_epochs: NotNegative = 0.0
    """Epochs over which the learning rate rises linearly at the start."""
    warmup_start: Proportion = 0.0
    """Fraction of the learning rate at which the warm-up begins."""
    min_lr: NotNegative = 0.0
    """Learning rate at which the cosine schedule ends."""
    milestones: tuple[float, ...] = (0.8, 0.9)
    """Fractions of the training at which the step schedule multiplies the learning rate by --decay-factor."""
    decay_factor: Annotated[float, Limits(0, 1, open_low=True)] = 0.01
    """Factor by which the step schedule multiplies the learning rate at each milestone."""
    clip: NotNegative = 0.0
    """Clip the norm of the gradient to this value; 0 does not clip."""
    accumulation: AtLeastOne = 1
    """Number of micro-batches into which the batch of a step is split."""
    precision: Literal["auto", "no", "tf32", "bf16", "fp16"] = "auto"
    """Precision of the network: no is float32, tf32 lets a GPU round the factors of its products, bf16 and fp16 are
    mixed precision. auto takes bf16 on a GPU that has it and float32 elsewhere."""
    ema: BelowOne = 0.0
    """Decay of an exponential moving average of the weights, which is then evaluated; 0 keeps none."""
    swa: BelowOne = 0.0
    """Evaluate the mean of the weights over this last fraction of the training (SWA), such as 0.25; 0 keeps none."""
    layer_decay: Annotated[float, Limits(0, 1, open_low=True)] = 1.0
    """Factor between the learning rates of each layer of a timm model and the layer after it; 1 gives all the same."""
    label_smoothing: BelowOne = 0.0
    """Share of each label that is spread over all classes."""
    mixup: NotNegative = 0.0
    """Mixup: mix pairs of images, with a share drawn from Beta(a, a) for this value a; 0 is off."""
    cutmix: NotNegative = 0.0
    """CutMix: paste patches between pairs of images, with a share drawn as for --mixup; 0 is off. With both, each batch
    gets one of them."""


@dataclass(frozen=True)
class HardwareConfig:
    """How the network uses its device. Only SyncBatchNorm changes results by more than rounding."""

    compile: bool = False
    """Compile the backbone with torch.compile. Not for methods that differentiate through their own step."""
    channels_last: bool | None = None
    """Keep the network in the channels_last format, which suits convolutions. By default on CUDA GPUs and CPUs."""
    grad_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them (timm models)."""
    sync_batchnorm: bool = False
    """Let batch norm use the statistics of the batch over all GPUs instead of each one's own part."""


@dataclass(frozen=True)
class CARConfig:
    """The regulariser. Options left at None have the value of the preset."""

    enabled: bool = False
    """Add CAR to the method."""
    preset: Literal["paper", "classwise", "balanced", "worst", "reference"] = "paper"
    """Settings of CAR: those of the paper, class-wise averaging, the same for Balanced Softmax, the same with a soft
    maximum of the class errors, or those of the authors' script."""
    alpha: NotNegative | None = None
    """Weight of CAR in the loss. By default that of the preset: 0.5, 10, 1, 3 or 0.3."""
    start_epoch: Natural = 0
    """First epoch in which CAR has any weight; its history fills before that."""
    warmup_epochs: NotNegative = 0.0
    """Epochs over which the weight of CAR then rises linearly to alpha."""
    stages: tuple[str, ...] | None = None
    """Stages of the method in which CAR runs. By default all of them."""
    beta: BelowOne | None = None
    """Decay of the running confusion matrix. By default that of the preset."""
    r0: Positive | None = None
    """Smoothing of the class weights, above 0. By default that of the preset."""
    gamma: NotNegative | None = None
    """Margin inside the gate of the surrogate, in logit units. By default that of the preset."""
    competitors: Literal["all", "non-target"] | None = None
    """Which classes may count as confused with the true one. By default those of the preset."""
    ema: Literal["batch", "class"] | None = None
    """Average the confusion matrix by batch, as in the paper, or class by class. By default as in the preset."""
    ema_start: Literal["zero", "first"] | None = None
    """Start the average at zero or with the first batch. By default as in the preset."""
    gate_grad: bool | None = None
    """Let the gate of the surrogate pass gradients. By default as in the preset."""
    weighting: Literal["frequency", "none"] | None = None
    """Weight the columns of the confusion matrix by class frequency, or not at all. By default as in the preset."""
    normalize_weights: bool | None = None
    """Divide the class weights by their mean. By default as in the preset."""
    surrogate: Literal["full", "no-gate", "no-softmax", "no-both"] | None = None
    """Form of the soft confusion: full, or one of the ablations. By default that of the preset."""
    mixed: Literal["masked", "soft", "dominant", "clean"] | None = None
    """How labels of mixed images enter the confusion matrix. By default as in the preset."""
    temperature: Positive | None = None
    """Temperature of the softmax inside the surrogate. By default that of the preset."""
    baseline_grad: bool | None = None
    """Let the true logit receive the gradient of the selection; this matters only in the ablations without softmax. By
    default as in the preset."""
    norm: Literal["spectral", "worst"] | None = None
    """What CAR penalises: the spectral norm of the weighted confusion matrix, or a soft maximum of the weighted class
    errors. By default as in the preset."""
    sharpness: float | None = None
    """How close the soft maximum is to the largest class error; 0 is the mean. By default that of the preset."""
    solver: Literal["auto", "iterative", "svd", "fixed"] | None = None
    """Algorithm that finds the spectral norm; fixed is that of accelerators, on any device. By default auto."""


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tuning: TuneConfig = field(default_factory=TuneConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    car: CARConfig = field(default_factory=CARConfig)
    method: str = "ce"
    """Name of the method; `spectail list methods` shows them."""
    options: Options = field(default_factory=LossOptions)
    """Options that belong to the method."""
    transform: str | None = None
    """Name of the image transforms. By default those that are usual for the data set."""
    normalization: Literal["model", "transform"] = "model"
    """Normalise images as the checkpoint was trained (timm models), or as the transform says."""
    probe: bool = False
    """Freeze the backbone, compute its features once, and train the head on them."""
    features: Literal["auto", "raw", "standard", "power", "projected"] | None = None
    """What a probe does to features. raw: nothing; standard: mean 0 and deviation 1 in each dimension; power: signed
    square roots, centred, on one scale; projected: the latter on their 256 leading principal directions. auto chooses
    between standard and projected, with and without weight decay, by the loss on five folds of the training images,
    and sets the learning rate. By default raw for --probe, standard for features:FILE, auto for --preset probe."""
    stage1: Path | None = None
    """Folder of a run whose model replaces the first stage of a method that has several. By default the method
    trains its own."""
    seed: Seed = 0
    """Seed of the weights, the order of the images and their augmentation."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, cuda:N for one GPU of several, or mps."""
    workers: Natural | Literal["auto"] = "auto"
    """Number of processes that decode images which are not held in memory; auto takes the cores that are free, up to
    8."""
    select_on: Literal["last", "val", "test"] = "last"
    """Which epoch to report: the last, the best on validation data, or the best on test data, which is optimistic."""
    rand_augment: str | None = None
    """RandAugment of timm on top of the transforms, such as rand-m9-n2-mstd0.5. By default none."""
    random_erasing: Proportion = 0.0
    """Probability with which a random part of a training image is erased (timm)."""
    test_crops: Literal[1, 5] = 1
    """Average the logits over this number of crops of each image: five are the corners and the centre of the
    image resized to be 24/224 larger, as in LIFT."""
    flip_test: bool = False
    """Average the logits of each image and its mirror image, as some papers do."""
    eval_every: AtLeastOne = 1
    """Number of epochs between evaluations on validation data."""
    eval_train: bool = True
    """Evaluate the training set at the end, for the worst-class training accuracy."""
    checkpoint_every: Natural = 0
    """Number of steps between checkpoints inside an epoch; 0 saves at the end of an epoch only."""
    checkpoint_epochs: AtLeastOne = 1
    """Number of epochs between the checkpoints at the end of an epoch. The last epoch always has one."""
    watch_test: Proportion = 0.0
    """Evaluate this fraction of the test set along with the validation data and log it; the results then say so.
    0 looks at the test set at the end only."""
    keep_checkpoints: AtLeastOne = 2
    """Number of checkpoints to keep, the newest ones."""
    log_gradient: bool = False
    """Log the gradient norm of CAR once an epoch."""
    log_cm_gap: bool = False
    """Log the distance between CAR's history and the confusion of the whole training set once an epoch, and that
    confusion's mean over head, medium and tail classes. With --car.alpha 0 CAR watches and does nothing else."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers of Accelerate to log to, such as tensorboard or wandb. By default none."""
    output: Path = Path("runs/run")
    """Folder of the run. By default one below runs/ that is named after the settings."""


PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "model": {"model": "small-cnn"},
        "optim": {"epochs": 11, "batch_size": 64, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4,
                  "warmup_epochs": 2.0},
    },
    "scratch": {
        "model": {"model": "vit_small_patch16_224"},
        "optim": {"epochs": 200, "lr": 1e-4, "weight_decay": 5e-3},
        "transform": "vit-224-fast",
    },
    "finetune": {
        "model": {"model": "vit_small_patch16_224", "pretrained": True},
        "optim": {"epochs": 100, "lr": 2e-4, "weight_decay": 0.05},
        "transform": "vit-224-fast",
    },
    "finetune-script": {
        "model": {"model": "vit_small_patch16_224", "pretrained": True},
        "optim": {"epochs": 100, "lr": 5e-5, "weight_decay": 0.05, "decay_all": True, "warmup_epochs": 5.0,
                  "warmup_start": 0.01, "min_lr": 1e-6},
        "transform": "vit-224",
        "normalization": "transform",
    },
    "probe": {"probe": True, "features": "auto", "optim": {"epochs": 0, "lr": 1e-3, "weight_decay": 0.0}},
}  # fmt: skip


LONGER = {("scratch", "inat2018"): 300}
"""Epochs of the paper's protocol on some data sets, where they are not the preset's."""


def check_config(config: TrainConfig) -> None:
    optim = config.optim
    config.options.check()
    if config.output.exists() and not config.output.is_dir():
        raise ValueError(f"--output {config.output} is a file; expected a folder, or a path where one can be made.")
    for settings, prefix in ((config, ""), (config.model, ""), (config.tuning, ""), (optim, ""), (config.car, "car.")):
        check_limits(settings, prefix)
    if not (optim.epochs or config.probe):
        raise ValueError("--epochs must be at least 1; got 0. Only --probe can find its length itself.")
    if optim.nesterov and (optim.optimizer != "sgd" or optim.momentum == 0):
        raise ValueError("--nesterov belongs to --optimizer sgd with a --momentum above 0. Leave it out.")
    if not all(0 < share < 1 for share in optim.milestones):
        given = " ".join(f"{share:g}" for share in optim.milestones)
        raise ValueError(
            f"--milestones {given} must be shares of the run between 0 and 1; for epoch 160 of 200 write 0.8."
        )
    _check_tuning(config)
    if optim.ema and optim.swa:
        raise ValueError("--ema and --swa are two averages of the weights; leave one of them out.")
    if config.probe and config.test_crops > 1:
        raise ValueError("--test-crops cuts images, and --probe works on stored features. Leave one of them out.")
    if config.probe and (optim.mixup or optim.cutmix):
        raise ValueError("--mixup and --cutmix mix images, and --probe works on stored features. Leave them out.")
    if config.probe and config.flip_test:
        raise ValueError("--flip-test mirrors images, and --probe works on stored features. Leave one of them out.")
    if optim.precision in ("fp16", "tf32") and not uses_gpu(config):
        raise ValueError(f"--precision {optim.precision} needs a GPU; use --precision bf16 or no on a CPU.")
    if config.hardware.compile and config.probe:
        raise ValueError("--compile is for a backbone that is trained, and --probe trains a head only. Leave it out.")
    if config.hardware.sync_batchnorm and not uses_gpu(config):
        raise ValueError("--sync-batchnorm needs GPUs; leave it out on a CPU.")
    _check_trackers(config.trackers)


def _check_tuning(config: TrainConfig) -> None:
    tuning = config.tuning
    if config.probe and tuning.tune != "full":
        raise ValueError(
            f"--tune {tuning.tune} trains on images, and --probe on features that were stored once. "
            "Leave one of them out."
        )
    if config.probe and tuning.head_init not in (None, "random"):
        raise ValueError(f"--head-init {tuning.head_init} is for training on images; leave it out with --probe.")
    if config.stage1 is not None and tuning.tune not in ("full", "head"):
        raise ValueError(
            f"--stage1 leaves only the head to be trained, and --tune {tuning.tune} would train in the backbone. "
            "Tune the run that --stage1 names, and leave --tune out here."
        )
    if tuning.head_init == "text" and tuning.text_weights is None:
        raise ValueError(
            "--head-init text needs a CLIP checkpoint of open_clip: pass --text-weights ARCHITECTURE:FILE, or "
            "use --head-init means."
        )


def uses_gpu(config: TrainConfig) -> bool:
    return config.device != "cpu" and (config.device != "auto" or has_gpu())


def has_gpu() -> bool:
    """Whether there is a device other than the CPU."""
    accelerator = getattr(torch, "accelerator", torch.cuda)  # since torch 2.6
    return bool(accelerator.is_available())


def _check_trackers(names: tuple[str, ...]) -> None:
    """Accelerate would leave out one that is not installed without a word."""
    from accelerate.tracking import get_available_trackers  # noqa: PLC0415 - slow to import, and seldom needed
    from accelerate.utils import LoggerType  # noqa: PLC0415

    known = [str(kind) for kind in LoggerType if kind != LoggerType.ALL]
    usable = [str(kind) for kind in get_available_trackers()]
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"--trackers {name} is unknown; {nearest(name, known)}")
        if name not in (*usable, "all"):
            package = name.replace("_", "-")
            raise ValueError(f"--trackers {name} is not installed: pip install {package}, or leave it out.")


def check_stages(config: TrainConfig, stages: list[Stage], processes: int) -> None:
    """What depends on the method and on the number of processes."""
    known = [stage.name for stage in stages]
    for name in config.car.stages or ():
        if name not in known:
            raise ValueError(f"--car.stages {name}: {config.method} has the stages {', '.join(known)}.")
    parts = processes * config.optim.accumulation
    for flag, size in [("--batch-size", config.optim.batch_size)] + [
        (f"--{stage.name}-batch-size", stage.optim["batch_size"]) for stage in stages if "batch_size" in stage.optim
    ]:
        if size < 1 or size % parts:
            raise ValueError(
                f"{flag} {size} must be a multiple of {processes} processes times {config.optim.accumulation} "
                "micro-batches."
            )


def check_every_class(method: str, counts: ClassCounts) -> None:
    """Class-balanced batches of validation data need an image of every class."""
    empty = [counts.describe(label) for label, images in enumerate(counts.tolist()) if images == 0]
    if empty:
        named = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise ValueError(
            f"{method} was told to draw class-balanced batches from validation data, which have no image of {named}. "
            "Leave it to draw from the training set, or use data in which every class has two images or more, one of "
            "which is then held out, as with a lower --imbalance."
        )
