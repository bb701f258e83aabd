"""--stage1: the model of an existing run in place of a method's own first stage."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ..data.manifest import Manifest
from ..methods.base import Stage
from ..models.weights import load_weights, read_weights
from .build import Pieces, head_kind, make_method
from .config import TrainConfig
from .run_folder import RunFolder


def load_stage1(config: TrainConfig, pieces: Pieces, following: Stage) -> str:
    """Load the run's weights into the model and say what was loaded. A run that does not fit is refused."""
    run = config.stage1
    assert run is not None
    RunFolder(run).require("model.safetensors", called=f"--stage1 {run}")
    there = RunFolder(run).config()
    theirs, ours = Manifest.load(run / "manifest.json"), pieces.data.manifest
    if theirs.identity != ours.identity:
        raise ValueError(
            f"--stage1 {run} was trained on {theirs.dataset} with identity {theirs.identity}, this run uses "
            f"{ours.dataset} with {ours.identity}. Use the same data and cut, or leave --stage1 out."
        )
    if there.model.model != config.model.model:
        raise ValueError(
            f"--stage1 {run} is a {there.model.model}, this run asks for a {config.model.model}. "
            f"Pass --model {there.model.model}."
        )
    if there.tuning.tune == "adaptformer":
        raise ValueError(
            f"--stage1 {run} has the branches of AdaptFormer in its backbone, which this run's network lacks. "
            "Train the first stage with another --tune, such as lora."
        )
    if config.probe and not there.probe:
        raise ValueError(
            f"--stage1 {run} trained its backbone, so frozen features from elsewhere do not fit its head. "
            "Leave --probe out."
        )
    has = head_kind(there, make_method(there, pieces.data.counts))
    needs = head_kind(config, pieces.method)
    if not following.fresh_head and has != needs:
        raise ValueError(
            f"--stage1 {run} has a {has} head, {config.method} goes on with a {needs} one. "
            "Train the first stage with the same --head."
        )
    if any(".rebalancing." in name for name in read_weights(run)):
        raise ValueError(
            f"--stage1 {run} is a run of {there.method}, whose network has two branches; {config.method} goes on with "
            "a network of one. Give a run of another method, such as ce."
        )
    if pieces.backbone is not None:
        _same_backbone(pieces.backbone, run)
    report = load_weights(pieces.model, run)
    lost = [name for name in (*report.missing, *report.reshaped) if name.startswith("backbone.")]
    if not following.fresh_head and "head.weight" not in report.loaded:
        lost.append("head.weight")
    if lost:
        raise ValueError(
            f"--stage1 {run} does not fit: {lost[0]} is missing or has another shape. "
            "Train it with the same --model, --img-size and --head."
        )
    return str(report)


def _same_backbone(backbone: nn.Module, run: Path) -> None:
    """In probe mode a head belongs to the features it was trained on."""
    saved = {name.removeprefix("backbone."): value for name, value in read_weights(run).items()}
    for name, value in backbone.state_dict().items():
        if name not in saved or not torch.equal(saved[name].cpu(), value.cpu()):
            raise ValueError(
                f"--stage1 {run} was trained on features of another backbone ({name} differs). "
                "Use the same --init, --model, --features and --seed."
            )
