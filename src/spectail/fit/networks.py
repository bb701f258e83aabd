"""Networks that are trained on these very labels: judged on images that were held out of them, too.

Heads on the features of such a network look better on its training images than they are, above all on rare classes. So
one cut of the data is held out of everything; the final model is then trained on all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..data.datasets import Data, load
from ..data.folds import ALWAYS_TRAINED
from ..experiments.runs import code_version, hash_of
from ..experiments.task import Outcome, Task
from ..training.build import make_pieces
from ..training.config import TrainConfig
from ..training.config_io import from_dict, to_dict
from ..training.length import late_gain
from ..training.reporter import Part, Reporter
from ..training.run_folder import RunFolder
from ..training.trained import load_trained
from .candidates import AS_TRAINED, Training
from .crossfit import Carrier, CrossFit, Fitted, Here, Images, Table

HELD_OUT = 0.2
"""Share of each class that the choice is made on."""
SCRATCH = {"optim": {"epochs": 45, "batch_size": 64, "lr": 5e-3, "weight_decay": 0.05}}
TUNED = {"optim": {"epochs": 20, "lr": 1e-4, "weight_decay": 0.05}, "tuning": {"head_init": "means"}}
"""Of a network that starts from pre-trained weights; few images make few steps, too few for a random head."""
AGAIN = 1 / 3
"""Share of the epochs for which a network that was judged goes on with all images, with a head of its own. Beside one
that begins anew it costs a third and, on `glyphs-lt`, predicts held-out images as well (`benchmarks/going_on.py`)."""
METHODS = ("ce", "balanced-softmax")
FLAT = 0.5
"""Points that the accuracy may still gain in the last fifth of a training that has come to its end; or twice as many as
it jumps from epoch to epoch by chance."""


@dataclass(frozen=True)
class Networks:
    """Networks trained on a part of the data, and what they predict for the rest."""

    table: Table
    """Features that the first one gives, for heads; the others are candidates with their own heads only."""
    result: CrossFit
    images: Images
    converged: bool


def settings(config: TrainConfig, method: str, output: Path, epochs: int | None = None) -> TrainConfig:
    """Of a run that trains the whole network."""
    start = TUNED if config.model.has_weights else SCRATCH
    made = from_dict({"method": method} | start, replace(config, probe=False, features=None, output=output))
    return made if epochs is None else replace(made, optim=replace(made.optim, epochs=epochs))


def going_on(config: TrainConfig, method: str, folder: Path, output: Path, epochs: int | None = None) -> TrainConfig:
    """Of a run that trains the network of :func:`train_networks` further, on all images."""
    made = settings(config, method, output, epochs)
    longer = max(1, round(AGAIN * made.optim.epochs))
    start = replace(made.model, init=cut_of(folder, method))
    return replace(made, model=start, optim=replace(made.optim, epochs=longer))


def cut_of(folder: Path, method: str) -> Path:
    return folder / f"cut-{method}"


def as_trained(method: str, config: TrainConfig) -> Training:
    """The network with the head that it was trained with."""
    optim = config.optim
    return Training(method, AS_TRAINED, optim.lr, optim.weight_decay, method, 0, {}, method)


def train_networks(
    config: TrainConfig,
    methods: Sequence[str],
    folder: Path,
    reporter: Reporter,
    engine: Carrier | None = None,
    epochs: int | None = None,
) -> Networks:
    """Train a network by each method on four fifths of each class."""
    cut = replace(config, data=replace(config.data, val_fraction=HELD_OUT, val_per_class=0))
    runs = {method: settings(cut, method, cut_of(folder, method), epochs) for method in methods}
    tasks = deque(task_of(run) for run in runs.values())
    for task, outcome in (engine or Here()).carry_out(tasks, lambda task: reporter.start(f"training {task.title}")):
        check(task, outcome)
    data = load(cut.data)
    first: Table | None = None
    result: CrossFit | None = None
    converged = True
    for method, run in runs.items():
        table, logits = features_of(run, data, Part(reporter))
        assert data.val is not None
        if result is None:
            first = table
            folds = np.repeat([ALWAYS_TRAINED, 0], [len(data.train), len(data.val)])
            result = CrossFit(table.labels, data.counts, folds)
        training = as_trained(method, run)
        whole = np.full((len(table.labels), len(table.names)), np.nan, dtype=np.float32)
        whole[len(data.train) :] = logits
        flat = is_flat(run.output)
        result.fitted[training.title] = Fitted(training, whole, 0, {}, flat, (0,))
        converged &= flat
    assert first is not None
    assert result is not None
    assert data.val is not None
    images = Images.of(data.train, data.contents.get("train")) + Images.of(data.val, data.contents.get("val"))
    return Networks(first, result, images, converged)


def task_of(config: TrainConfig) -> Task:
    settings = to_dict(config) | {"output": ""}
    return Task(f"a network by {config.method}", hash_of(settings), code_version(), config)


def check(task: Task, outcome: Outcome) -> None:
    if outcome.status not in ("done", "stopped"):  # the engine itself says that a signal has stopped it
        raise ValueError(f"{task.title} could not be trained: {outcome.error or outcome.status}")


def features_of(run: TrainConfig, data: Data, reporter: Reporter) -> tuple[Table, np.ndarray]:
    """Features of all images, those held out last, and the network's own logits for these."""
    start = replace(run.model, init=run.output, pretrained=False)
    pieces = make_pieces(replace(run, probe=True, model=start), reporter, data)
    train, held = pieces.splits["train"], pieces.splits["val"]
    features = torch.cat([train.features, held.features])  # type: ignore[union-attr]
    head = load_trained(run.output).model.head.cpu()
    with torch.no_grad():
        logits = head(held.features).numpy()  # type: ignore[union-attr,operator]
    labels = np.concatenate([train.labels, held.labels])
    return Table(features.numpy(), labels, tuple(data.train.names)), logits


def is_flat(folder: Path) -> bool:
    """Whether validation accuracy had come to rest."""
    found = late_gain(RunFolder(folder).curves())
    return found is not None and found.points < max(FLAT, 2 * found.error)
