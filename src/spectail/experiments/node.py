"""What a node of a Ray cluster does with a run."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

from .._utils.errors import one_line
from .task import Outcome, Task


def train_on_node(pickled: bytes, mark: str) -> tuple[Outcome, dict[str, bytes] | None]:
    """Train in the folder of the plan where the node shares it with the driver, else in one whose files go back."""
    try:
        task: Task = pickle.loads(pickled)
    except (ImportError, AttributeError) as error:
        return Outcome("failed", error=f"a node cannot read the run: {one_line(error)}"), None
    if Path(mark).exists():
        return task.carry_out(), None
    with tempfile.TemporaryDirectory(prefix="spectail-") as scratch:
        outcome = replace(task, config=replace(task.config, output=Path(scratch, "run"))).carry_out()
        if outcome.folder is None:
            return outcome, None
        own = Path(outcome.folder)
        there = [path for path in own.rglob("*") if path.is_file() and not path.name.startswith(".")]
        files = {path.relative_to(own).as_posix(): path.read_bytes() for path in there
                 if "checkpoints" not in path.relative_to(own).parts}  # fmt: skip
        return outcome, files
