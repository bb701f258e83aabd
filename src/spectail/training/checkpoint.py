"""Checkpoints: a folder each, whole or absent, with digests, the last few kept."""

from __future__ import annotations

import random
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from .._utils.digests import read_digests, verify, write_digests
from .._utils.errors import first_line, is_lack_of_memory
from .._utils.files import file_digest, room_for, sync
from ..models.weights import load_tensors

PARTS = {"learner", "progress", "optimizer"}
"""Some of what every checkpoint has."""


def save(
    folder: Path, number: int, state: dict[str, Any], own: dict[str, Any], accelerator: Accelerator, keep: int, run: str
) -> Path:
    """Write ``state``, and every rank's ``own`` and random state, as ``folder/step-number``; keep the last few.

    ``run`` is the hash of the run that it belongs to: its settings and its data.
    """
    path = folder / f"step-{number:08d}"
    temporary = folder / f".{path.name}"
    try:
        with room_for(path):
            _write(temporary, path, state, own, accelerator, run)
    except Exception:  # the last checkpoints stay as they are
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if accelerator.is_main_process:
        kept = [other for other in written(folder) if other.name <= path.name][-keep:]
        for other in written(folder):  # old, or left from before and passed over as damaged
            if other not in kept:
                shutil.rmtree(other, ignore_errors=True)
        for half in folder.glob(".step-*"):  # of a process that was killed
            shutil.rmtree(half, ignore_errors=True)
    accelerator.wait_for_everyone()
    return path


def written(folder: Path) -> list[Path]:
    """All checkpoints in a folder, oldest first. What has another name is not ours."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def _write(
    temporary: Path, path: Path, state: dict[str, Any], own: dict[str, Any], accelerator: Accelerator, run: str
) -> None:
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write_tensors(state, temporary / "state.pt")
    accelerator.wait_for_everyone()
    write_tensors(own | {"random": random_state()}, temporary / f"rank-{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        write_digests(temporary, {file.name: file_digest(file) for file in sorted(temporary.iterdir())}, run=run)
        shutil.rmtree(path, ignore_errors=True)
        if path.is_file() or path.is_symlink():
            path.unlink()
        temporary.rename(path)
        sync(path.parent)


def write_tensors(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # a file of Python's, or a full disk would come as an error without a number
        torch.save(content, file)
    sync(path)


def newest(folder: Path, run: str) -> Path | None:
    """The newest whole checkpoint of a run. Damaged ones, and those of other runs, are passed over, and said."""
    for path in reversed(written(folder)):
        why = _fault(path, run)
        if why is None:
            return path
        warnings.warn(f"checkpoint {path.name} is {why}; it is passed over.", stacklevel=2)
    return None


def _fault(path: Path, run: str) -> str | None:
    """Why a checkpoint cannot be used; None if it can."""
    try:
        known = read_digests(path)
        if known is None or "state.pt" not in known["files"]:
            return "damaged (digests.json is missing or does not name state.pt)"
        for name in known["files"]:
            if not (path / name).is_file():
                return f"damaged ({name} is missing)"
            verify(path / name)
    except (OSError, ValueError) as error:
        return f"damaged ({first_line(error)})"
    if "run" not in known:
        warnings.warn(
            f"checkpoint {path.name} does not say which run it is of, as those of earlier versions.", stacklevel=3
        )
    return None if known.get("run", run) == run else "of a run with other settings or data"


def load(path: Path, rank: int) -> dict[str, Any]:
    """The state, with what this rank had of its own. Only tensors and plain values are read: no code runs."""
    own = path / f"rank-{rank}.pt"
    try:
        state: dict[str, Any] = dict(load_tensors(path / "state.pt"))
        if not state.keys() >= PARTS:
            raise ValueError(f"it has no {', '.join(sorted(PARTS - state.keys()))}")
        if own.is_file():
            return state | dict(load_tensors(own))
    except Exception as error:  # whatever a stranger's file makes the reader say
        if is_lack_of_memory(error):
            raise
        raise does_not_fit(path, error) from None
    return state | {"sums": {}, "random": random_state()}  # a rank that the run did not have before


@contextmanager
def fitting(path: Path | None) -> Iterator[None]:
    """Say of a checkpoint that what it holds is not what a run needs; of None nothing is said."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        if path is None or is_lack_of_memory(error):
            raise
        raise does_not_fit(path, error) from error


def does_not_fit(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is no checkpoint of this run ({first_line(error)}). Delete it and --resume again.")


def random_state() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(place), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), place, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
