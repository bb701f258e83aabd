"""The folder of a run, file by file, and what its results.json says."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save as as_safetensors
from torch import Tensor

from .._utils.digests import NAME as DIGESTS
from .._utils.digests import Damaged, read_digests, text_digest, verify, write_digests
from .._utils.files import file_digest, json_text, room_for, whole_file, write_json
from .._utils.owner import Owner
from ..car import PRESETS
from ..data.manifest import Manifest
from ..methods.registry import find_method
from ..models.adjustment import FILE as ADJUSTMENT
from ..models.adjustment import Adjustment
from .config import TrainConfig
from .config_io import differences, raw_yaml, read_yaml, to_dict, yaml_text
from .progress import Progress

MAY_DIFFER = {"output", "device", "workers", "trackers", "keep_checkpoints", "checkpoint_every"}
"""Settings that a resumed run may change: they do not change what is computed."""

CHOICES = "choices.json"
"""What the run has chosen before it began, and what it tried."""
FILES = (ADJUSTMENT, CHOICES, "config.yaml", "manifest.json", "metrics.jsonl", "best.safetensors", "model.safetensors",
         "tuned.safetensors", "predictions.npz", "results.json", DIGESTS)  # fmt: skip
"""What a run writes, beside its checkpoints."""
BEGUN = (ADJUSTMENT, CHOICES, "config.yaml", "manifest.json")
"""What is written before anything is trained."""
BESIDE = {"networks", ".fit.lock", ".fit.owner", ".run.lock", ".run.owner"}
"""What may be in a folder before a run begins there: what `spectail fit` and the owner of the folder put there."""

VALIDATION = ("overall", "balanced", "head", "medium", "tail", "worst_test", "bottom_10pct", "bottom_20pct",
              "geometric_mean", "nll", "line")  # fmt: skip


class RunFolder:
    """Reads and writes the files of a run, each whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @contextmanager
    def owned(self) -> Iterator[None]:
        """While the block runs nobody else may write here; a process that dies gives it up."""
        owner = Owner(self.path / "run")
        self.path.mkdir(parents=True, exist_ok=True)
        other = owner.take()
        if other is not None:
            raise ValueError(
                f"{self.path} is used by another process ({other}). Wait until it has ended, or choose another "
                "--output."
            )
        for name in FILES:  # what a killed process was writing: it owns the folder no more
            for temporary in self.path.glob(f".{name}.*"):
                temporary.unlink(missing_ok=True)
        try:
            yield
        finally:
            owner.release()
            if [entry.name for entry in self.path.iterdir()] == [".run.lock"]:  # nothing was begun
                shutil.rmtree(self.path, ignore_errors=True)

    def check_free(self) -> None:
        """Refuse a folder with anything in it that a new run could lose or mistake for its own."""
        if (self.path / "config.yaml").exists():
            raise ValueError(
                f"{self.path} already holds a run. Pass --resume to continue it, --force to move it aside, or choose "
                "another --output."
            )
        left = set(BEGUN) | {DIGESTS} if (self.path / ".run.lock").exists() else set()  # killed while it began
        for entry in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            temporary = any(entry.name.startswith(f".{name}.") for name in FILES)
            if entry.name not in BESIDE | left and not temporary:
                raise ValueError(
                    f"{self.path} holds {entry.name!r} and no config.yaml, so that it is no folder of a run. Choose "
                    "another --output, or pass --force to move it aside."
                )

    def move_aside(self) -> Path | None:
        """Give the folder another name, so that a new run can begin; None if there is nothing to move."""
        if not self.path.is_dir() or not any(self.path.iterdir()):
            return None
        other = Owner(self.path / "run").look()
        if other is not None:
            raise ValueError(f"{self.path} is used by another process ({other}). Wait until it has ended.")
        home = self.path.resolve()
        names = (home.with_name(f"{home.name}-before-{number}") for number in count(1))
        return home.rename(next(path for path in names if not path.exists()))

    def begin(
        self,
        config: TrainConfig,
        manifest: Manifest,
        adjustment: Adjustment | None = None,
        choices: dict[str, Any] | None = None,
    ) -> None:
        """A new run. A folder that holds anything else is left alone."""
        self.check_free()
        for name in (ADJUSTMENT, CHOICES):  # one that was killed before it had begun may have left its own
            (self.path / name).unlink(missing_ok=True)
        if adjustment is not None:
            adjustment.save(self.path / ADJUSTMENT)
        if choices:
            write_json(self.path / CHOICES, choices)
        manifest.save(self.path / "manifest.json")
        text = yaml_text(config)
        self._seal(BEGUN, **{"config.yaml": text_digest(text)})
        with whole_file(self.path / "config.yaml") as temporary:
            temporary.write_text(text, encoding="utf-8")

    def reopen(self, lines: list[str]) -> None:
        """Go back to a checkpoint, which has all that was logged until then."""
        self._seal(BEGUN)
        with whole_file(self.path / "metrics.jsonl") as temporary:
            temporary.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def end(self, results: dict[str, Any]) -> None:
        """Write the results, which say that all is there."""
        text = json_text(results)
        self._seal(FILES, **{"results.json": text_digest(text)})
        with whole_file(self.path / "results.json") as temporary:
            temporary.write_bytes(text.encode())

    def _seal(self, names: Sequence[str], **known: str) -> None:
        """Write the digests of the files that are there, and of one that will be written next."""
        own = [name for name in names if name not in (DIGESTS, *known) and (self.path / name).is_file()]
        write_digests(self.path, known | {name: file_digest(self.path / name) for name in own})

    def rewrite_config(self, config: TrainConfig) -> None:
        """The same run with settings that change nothing, such as its folder."""
        known = read_digests(self.path)
        with whole_file(self.path / "config.yaml") as temporary:
            temporary.write_text(yaml_text(config), encoding="utf-8")
        if known is not None:
            write_digests(self.path, known["files"] | {"config.yaml": file_digest(self.path / "config.yaml")})

    def identity(self) -> str:
        """A hash of what the run computes: its settings, as they were written, and its data."""
        written = raw_yaml(self.path / "config.yaml")
        settings = {name: value for name, value in written.items() if name not in MAY_DIFFER}
        data = Manifest.load(self.path / "manifest.json").identity
        return text_digest(json.dumps([settings, data], sort_keys=True, default=str))

    def config(self) -> TrainConfig:
        """The settings of the run, which its file has in full."""
        path = self.path / "config.yaml"
        if "method" not in raw_yaml(path):
            raise Damaged(f"{path} is damaged: it has no settings of a run. Put a copy of the original there.")
        return read_yaml(path)

    def check_resumable(self, config: TrainConfig) -> bool:
        """Whether there is a run to resume; one with other settings is refused with the difference."""
        if not (self.path / "config.yaml").exists():
            return False
        saved = self.config()
        if config.optim.precision == "auto":  # where the run was begun, it stood for this
            optim = dataclasses.replace(config.optim, precision=saved.optim.precision)
            config = dataclasses.replace(config, optim=optim)
        config = self.with_what_it_found(config)
        same = {name: getattr(config, name) for name in MAY_DIFFER}
        found = differences(dataclasses.replace(saved, **same), config)
        if found:
            raise ValueError(
                f"{self.path} was started with other settings: {'; '.join(found)}. "
                "Resume with the same ones, or choose another --output."
            )
        return True

    def with_what_it_found(self, config: TrainConfig) -> TrainConfig:
        """Settings that leave the length, or features, rate and decay, to the run, with what it has found."""
        saved = self.config()
        if not config.optim.epochs:
            config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, epochs=saved.optim.epochs))
        if config.features == "auto":
            optim = dataclasses.replace(config.optim, lr=saved.optim.lr, weight_decay=saved.optim.weight_decay)
            config = dataclasses.replace(config, features=saved.features, optim=optim)
        return config

    def choices(self) -> dict[str, Any]:
        """What the run has chosen before it began; nothing where its settings said everything."""
        path = self.path / CHOICES
        if not path.exists():
            return {}
        self.check_whole(CHOICES)
        return dict(json.loads(path.read_text(encoding="utf-8")))

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
            what = "is a file, not the folder of a run" if self.path.is_file() else what
            advice = "Give the folder of a run that has ended; spectail train --resume takes one to its end."
            if not self.path.exists():
                advice = f"Give the folder of a run that has ended{self._alike()}"
            raise FileNotFoundError(f"{called or self.path} {what}. {advice}")
        self.check_whole("config.yaml", "manifest.json", *names)

    def _alike(self) -> str:
        """A folder beside this one whose name was meant, perhaps; otherwise a full stop."""
        home = self.path.parent
        beside = [one.name for one in home.iterdir() if (one / "config.yaml").is_file()] if home.is_dir() else []
        close = get_close_matches(self.path.name, beside, 1)
        return f"; did you mean {home / close[0]}?" if close else "."

    def check_whole(self, *names: str) -> None:
        """Refuse files that are not as the run wrote them."""
        known = read_digests(self.path)
        if known is None:
            warnings.warn(
                f"{self.path} has no digests, as runs of earlier versions: damage would go unnoticed.", stacklevel=3
            )
            return
        listed = known["files"].keys()
        odd = next(iter([*(listed - set(FILES)), *(set(names) - listed)]), None)
        if odd is not None:
            raise Damaged(f"{self.path / DIGESTS} is damaged, as to {odd!r}. Put a copy of the original there.")
        for name in names:
            verify(self.path / name)

    def log(self, entry: dict[str, Any]) -> None:
        """One more line, or on a full disk none: half a line would be there for every reader of the file."""
        path = self.path / "metrics.jsonl"
        line = (json.dumps(entry) + "\n").encode()
        with room_for(path), open(path, "ab", buffering=0, opener=_no_link) as file:
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
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []

    def curves(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one per epoch."""
        verify(self.path / "metrics.jsonl")
        try:
            rows = [json.loads(line) for line in self.lines()]
        except (ValueError, RecursionError):
            rows = [None]
        if not all(isinstance(row, dict) for row in rows):
            raise Damaged(f"{self.path / 'metrics.jsonl'} is damaged: a line is no JSON object. Run it again.")
        return rows

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
        """What results.json says; None if the run has not ended."""
        path = self.path / "results.json"
        if not path.exists():
            return None
        self.check_whole("results.json")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or not isinstance(content.get("method"), str):
            raise Damaged(f"{path} is damaged: it is not what a run writes. Delete it, and --resume makes it again.")
        return content


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


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
        "steps": progress.steps,
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
