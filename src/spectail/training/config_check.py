"""Settings that cannot work are refused before anything is built or written."""

from __future__ import annotations

import difflib

import torch
from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType

from ..counts import ClassCounts
from ..methods.base import Stage
from .config import OptimConfig, TrainConfig


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
