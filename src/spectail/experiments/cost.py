"""What a plan will cost: images times epochs times the measured time of a training step on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .planning import Plan
from .record import Record
from .runs import Run

SIZES = {"cifar10-lt": (10, 5000), "cifar100-lt": (100, 500), "tiny-imagenet-lt": (200, 500),
         "imagenet-lt-exp": (1000, 1280), "glyphs-lt": (100, 200)}  # fmt: skip
"""Classes, and images of the largest."""
NATURAL = {"inat2018": 437_513, "imagenet-lt": 115_846}
SLOWER = {"bbn": 2.0, "concutmix": 3.0, "metasaug": 1.5, "cmo": 1.05, "wb": 1.3, "gml": 1.2, "balms": 1.3, "los": 1.3,
          "crt": 1.3, "lws": 1.3}  # fmt: skip
"""Roughly how much longer a method takes than plain training: second branches, views and stages."""


def training_images(data: dict[str, Any]) -> int | None:
    """Images of a cut, by the exponential rule.

    Example:
        >>> training_images({"dataset": "cifar100-lt", "imbalance": 100.0})
        10847
    """
    name, factor = data["dataset"], data.get("imbalance")
    if name in NATURAL:
        return NATURAL[name]
    if name not in SIZES:
        return None
    classes, largest = SIZES[name]
    counts = [int(largest * (factor or 100.0) ** (-place / (classes - 1))) for place in range(classes)]
    return int(sum(counts) * (1 - data.get("val_fraction", 0.0)))


class StepTimes:
    """Seconds per image of a training step, by model and image size, measured here and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.known: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.known = {}

    def measure(self, model: str, pixels: int, device: str, *, batch: int = 8, steps: int = 2) -> float:
        """Time of plain training steps, one for warm-up not counted."""
        import torch  # noqa: PLC0415

        from ..data.storage import write_json  # noqa: PLC0415
        from ..models.build import ModelConfig, build_model  # noqa: PLC0415

        network, _ = build_model(ModelConfig(model=model, img_size=pixels), 100)
        network.to(device).train()
        images, labels = torch.randn(batch, 3, pixels, pixels, device=device), torch.arange(batch, device=device) % 100
        begin = 0.0
        for step in range(steps + 1):
            if step == 1:
                begin = time.perf_counter()
            torch.nn.functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            network.zero_grad()
        if device != "cpu":
            torch.accelerator.synchronize()
        seconds = (time.perf_counter() - begin) / (steps * batch)
        self.known[name_of(model, pixels)] = seconds
        write_json(self.path, self.known)
        return seconds

    def of(self, run: Run) -> float | None:
        return self.known.get(name_of(run.sized.model, run.sized.pixels))


def name_of(model: str, pixels: int) -> str:
    return f"{model} {pixels}"


def run_seconds(run: Run, times: StepTimes) -> float | None:
    """Expected time of a run; None where nothing was measured. A probe pays for one pass over the images only."""
    images, step = training_images(run.sized.own["data"]), times.of(run)
    if images is None or step is None:
        return None
    slower = SLOWER.get(run.sized.own["method"], 1.0)
    if run.sized.probe:
        return images * run.sized.epochs * 5e-6 * slower + 3.0  # a linear head; features are computed once for all
    return images * run.sized.epochs * step * slower


def learn(times: StepTimes, plan: Plan, records: Iterable[Record]) -> None:
    """Finished runs know best how long such runs take."""
    seconds: dict[str, list[float]] = {}
    runs = {run.name: run for run in plan.runs if not run.sized.probe}
    for record in records:
        run = runs.get(record.about.get("name", ""))
        images = training_images(run.sized.own["data"]) if run is not None else None
        if record.status == "done" and run is not None and images and record.results:
            slower = SLOWER.get(run.sized.own["method"], 1.0)
            each = record.results["seconds"] / (images * run.sized.epochs * slower)
            seconds.setdefault(name_of(run.sized.model, run.sized.pixels), []).append(each)
    times.known |= {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}


def in_words(seconds: float) -> str:
    """A time as a person says it.

    Example:
        >>> in_words(90), in_words(7200), in_words(400_000)
        ('2 minutes', '2.0 hours', '4.6 days')
    """
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
