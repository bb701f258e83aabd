"""Settings that cannot work are refused before anything is built or written."""

from __future__ import annotations

from ..methods.base import Stage
from .config import TrainConfig


def check_config(config: TrainConfig) -> None:
    optim = config.optim
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
        if not number >= 0:
            raise ValueError(f"--{name} {number} must be 0 or more.")
    if not 0 < optim.lr < float("inf"):
        raise ValueError(f"--lr {optim.lr} must be a positive number.")
    if not 0 <= optim.ema < 1:
        raise ValueError(f"--ema {optim.ema} must lie in [0, 1).")


def check_stages(config: TrainConfig, stages: list[Stage], processes: int) -> None:
    """What depends on the method and on the number of processes."""
    known = [stage.name for stage in stages]
    for name in config.car.stages or ():
        if name not in known:
            raise ValueError(f"--car.stages {name}: {config.method} has the stages {', '.join(known)}.")
    size, parts = config.optim.batch_size, processes * config.optim.accumulation
    if size % parts:
        raise ValueError(
            f"--batch-size {size} must be a multiple of {processes} processes times {config.optim.accumulation} "
            "micro-batches."
        )
