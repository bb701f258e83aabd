"""The folder of a run, file by file, and what its results.json says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save as as_safetensors
from torch import Tensor

from .._utils.files import room_for, whole_file
from ..car import PRESETS
from ..data.manifest import Manifest
from ..methods.registry import find_method
from ..models.adjustment import FILE as ADJUSTMENT
from ..models.adjustment import Adjustment
from .config import TrainConfig
from .config_io import differences, read_yaml, to_dict, write_yaml

if TYPE_CHECKING:
    from .loop import Progress

MAY_DIFFER = {"output", "device", "workers", "trackers", "keep_checkpoints", "checkpoint_every"}
"""Settings that a resumed run may change: they do not change what is computed."""

FILES = (ADJUSTMENT, "config.yaml", "manifest.json", "metrics.jsonl", "best.safetensors", "model.safetensors",
         "tuned.safetensors", "predictions.npz", "results.json")  # fmt: skip

VALIDATION = ("overall", "balanced", "head", "medium", "tail", "worst_test", "bottom_10pct", "geometric_mean", "nll")


class RunFolder:
    """Reads and writes the files of a run, each whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def begin(self, config: TrainConfig, manifest: Manifest, adjustment: Adjustment | None = None) -> None:
        """A new run. A folder that holds another one is left alone."""
        if (self.path / "config.yaml").exists():
            raise ValueError(
                f"{self.path} already holds a run. Pass --resume to continue it, or choose another --output."
            )
        self._tidy()
        if adjustment is not None:
            adjustment.save(self.path / ADJUSTMENT)
        else:  # one that was killed before it had begun may have left its own
            (self.path / ADJUSTMENT).unlink(missing_ok=True)
        manifest.save(self.path / "manifest.json")
        write_yaml(self.path / "config.yaml", config)

    def check_resumable(self, config: TrainConfig) -> bool:
        """Whether there is a run to resume; one with other settings is refused with the difference."""
        path = self.path / "config.yaml"
        if not path.exists():
            return False
        saved = read_yaml(path)
        if config.optim.precision == "auto":  # where the run was begun, it stood for this
            optim = dataclasses.replace(config.optim, precision=saved.optim.precision)
            config = dataclasses.replace(config, optim=optim)
        config = self.with_its_length(config)
        same = {name: getattr(config, name) for name in MAY_DIFFER}
        found = differences(dataclasses.replace(saved, **same), config)
        if found:
            raise ValueError(
                f"{self.path} was started with other settings: {'; '.join(found)}. "
                "Resume with the same ones, or choose another --output."
            )
        return True

    def with_its_length(self, config: TrainConfig) -> TrainConfig:
        """Settings that leave the length to the run, with the one that it has found."""
        if config.optim.epochs:
            return config
        epochs = read_yaml(self.path / "config.yaml").optim.epochs
        return dataclasses.replace(config, optim=dataclasses.replace(config.optim, epochs=epochs))

    def adjustment(self) -> Adjustment | None:
        """What is done to the logits of the run's model, if anything."""
        path = self.path / ADJUSTMENT
        return Adjustment.load(path) if path.exists() else None

    def check_adjustment(self, given: Adjustment | None) -> Adjustment | None:
        """The adjustment of a run that is resumed; another one is refused."""
        saved = self.adjustment()
        if given is not None and given != saved:
            raise ValueError(
                f"{self.path} was started with {'another' if saved else 'no'} adjustment of the logits. "
                "Resume with the same one, or choose another --output."
            )
        return saved

    def require(self, *names: str, called: str | None = None) -> None:
        """Refuse a folder without these files of a run that has ended; ``called`` is how the user named it."""
        missing = [name for name in ("config.yaml", "manifest.json", *names) if not (self.path / name).is_file()]
        if missing:
            what = f"holds no finished run: {missing[0]} is missing" if self.path.is_dir() else "does not exist"
            advice = "Give the folder of a run that has ended; spectail train --resume takes one to its end."
            raise FileNotFoundError(f"{called or self.path} {what}. {advice}")

    def log(self, entry: dict[str, Any]) -> None:
        """One more line, or on a full disk none: half a line would be there for every reader of the file."""
        path = self.path / "metrics.jsonl"
        line = (json.dumps(entry) + "\n").encode()
        with room_for(path), path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
            except OSError:
                file.truncate(before)
                raise

    def lines(self) -> list[str]:
        path = self.path / "metrics.jsonl"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def keep_lines(self, count: int) -> None:
        """Forget what was logged after the checkpoint that a run resumes from."""
        self._tidy()
        kept = self.lines()[:count]
        with whole_file(self.path / "metrics.jsonl") as temporary:
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def save_model(
        self, state: dict[str, Tensor], name: str = "model.safetensors", notes: dict[str, str] | None = None
    ) -> None:
        tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
        with whole_file(self.path / name) as temporary:
            temporary.write_bytes(as_safetensors(tensors, notes))

    def save_predictions(self, arrays: dict[str, NDArray[Any]]) -> None:
        with whole_file(self.path / "predictions.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    def results(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.path / "results.json").read_text(encoding="utf-8"))
            return content
        except FileNotFoundError:
            return None

    def _tidy(self) -> None:
        """Remove what a killed process was writing."""
        for name in FILES:
            for temporary in self.path.glob(f".{name}.*"):
                temporary.unlink(missing_ok=True)


def make_results(
    config: TrainConfig,
    manifest: Manifest,
    progress: Progress,
    disclosures: dict[str, str],
    test: dict[str, Any],
    others: dict[str, dict[str, Any]],
    adjustment: Adjustment | None = None,
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
        "adjustment": adjustment.facts() if adjustment is not None else None,
        "disclosures": disclosures | _at_test(config),
        "dataset": manifest.dataset,
        "imbalance": manifest.rule.get("imbalance", manifest.statistics["imbalance_factor"]),
        "identity": manifest.identity,
        "model": config.model.model,
        "probe": config.probe,
        "tune": config.tuning.tune,
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


def _at_test(config: TrainConfig) -> dict[str, str]:
    flip = {"flip_test": "logits averaged over mirror images"} if config.flip_test else {}
    return flip | ({"test_crops": f"logits averaged over {config.test_crops} crops"} if config.test_crops > 1 else {})


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
