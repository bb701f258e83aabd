"""--stage1: the model of an existing run in place of a method's own first stage."""

from __future__ import annotations

from ..data.manifest import Manifest
from ..methods.base import Stage
from ..models.weights import load_weights
from .config import TrainConfig
from .config_io import read_yaml
from .setup import Pieces


def load_stage1(config: TrainConfig, pieces: Pieces, following: Stage) -> str:
    """Load the run's weights into the model and say what was loaded. A run that does not fit is refused."""
    run = config.stage1
    assert run is not None
    if not (run / "model.safetensors").is_file():
        what = "holds no finished run: model.safetensors is missing" if run.is_dir() else "does not exist"
        raise FileNotFoundError(f"--stage1 {run} {what}. Give the folder of a run that has ended.")
    there = read_yaml(run / "config.yaml")
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
    if config.probe and not there.probe:
        raise ValueError(
            f"--stage1 {run} trained its backbone, so frozen features from elsewhere do not fit its head. "
            "Leave --probe out."
        )
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
