"""results.json: what a run is, and what it reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..car import PRESETS
from ..data.manifest import Manifest
from ..methods.registry import find_method
from .config import TrainConfig
from .config_io import to_dict

if TYPE_CHECKING:
    from .loop import Progress

VALIDATION = ("overall", "balanced", "head", "medium", "tail", "worst_test", "bottom_10pct", "geometric_mean", "nll")


def make_results(
    config: TrainConfig,
    manifest: Manifest,
    progress: Progress,
    disclosures: dict[str, str],
    test: dict[str, Any],
    others: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Accuracies in percent; None where there is nothing to measure.

    ``others`` has the figures of the training set and of validation data, where they were measured.
    """
    trained, val = others.get("train"), others.get("val")
    worst_train = trained["worst_test"] if trained is not None else None
    return {
        "method": config.method,
        "options": to_dict(config.options),
        "car": _car(config),
        "phases": progress.phases,
        "stage1": str(config.stage1) if config.stage1 is not None else None,
        "disclosures": disclosures | ({"flip_test": "logits averaged over mirror images"} if config.flip_test else {}),
        "dataset": manifest.dataset,
        "imbalance": manifest.rule.get("imbalance", manifest.statistics["imbalance_factor"]),
        "identity": manifest.identity,
        "model": config.model.model,
        "probe": config.probe,
        "seed": config.seed,
        "epochs": config.optim.epochs,
        "selection": _selection(config, progress),
        **test,
        "worst_train": worst_train,
        "worst_train_class": trained["worst_test_class"] if trained is not None else None,
        "worst_ratio": test["worst_test"] / worst_train if worst_train else None,
        "train_overall": trained["overall"] if trained is not None else None,
        "val": {key: val[key] for key in VALIDATION} if val is not None else None,
        "seconds": round(progress.seconds, 2),
    }


def _car(config: TrainConfig) -> dict[str, Any] | None:
    if not (config.car.enabled or find_method(config.method).car):
        return None
    settings = {key: value for key, value in to_dict(config.car).items() if value is not None and key != "enabled"}
    return {"alpha": PRESETS[config.car.preset].alpha} | settings


def _selection(config: TrainConfig, progress: Progress) -> str:
    if config.select_on == "last":
        return "last epoch"
    where = "validation data" if config.select_on == "val" else "TEST data (flatters the result)"
    return f"best epoch on {where}: {progress.best_epoch}"
