"""TrainConfig: a run's settings, complete. Presets, YAML files and flags all end here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..data.config import DataConfig
from ..methods.base import Options
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
