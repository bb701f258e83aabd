"""What a plan will cost: images times epochs times the measured time of a training step on this machine."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..data.catalog import find
from .index import Record
from .planning import Plan
from .runs import Run
from .scales import ABOUT

SLOWER = {"bbn": 2.0, "concutmix": 3.0, "metasaug": 1.5, "cmo": 1.05, "wb": 1.3, "gml": 1.2, "balms": 1.3, "los": 1.3,
          "crt": 1.3, "lws": 1.3}  # fmt: skip
"""Roughly how much longer a method takes than plain training: second branches, views and stages."""
SLOWER_ON_FEATURES = SLOWER | {"safa-r": 33.0}
"""The same where only a head is trained: 128 s against 3.9 s for SAFA-R, which draws new features at every step."""
NEW_HEADS = {"balms": (2000 * 512, 2 / 3), "gml": (440 * 512, 1 / 3)}
"""Images that a new head is shown in a second stage at least, and what one costs, a training step being 1."""
HEAD_STEP, AROUND = 3e-5, 2.0
"""Seconds per image of a linear head's step, and of a run beside its steps (loading, measuring, writing), both rough:
12 epochs over 10,847 images took 3.5 to 6 s on one core, and 2.1 s around them."""


def training_images(data: dict[str, Any]) -> int | None:
    """Images of a cut, by the exponential rule.

    Example:
        >>> training_images({"dataset": "cifar100-lt", "imbalance": 100.0})
        10847
    """
    facts = find(data["dataset"])
    if facts.fixed:
        return facts.images
    if facts.largest is None:
        return None
    factor = data.get("imbalance") or facts.imbalance or 1.0
    return int(_exponential(facts.classes, facts.largest, factor) * (1 - data.get("val_fraction", 0.0)))


@cache
def _exponential(classes: int, largest: int, factor: float) -> int:
    return sum(int(largest * factor ** (-place / (classes - 1))) for place in range(classes))


FeatureSet = tuple[str, int, str]
"""Model, image size and data set: what features are computed for, once."""


class StepTimes:
    """Seconds per image of a training step, by model and image size, measured here and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.known: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.known = {}
        self.heads: dict[str, float] = {}
        """Seconds per image of finished runs on features, by method."""
        self.features: set[FeatureSet] = set()
        """Features that are there: some run has used them."""

    def measure(self, model: str, pixels: int, device: str, *, batch: int = 8, steps: int = 4) -> float:
        """Time of plain training steps, one for warm-up not counted: the shortest, since others may use the machine."""
        import torch  # noqa: PLC0415

        from ..training.hardware import check_device  # noqa: PLC0415

        check_device(device)
        from .._utils.files import write_json  # noqa: PLC0415
        from ..models.build import ModelConfig, build_model  # noqa: PLC0415

        network, _ = build_model(ModelConfig(model=model, img_size=pixels), 100)
        network.to(device).train()
        images, labels = torch.randn(batch, 3, pixels, pixels, device=device), torch.arange(batch, device=device) % 100
        taken = []
        for _ in range(steps + 1):
            begin = time.perf_counter()
            torch.nn.functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            network.zero_grad()
            if device != "cpu":
                torch.accelerator.synchronize()
            taken.append(time.perf_counter() - begin)
        seconds = min(taken[1:]) / batch
        self.known[name_of(model, pixels)] = seconds
        write_json(self.path, self.known)
        return seconds

    def of(self, run: Run) -> float | None:
        return self.known.get(name_of(run.sized.model, run.sized.pixels))


def name_of(model: str, pixels: int) -> str:
    return f"{model} {pixels}"


def run_seconds(run: Run, times: StepTimes) -> float | None:
    """Expected time of a run, without that of features; None where nothing was measured."""
    images = training_images(run.sized.own["data"])
    if images is None:
        return None
    steps = images * (run.sized.epochs or ABOUT)
    if run.sized.probe:
        return steps * times.heads.get(run.cell.method, HEAD_STEP * slower(run, images)) + AROUND
    step = times.of(run)
    return None if step is None else steps * step * slower(run, images)


def slower(run: Run, images: int) -> float:
    """How much longer a run takes than plain training on so many images."""
    method = run.sized.own["method"]
    factor = (SLOWER_ON_FEATURES if run.sized.probe else SLOWER).get(method, 1.0)
    if method not in NEW_HEADS or run.sized.own.get("options", {}).get("stage2_epochs") is not None:
        return factor
    shown, each = NEW_HEADS[method]
    return max(factor, 1 + each * min(shown, 120 * images) / (images * (run.sized.epochs or ABOUT)))


def feature_seconds(runs: Iterable[Run], step: float | None) -> float | None:
    """Time of one pass forward, a third of a training step, over the images of the largest cut and of the test set."""
    data = [run.sized.own["data"] for run in runs]
    images = [count for part in data if (count := training_images(part)) is not None]
    if step is None or not images:
        return None
    return (max(images) + find(data[0]["dataset"]).test) * step / 3


def features_of(run: Run) -> FeatureSet | None:
    """Which features a run reads; None for one that trains on images."""
    return (run.sized.model, run.sized.pixels, run.sized.own["data"]["dataset"]) if run.sized.probe else None


@dataclass(frozen=True)
class Estimate:
    """What the open runs of a plan will take, one after another."""

    seconds: dict[str, float | None]
    """By the name of a run; None where nothing was measured. The first run on new features pays for them."""
    passes: int = 0
    """Sets of features to compute whose time is not known."""

    @property
    def total(self) -> float:
        return sum(value for value in self.seconds.values() if value is not None)

    @property
    def unknown(self) -> int:
        return sum(value is None for value in self.seconds.values())

    @property
    def words(self) -> str:
        if not self.seconds or self.unknown == len(self.seconds):
            return "not measured" if self.seconds else "-"
        words = in_words(self.total) + (f" + {self.unknown} not measured" if self.unknown else "")
        return words + (" + features, not measured" if self.passes else "")


def estimate(runs: Sequence[Run], times: StepTimes) -> Estimate:
    """What runs will take. Features that are not there yet cost a pass over the images, once for all runs on them."""
    new: dict[FeatureSet, list[Run]] = {}
    for run in runs:
        features = features_of(run)
        if features is not None and features not in times.features:
            new.setdefault(features, []).append(run)
    seconds = {run.name: run_seconds(run, times) for run in runs}
    passes = 0
    for readers in new.values():
        alone, before = seconds[readers[0].name], feature_seconds(readers, times.of(readers[0]))
        passes += before is None
        if alone is not None and before is not None:
            seconds[readers[0].name] = alone + before
    return Estimate(seconds, passes)


def learn(times: StepTimes, plan: Plan, records: Iterable[Record]) -> None:
    """Finished runs know best how long such runs take."""
    steps: dict[str, list[float]] = {}
    heads: dict[str, list[float]] = {}
    runs = {run.name: run for run in plan.runs}
    for record in records:
        run = runs.get(record.about.get("name", ""))
        if record.status != "done" or run is None or not record.results:
            continue
        features = features_of(run)
        if features is not None:
            times.features.add(features)
        images = training_images(run.sized.own["data"])
        if not images:
            continue
        each = record.results["seconds"] / (images * (run.sized.epochs or ABOUT))
        if features is not None:
            heads.setdefault(run.cell.method, []).append(each)
        else:
            plain = each / slower(run, images)
            steps.setdefault(name_of(run.sized.model, run.sized.pixels), []).append(plain)
    times.known |= {name: statistics.median(values) for name, values in steps.items()}
    times.heads |= {name: statistics.median(values) for name, values in heads.items()}


def in_words(seconds: float) -> str:
    """A time as a person says it.

    Example:
        >>> in_words(90), in_words(7200), in_words(400_000)
        ('2 minutes', '2.0 hours', '4.6 days')
    """
    if seconds < 3600:
        minutes = max(1, round(seconds / 60))
        return f"{minutes} minute{'s' * (minutes > 1)}"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
