"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a run has come; saved with every checkpoint."""

    stage: int = 0
    epoch: int = 0
    steps: int = 0
    """Optimiser steps of the run."""
    phases: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    """Lines of metrics.jsonl."""
    best: float | None = None
    best_epoch: int | None = None
    seconds: float = 0.0
