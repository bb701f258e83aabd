"""Checkpoints: a folder each, whole or absent, with digests, the last few kept."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from .._utils.files import file_digest, room_for, write_json


def save(
    folder: Path, number: int, state: dict[str, Any], own: dict[str, Any], accelerator: Accelerator, keep: int
) -> Path:
    """Write ``state``, and every rank's ``own`` and random state, as ``folder/step-number``; keep the last few."""
    path = folder / f"step-{number:08d}"
    temporary = folder / f".{path.name}"
    try:
        with room_for(path):
            _write(temporary, path, state, own, accelerator)
    except Exception:  # the last checkpoints stay as they are
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if accelerator.is_main_process:
        for newer in folder.glob("step-*"):  # left from before, and passed over as damaged
            if newer.name > path.name:
                shutil.rmtree(newer, ignore_errors=True)
        for old in sorted(folder.glob("step-*"))[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    accelerator.wait_for_everyone()
    return path


def _write(temporary: Path, path: Path, state: dict[str, Any], own: dict[str, Any], accelerator: Accelerator) -> None:
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write_tensors(state, temporary / "state.pt")
    accelerator.wait_for_everyone()
    write_tensors(own | {"random": random_state()}, temporary / f"rank-{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        digests = {file.name: file_digest(file) for file in sorted(temporary.iterdir())}
        write_json(temporary / "digests.json", digests)
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)


def write_tensors(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # a file of Python's, or a full disk would come as an error without a number
        torch.save(content, file)


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint. Damaged ones are passed over, and said."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            digests = json.loads((path / "digests.json").read_text())
            damaged = [name for name, digest in digests.items() if file_digest(path / name) != digest]
        except (OSError, ValueError) as error:
            damaged = [str(error)]
        if not damaged:
            return path
        warnings.warn(f"checkpoint {path.name} is damaged ({damaged[0]}); the one before it is used.", stacklevel=2)
    return None


def load(path: Path, rank: int) -> dict[str, Any]:
    """The state, with what this rank had of its own. Only tensors and plain values are read: no code runs."""
    state: dict[str, Any] = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    own = path / f"rank-{rank}.pt"
    if own.is_file():
        return state | dict(torch.load(own, map_location="cpu", weights_only=True))
    return state | {"sums": {}, "random": random_state()}  # a rank that the run did not have before


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
