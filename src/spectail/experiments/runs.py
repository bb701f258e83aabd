"""A run of a cell: what it is called in the store, and how it becomes the configuration of a training run."""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .cells import Cell, merged
from .scales import Scale, Sized

if TYPE_CHECKING:
    from ..training.config import TrainConfig

PACKAGE = str(__package__).partition(".")[0]
BESIDE = (
    *("__init__", "__main__", "car_reference", "cli", "diagnosis", "experiments"),
    *("integrations", "report", "testing"),
)
"""The rooms whose code cannot change a result. All others count, so that a new one is never forgotten."""


@dataclass(frozen=True)
class Run:
    """One seed of a cell at a scale."""

    cell: Cell
    scale: Scale
    sized: Sized
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """Where data are held out, every seed holds out others: a choice must not hang on one draw of rare classes."""
        own = merged(self.sized.own, {"seed": self.seed})
        if own.get("data", {}).get("val_fraction"):
            own = merged(own, {"data": {"val_seed": self.seed}})
        return {"base": self.sized.base, "own": own}

    @cached_property
    def name(self) -> str:
        """Hash of everything that decides the result but data and code: the same on every machine.

        A file of weights counts by its content.
        """
        settings = json.loads(json.dumps(self.settings))
        init = settings["base"].get("model", {}).get("init")
        if init is not None:
            settings["base"]["model"]["init"] = content_hash(Path(init))
        return hash_of(settings)

    def config(self, output: Path, **changes: Any) -> TrainConfig:
        """The complete configuration; ``changes`` are settings that do not change the result."""
        from ..training.config_io import from_dict, preset  # noqa: PLC0415 - planning does without torch

        base = dict(self.sized.base)
        start = preset(base.pop("preset")) if "preset" in base else None
        layered = from_dict(self.settings["own"], from_dict(base, start))
        return from_dict({"output": str(output)} | changes, layered)


def key_of(name: str, data: str, code: str) -> str:
    """Under what the index keeps a run: settings, images and code."""
    return hash_of([name, data, code])


@cache
def content_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise ValueError(f"the weights {path} cannot be read ({error.strerror}).") from None


@cache
def code_version() -> str:
    """Version and a hash of the code that computes results.

    Comments, docstrings, imports and the names of files do not count.

    Example:
        >>> code_version().startswith(__version__)
        True
    """
    return f"{__version__}+{hash_of_code(Path(str(files(PACKAGE))))[:8]}"


def hash_of_code(root: Path) -> str:
    """Hash of what the modules below ``root`` compute, but for the rooms beside."""
    rooms = {path.stem for path in root.iterdir()}
    missing = [room for room in BESIDE if room not in rooms]
    if missing:
        raise RuntimeError(f"the hash of the code leaves out {', '.join(missing)}, which {root} does not have.")
    computing = (
        path for path in root.rglob("*.py") if path.relative_to(root).parts[0].removesuffix(".py") not in BESIDE
    )
    return hash_of(sorted(_bare(path.read_text(encoding="utf-8")) for path in computing))


def _bare(source: str) -> str:
    """Code without comments, docstrings and imports, which say where things are and not what they do."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for block in ("body", "orelse"):
            lines = getattr(node, block, None)
            if isinstance(lines, list):
                kept = [line for line in lines if not _is_for_readers(line)]
                setattr(node, block, kept or ([ast.Pass()] if block == "body" else []))
    return ast.unparse(tree)


def _is_for_readers(line: ast.stmt) -> bool:
    words = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return words or isinstance(line, (ast.Import, ast.ImportFrom))


def hash_of(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
