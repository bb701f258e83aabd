"""TrainConfig: a run's settings, complete. Presets, YAML files and flags all end here."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ..counts import ClassCounts
from ..data.config import DataConfig
from ..methods.base import Options, Stage
from ..methods.deferred import LossOptions
from ..models.build import ModelConfig


@dataclass(frozen=True)
class OptimConfig:
    """How the weights move."""

    epochs: int = 20
    batch_size: int = 128
    """Images of one optimiser step, over all processes and micro-batches."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    """Decoupled under adamw, where biases and norms are spared; coupled, on everything, under sgd."""
    momentum: float = 0.9
    """Of sgd."""
    nesterov: bool = False
    """Nesterov's form of that momentum."""
    schedule: Literal["cosine", "cosine-epochs", "step", "constant"] = "cosine"
    """cosine-epochs changes the rate once an epoch and is one epoch ahead, as in some released code."""
    warmup_epochs: float = 0.0
    """Linear rise of the learning rate at the start."""
    warmup_start: float = 0.0
    """Share of the rate at which that rise begins."""
    min_lr: float = 0.0
    """Where cosine ends."""
    milestones: tuple[float, ...] = (0.8, 0.9)
    """Shares of training after which step multiplies the rate by decay_factor."""
    decay_factor: float = 0.01
    clip: float = 0.0
    """Largest norm of the gradient; 0 for no limit."""
    accumulation: int = 1
    """Micro-batches of one step."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision."""
    ema: float = 0.0
    """Decay of an average of the weights, which is then evaluated; 0 for none."""


@dataclass(frozen=True)
class CARConfig:
    """The regulariser. Options left at None have the value of the preset."""

    enabled: bool = False
    preset: Literal["paper", "classwise", "balanced", "reference"] = "paper"
    """As in the paper; averaged class by class; the same for Balanced Softmax (car-balanced); the authors' script."""
    alpha: float | None = None
    """Weight; 0.5, 10, 1 and 0.3 in the four presets."""
    start_epoch: int = 0
    """Epochs without it; its history fills meanwhile."""
    warmup_epochs: float = 0.0
    """Epochs over which alpha then rises."""
    stages: tuple[str, ...] | None = None
    """Stages in which it runs; None for all that are trained on labels."""
    beta: float | None = None
    r0: float | None = None
    gamma: float | None = None
    competitors: Literal["all", "non-target"] | None = None
    ema: Literal["batch", "class"] | None = None
    ema_start: Literal["zero", "first"] | None = None
    gate_grad: bool | None = None
    weighting: Literal["frequency", "none"] | None = None
    normalize_weights: bool | None = None
    surrogate: Literal["full", "no-gate", "no-softmax", "no-both"] | None = None
    mixed: Literal["masked", "soft", "dominant", "clean"] | None = None
    temperature: float | None = None
    """The logits are divided by it in the softmax of the surrogate."""
    baseline_grad: bool | None = None
    """Whether the true logit learns from the selection; matters in the ablations without softmax only."""
    solver: Literal["auto", "iterative", "svd", "fixed"] | None = None
    """How the spectral norm is found; fixed is the path of an accelerator on any device."""


@dataclass(frozen=True)
class TrainConfig:
    """One run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    car: CARConfig = field(default_factory=CARConfig)
    method: str = "ce"
    """A name from `spectail list methods`."""
    options: Options = field(default_factory=LossOptions)
    """The method's own options."""
    transform: str | None = None
    """Transform preset. Default: the data set's."""
    normalization: Literal["model", "transform"] = "model"
    """Mean and deviation: what the checkpoint was trained with (timm models), or the transform's own."""
    probe: bool = False
    """Freeze the backbone, compute its features once, train the head on them."""
    stage1: Path | None = None
    """Run whose model a method with several stages starts from, in place of its own first stage."""
    seed: int = 0
    device: str = "auto"
    workers: int = 2
    """Processes that decode images which are not in memory."""
    select_on: Literal["last", "val", "test"] = "last"
    """Which epoch's model is reported: the last, the best on validation data, or (flattering) the best on test data."""
    flip_test: bool = False
    """Average the logits of an image and of its mirror image, as some papers do."""
    eval_every: int = 1
    """Epochs between evaluations on validation data."""
    eval_train: bool = True
    """Evaluate the training set at the end, for worst-class training accuracy."""
    checkpoint_every: int = 0
    """Steps between checkpoints inside an epoch; 0 for the end of an epoch only."""
    keep_checkpoints: int = 2
    log_gradient: bool = False
    """Log the gradient norm of the regulariser, once an epoch."""
    log_cm_gap: bool = False
    """Log the distance between CAR's history and the confusion of the whole training set, once an epoch."""
    trackers: tuple[str, ...] = ()
    """Accelerate's trackers, such as tensorboard or wandb."""
    output: Path = Path("runs/run")
    """Folder of the run."""


PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "model": {"model": "small-cnn"},
        "optim": {
            "epochs": 11,
            "batch_size": 64,
            "optimizer": "sgd",
            "lr": 0.1,
            "weight_decay": 5e-4,
            "warmup_epochs": 2.0,
        },
    },
    "scratch": {
        "model": {"model": "vit_small_patch16_224"},
        "optim": {"epochs": 200, "lr": 1e-4, "weight_decay": 5e-3},
    },
    "finetune": {
        "model": {"model": "vit_small_patch16_224", "pretrained": True},
        "optim": {"epochs": 100, "lr": 2e-4, "weight_decay": 0.05},
        "transform": "vit-224",
    },
    "finetune-script": {
        "model": {"model": "vit_small_patch16_224", "pretrained": True},
        "optim": {"epochs": 100, "lr": 5e-5, "weight_decay": 0.05, "warmup_epochs": 5.0, "min_lr": 1e-6},
        "transform": "vit-224",
    },
    "probe": {"probe": True, "optim": {"epochs": 12, "lr": 1e-3, "weight_decay": 0.0}},
}


def check_config(config: TrainConfig) -> None:
    optim = config.optim
    config.options.check()
    if config.output.exists() and not config.output.is_dir():
        raise ValueError(f"--output {config.output} is a file; expected a folder, or a path where one can be made.")
    least = {"epochs": optim.epochs, "accumulation": optim.accumulation, "eval-every": config.eval_every,
             "keep-checkpoints": config.keep_checkpoints, "batch-size": optim.batch_size}  # fmt: skip
    for name, value in least.items():
        if value < 1:
            raise ValueError(f"--{name} {value} must be 1 or more.")
    positive = {"workers": config.workers, "checkpoint-every": config.checkpoint_every, "clip": optim.clip,
                "warmup-epochs": optim.warmup_epochs, "weight-decay": optim.weight_decay, "min-lr": optim.min_lr,
                "car.start-epoch": config.car.start_epoch, "car.warmup-epochs": config.car.warmup_epochs}  # fmt: skip
    for name, number in positive.items():
        if not 0 <= number < float("inf"):
            raise ValueError(f"--{name} {number} must be 0 or more, and finite.")
    if not 0 < optim.lr < float("inf"):
        raise ValueError(f"--lr {optim.lr} must be a positive number.")
    _check_schedule(optim)
    if config.probe and config.flip_test:
        raise ValueError("--flip-test mirrors images, and --probe works on stored features. Leave one of them out.")
    if not 0 <= optim.ema < 1:
        raise ValueError(f"--ema {optim.ema} must lie in [0, 1).")
    if optim.precision == "fp16" and (config.device == "cpu" or (config.device == "auto" and not has_gpu())):
        raise ValueError("--precision fp16 needs a GPU; use --precision bf16 or no on a CPU.")
    _check_trackers(config.trackers)


def _check_schedule(optim: OptimConfig) -> None:
    if not 0 <= optim.momentum < 1:
        raise ValueError(f"--momentum {optim.momentum} must lie in [0, 1).")
    if optim.nesterov and (optim.optimizer != "sgd" or optim.momentum == 0):
        raise ValueError("--nesterov belongs to --optimizer sgd with a --momentum above 0. Leave it out.")
    if not all(0 < share < 1 for share in optim.milestones):
        given = " ".join(f"{share:g}" for share in optim.milestones)
        raise ValueError(
            f"--milestones {given} must be shares of the run between 0 and 1; for epoch 160 of 200 write 0.8."
        )
    if not 0 < optim.decay_factor <= 1:
        raise ValueError(f"--decay-factor {optim.decay_factor} must lie in (0, 1].")
    if not 0 <= optim.warmup_start <= 1:
        raise ValueError(f"--warmup-start {optim.warmup_start} must lie in [0, 1], as a share of --lr.")


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
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}."
            raise ValueError(f"--trackers {name} is unknown; {hint}")
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
