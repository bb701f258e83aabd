"""A picture of what augmentation methods do: images of a real batch before and after, with the label mass printed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..augment.mixing import Draws
from ..data.storage import whole_file
from ..methods.base import Outcome
from ..targets import MixedTarget
from ..testing import begun
from ..training.config_io import from_dict
from ..training.loop import Trainer

SHOWN: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mixup", "remix", {"tau": 0.0}),
    ("CutMix", "remix", {"tau": 0.0, "mix": "cutmix"}),
    ("ReMix", "remix", {}),
    ("ReMix with CutMix", "remix", {"mix": "cutmix"}),
    ("CMO", "cmo", {"probability": 1.0, "plain_first": 0, "plain_last": 0}),
    ("ConCutMix", "concutmix", {"probability": 1.0}),
    ("ConCutMix lite", "concutmix", {"mode": "lite", "probability": 1.0}),
)


def save(path: Path, data: dict[str, Any], columns: int = 6, seed: int = 1) -> None:
    """Write the gallery as PNG. ``data`` are settings of the data set, as in a configuration.

    Every picture comes from the method itself: what its network was given, and the target it returned.
    """
    rows = [(title, *_clear(method, options, data, seed)) for title, method, options in SHOWN]
    lines = 3 * len(rows)
    figure = Figure(figsize=(1.5 * columns + 1.6, 1.62 * lines), layout="constrained", dpi=110)
    axes = figure.subplots(lines, columns, squeeze=False)
    for place, (title, trainer, given, seen, outcome) in enumerate(rows):
        target = outcome.target
        pictures = {"image": given["main"], "partner": given["partner"], "mixed": seen}
        for offset, (what, images) in enumerate(pictures.items()):
            for column, axis in zip(_telling(trainer, target)[:columns], axes[3 * place + offset], strict=False):
                axis.set_xticks([])
                axis.set_yticks([])
                axis.set_frame_on(False)
                axis.imshow(_picture(images[column], trainer))
                axis.set_xlabel(_words(what, target, column, trainer), fontsize=7)
            axes[3 * place + offset][0].set_ylabel(f"{title}\n{what}", fontsize=9)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _clear(method: str, options: dict[str, Any], data: dict[str, Any], seed: int) -> Any:
    """The first of a few draws whose mixes have a fair share of both images, so that there is something to see."""
    for place in range(20):
        found = _captured(method, options, data, seed + place)
        if bool(((found[-1].target.share > 0.3) & (found[-1].target.share < 0.7)).any()):  # type: ignore[union-attr]
            break
    return found


def _telling(trainer: Trainer, target: Any) -> list[int]:
    """Mixes in the order of how much their classes differ in size."""
    sizes = trainer.counts.counts.double().log()
    order: list[int] = (sizes[target.a] - sizes[target.b]).abs().argsort(descending=True).tolist()
    return order


def _captured(
    method: str, options: dict[str, Any], data: dict[str, Any], seed: int
) -> tuple[Trainer, dict[str, Tensor], Tensor, Outcome]:
    """One step of a method on a batch: what was there, what the backbone saw, and the target."""
    seen: list[Tensor] = []
    with tempfile.TemporaryDirectory() as folder:
        config = from_dict(
            {"method": method, "options": options, "data": data, "device": "cpu", "workers": 0, "seed": seed,
             "output": folder, "optim": {"batch_size": 32, "epochs": 1}}
        )  # fmt: skip
        trainer = begun(config)
    trainer.pieces.model.backbone.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].clone()))
    trainer.method.begin_epoch(trainer.stage.step)
    (batches, *_), _ = next(trainer.stage.groups())
    same = torch.Generator()
    same.set_state(trainer.generator.get_state())
    outcome = trainer.stage.learner(batches, trainer.stage.step)
    given = {
        name: batch.images[0] if isinstance(batch.images, tuple) else batch.images for name, batch in batches.items()
    }
    size = len(given["main"])
    # a foreground of its own, or images of the same batch in the order that the method drew
    given["partner"] = (
        given["foreground"] if "foreground" in given else given["main"][Draws(same).partners(size, torch.device("cpu"))]
    )
    return trainer, given, seen[0][:size], outcome


def _picture(image: Tensor, trainer: Trainer) -> np.ndarray[Any, Any]:
    preset = trainer.pieces.preset
    shown = image.cpu() * torch.tensor(preset.std).view(3, 1, 1) + torch.tensor(preset.mean).view(3, 1, 1)
    return shown.clamp(0, 1).permute(1, 2, 0).numpy()


def _words(what: str, target: MixedTarget, column: int, trainer: Trainer) -> str:
    names = trainer.pieces.splits["train"].names
    sizes = trainer.counts.counts
    a, b, share = int(target.a[column]), int(target.b[column]), float(target.share[column])
    if what != "mixed":
        label = a if what == "image" else b
        return f"{names[label]} (n = {int(sizes[label])})"
    return f"{names[a]} {share:.0%} + {names[b]} {1 - share:.0%}"
