"""`fit` from end to end: features, cross-fitting, choice, the final model as an ordinary run, and what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._utils.files import write_json
from ..counts import ClassCounts
from ..data.datasets import Data
from ..data.feature_set import FeatureSet
from ..data.folds import ALWAYS_TRAINED, make_folds
from ..diagnosis.advice import Advice
from ..models.build import PIXELS, ModelConfig
from ..training.build import describe, load_data, make_pieces
from ..training.config import TrainConfig
from ..training.config_io import from_dict
from ..training.loop import RunResults, train
from ..training.reporter import Part, Reporter
from . import networks
from .advice import Split, advise
from .answer import alternatives, sentences
from .backbone import AUTO, choose_backbone
from .candidates import AS_TRAINED, FEW, TINY, Training, trainings
from .choice import Chosen, choose_candidate
from .crossfit import Carrier, CrossFit, Images, Table, cross_fit
from .goals import Goal

FOR_CHOOSING = 0.7
"""Share of the budget after which no new candidate is begun: the final model needs the rest."""


@dataclass(frozen=True)
class Fit:
    """What to fit, and how."""

    config: TrainConfig
    """Data, network, device, seed and output; the method is what is looked for."""
    goal: Goal = field(default_factory=Goal)
    methods: tuple[str, ...] | None = None
    """Methods to choose from; None for all of them."""
    folds: int = 5
    budget: float | None = None
    """Seconds for everything."""
    epochs: int | None = None
    """Of the final training; None for as long as it takes."""
    finetune: bool = False
    """Train the whole network by the method that is chosen on its features."""
    command: str = "spectail fit"
    """How it was called, for advice on other goals."""


@dataclass(frozen=True)
class Fitting:
    """What came of it."""

    results: RunResults
    chosen: Chosen
    record: dict[str, Any]
    """What fit.json says."""
    data: Data
    cross_fit: CrossFit


def fit(
    asked: Fit,
    reporter: Reporter | None = None,
    engine: Carrier | None = None,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> Fitting:
    """Find the best classifier for a goal, and train it on all training images.

    A fit that was stopped in its last training goes on with it when it is called again.
    """
    reporter = reporter or Reporter()
    began = time.monotonic()
    deadline = began + (FOR_CHOOSING * asked.budget if asked.budget is not None else float("inf"))
    data = load_data(asked.config, reporter)
    check_data(data.counts)
    config, source = _with_backbone(asked.config, data)
    reporter.start(source)
    notes = [source] if not (config.probe or isinstance(data.train, FeatureSet)) else []
    folder = asked.config.output / "networks"
    trained_here = not isinstance(data.train, FeatureSet) and not config.model.has_weights
    converged = True
    if trained_here:
        describe(data, reporter)
        found = networks.train_networks(config, networks.METHODS, folder, reporter, engine, asked.epochs)
        result, table, images, converged = found.result, found.table, found.images, found.converged
        plain = result.fitted[next(iter(result.fitted))].training
        wanted = [
            replace(one, backbone=plain.backbone, simplicity=one.simplicity + 1)  # than the head that the network has
            for one in trainings(table.features.shape[1], asked.methods, len(table.labels))
        ]
    else:
        table, images = _table(config, data, reporter), Images.of(data.train, data.contents.get("train"))
        result = CrossFit(table.labels, data.counts, make_folds(table.labels, asked.folds, config.seed))
        wanted = trainings(table.features.shape[1], asked.methods, len(table.labels))
        plain = wanted[0]
        notes += _alone(result)
    notes += _few(len(table.labels), data.train.unit, asked.methods)
    cross_fit(result, table, wanted, config, asked.goal, engine=engine, deadline=deadline, done=done)
    if result.out_of_time:
        tried = len(result.whole())
        notes.append(f"the budget ended when {tried} of {len(wanted)} trainings had been judged; more time may find a "
                     "better one")  # fmt: skip
    chosen = choose_candidate(result, asked.goal, plain, config.seed)
    if not (chosen.fitted.converged and converged):
        notes.append("not trained to the end: the loss on held-out images was still falling; pass a larger --epochs")
    if not chosen.choice.floor_met:
        note = chosen.choice.note.rstrip(".")
        notes.append(note[:1].lower() + note[1:])
    reporter.start(f"chosen: {chosen.candidate.title}; training it on all {len(data.train):,} {data.train.unit}")
    if asked.finetune and not trained_here:
        results, more = _finetuned(config, chosen, data, folder, reporter, engine, asked)
        notes += more
    elif trained_here:
        results = _network(config, chosen, data, folder, reporter, asked)
    else:
        results = _final(config, chosen, data, reporter, asked.epochs)
    record = _record(asked, config, chosen, result, results, notes, time.monotonic() - began, data.train.unit)
    record["answer"] = sentences(record)
    record["alternatives"] = alternatives(record, asked.command)
    _advice(chosen, result, images, data).save(asked.config.output)
    write_json(asked.config.output / "fit.json", record)
    return Fitting(results, chosen, record, data, result)


def check_data(counts: ClassCounts) -> None:
    sizes = counts.tolist()
    if max(sizes) == 1:
        raise ValueError(
            "every class has one training image, so that nothing can be held out to choose by. Add images, or train "
            "one method with `spectail train`."
        )


def _with_backbone(config: TrainConfig, data: Data) -> tuple[TrainConfig, str]:
    """The settings with a network, and where the features come from, in words."""
    if isinstance(data.train, FeatureSet):
        config = replace(config, model=ModelConfig()) if config.model.model == AUTO else config
        return config, f"{data.train.features.shape[1]:,} features for each of {len(data.train):,} rows"
    pixels = min(data.train.pixels.shape[1:3]) if data.train.pixels is not None else PIXELS
    backbone = choose_backbone(config.model, pixels)
    return replace(config, model=backbone.model, probe=backbone.frozen), backbone.note


def _table(config: TrainConfig, data: Data, reporter: Reporter) -> Table:
    pieces = make_pieces(replace(config, probe=True, features="raw", method="ce"), reporter, data)
    train = pieces.splits["train"]
    assert isinstance(train, FeatureSet)
    return Table(train.features.numpy(), train.labels, train.names)


def _alone(result: CrossFit) -> list[str]:
    """Classes that cannot be judged, said by name."""
    alone = result.labels[result.folds == ALWAYS_TRAINED]
    if not len(alone):
        return []
    named = ", ".join(result.counts.describe(int(label)) for label in alone[:5])
    more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
    return [f"{named}{more} has one training image: it is learnt from, and nobody can say how well"]


def _few(rows: int, unit: str, methods: Sequence[str] | None) -> list[str]:
    """What was not tried, since there are few images or rows."""
    if methods is not None or rows >= FEW:
        return []
    tried = "cross entropy was" if rows < TINY else "cross entropy and Balanced Softmax were"
    why = "since so few do not tell losses apart; --method names others"
    return [f"with {rows} {unit} only {tried} tried, {why}"]


def _length(config: TrainConfig, steps: int, images: int, epochs: int | None, grown: float) -> TrainConfig:
    """So many steps, longer by as much as there are more images than in a fold; an explicit length wins."""
    batch = min(config.optim.batch_size, images)
    wanted = epochs or max(1, round(steps * grown / -(-images // batch)))
    return replace(config, optim=replace(config.optim, epochs=wanted, batch_size=batch))


def _head_config(config: TrainConfig, training: Training) -> TrainConfig:
    ready = from_dict({"probe": True, "features": training.features, "checkpoint_epochs": 10**6}, config)
    return training.config(ready)


def _final(config: TrainConfig, chosen: Chosen, data: Data, reporter: Reporter, epochs: int | None) -> RunResults:
    """The chosen head on the features of all training images."""
    held = float(np.mean(chosen.fitted.logits[:, 0] == chosen.fitted.logits[:, 0])) / max(len(chosen.fitted.folds), 1)
    one = _head_config(config, chosen.candidate.training)
    one = _length(one, chosen.fitted.steps, len(data.train), epochs, 1 / (1 - held))
    return train(one, resume=True, data=data, adjustment=chosen.adjustment, reporter=Part(reporter))


def _network(
    config: TrainConfig, chosen: Chosen, data: Data, folder: Path, reporter: Reporter, asked: Fit
) -> RunResults:  # fmt: skip
    """The chosen network on all images, with its own head or another one on top."""
    training = chosen.candidate.training
    if training.features == AS_TRAINED:
        one = networks.going_on(config, training.method, folder, asked.config.output, asked.epochs)
        return train(one, resume=True, data=data, adjustment=chosen.adjustment, reporter=Part(reporter, epochs=True))
    one = networks.going_on(config, training.backbone, folder, folder / f"all-{training.backbone}", asked.epochs)
    train(one, resume=True, data=data, reporter=Part(reporter, epochs=True))
    started = replace(config, model=replace(config.model, init=one.output), output=asked.config.output)
    return _final(started, chosen, data, reporter, None)


def _finetuned(
    config: TrainConfig, chosen: Chosen, data: Data, folder: Path, reporter: Reporter, engine: Carrier | None,
    asked: Fit,
) -> tuple[RunResults, list[str]]:  # fmt: skip
    """The whole network by the chosen method, and what to know of it. Shift and temperature are chosen again, on images
    held out of it. Where these say that the chosen head is better, it stays with the head."""
    method = chosen.candidate.training.method
    found = networks.train_networks(config, (method,), folder, reporter, engine, asked.epochs)
    plain = next(iter(found.result.fitted.values())).training
    again = choose_candidate(found.result, asked.goal, plain, config.seed)
    name = asked.goal.name
    held, head = again.figures[name], chosen.figures[name]
    reached = f"the whole network was trained by {method}; on images held out of it its {name} figure is {held:.1f} %"
    notes = [] if found.converged else ["the network was not trained to the end: pass a larger --epochs"]
    if held < head:
        notes.insert(0, f"{reached}, less than the {head:.1f} % of the chosen head, which was therefore taken")
        return _final(config, chosen, data, reporter, None), notes
    notes.insert(0, f"{reached}. The figures of the table and of the answer are of heads on the network as it was")
    one = networks.settings(config, method, asked.config.output, asked.epochs)
    part = Part(reporter, epochs=True)
    return train(one, resume=True, data=data, adjustment=again.adjustment, reporter=part), notes


def _record(
    asked: Fit, config: TrainConfig, chosen: Chosen, result: CrossFit, results: RunResults, notes: Sequence[str],
    seconds: float, unit: str,
) -> dict[str, Any]:  # fmt: skip
    return {
        "format": 1,
        "goal": asked.goal.name,
        "keep": dict(asked.goal.keep),
        "floors_kept": chosen.choice.floor_met,
        "dataset": results["dataset"],
        "identity": results["identity"],
        "unit": unit,
        "model": config.model.model,
        "folds": asked.folds if len(result.used) > 1 else 1,
        "judged": int(result.judged.sum()),
        "chosen": {
            "title": chosen.candidate.title,
            "method": chosen.candidate.training.method,
            "shift": chosen.candidate.shift,
            "temperature": round(chosen.adjustment.temperature, 4),
            "why": chosen.choice.note,
            "figures": _rounded(chosen.figures),
        },
        "cross_entropy": {"title": chosen.plain.title, "figures": _rounded(chosen.baseline)},
        "differences": {name: _rounded(asdict(one)) for name, one in chosen.differences.items()},
        "menu": chosen.menu,
        "lines": chosen.lines,
        "other_goals": chosen.others,
        "trainings": [
            {
                "title": one.training.title,
                "steps": one.steps,
                "held_out_loss": {str(steps): round(loss, 5) for steps, loss in one.losses.items()},
                "converged": one.converged,
                "folds": list(one.folds),
                "balanced_by_fold": _by_fold(result, one.logits, one.folds),
            }
            for one in result.fitted.values()
        ],
        "notes": list(notes),
        "seconds": round(seconds, 1),
    }


def _advice(chosen: Chosen, result: CrossFit, images: Images, data: Data) -> Advice:
    """From the out-of-fold logits of the choice, as they are used."""
    test = Images.of(data.test, data.contents.get("test"))
    others = {"test": Split(test.contents, test.paths, data.test.labels)} if test.contents is not None else None
    logits, labels = chosen.adjustment.apply(chosen.fitted.logits), result.labels
    own = Images.of(data.train, data.contents.get("train"))
    if images.paths != own.paths:  # of a cut: back into the order of the training set, by which positions are meant
        places = {path: at for at, path in enumerate(images.paths)}
        order = np.array([places[path] for path in own.paths])
        logits, labels, images = logits[order], labels[order], own
    names = result.counts.names or tuple(map(str, range(len(result.counts))))
    return advise(logits, labels, names, result.counts, images.paths, images.contents,
                  others=others if images.contents is not None else None)  # fmt: skip


def _by_fold(result: CrossFit, logits: np.ndarray, folds: Sequence[int]) -> dict[str, float]:
    from .figures import score  # noqa: PLC0415

    found = {}
    for fold in folds:
        here = result.folds == fold
        right = logits[here].argmax(1) == result.labels[here]
        found[str(fold)] = round(score("balanced", right, result.labels[here], result.counts), 3)
    return found


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}
