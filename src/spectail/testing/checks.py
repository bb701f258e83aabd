"""What every method must do, in one process and in float32."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch

from ..counts import ClassCounts
from ..methods.base import Method
from ..methods.registry import find_method
from ..models.classifier import Classifier
from ..training.loop import train
from .runs import Stop, StopAfter, assert_same, begun, settings


def check_trains(method: str, folder: Path) -> None:
    """The loss is a number in every epoch, the weights move, and every step is counted in a phase."""
    results = train(settings(method, folder / "run"))
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines, "no epoch was logged"
    assert all(math.isfinite(line["loss"]) for line in lines), "a loss is not a number"
    assert results["phases"], "no phase has steps"
    assert all(steps > 0 for steps in results["phases"].values()), "a phase has no steps"
    assert sum(results["phases"].values()) == lines[-1]["step"], "steps are missing from the phases"
    trainer = begun(settings(method, folder / "start", optim={"weight_decay": 0.0}))  # decay alone would move them
    start = {name: value.clone() for name, value in trainer.pieces.model.named_parameters()}
    batches, _ = next(trainer.stage.groups())
    trainer.optimise(batches, trainer.stage.main.handed)
    moved = [name for name, value in trainer.pieces.model.named_parameters() if not torch.equal(value, start[name])]
    assert moved, "a step changes no weight"


def check_extreme_logits(method: str, folder: Path) -> None:
    """Loss and gradients are finite with logits of about 100, at the start and at the end of every stage."""
    for number in range(len(begun(settings(method, folder / "count")).stages)):
        trainer = begun(settings(method, folder / f"stage{number}"), stage=number)
        stage = trainer.stage
        model = trainer.pieces.model
        with torch.no_grad():
            factor = 100 / model(torch.rand(16, 3, 32, 32)).abs().max().clamp_min(1e-6)
            for parameter in model.head.parameters():
                parameter.mul_(factor)
        for epoch in sorted({0, stage.step.epochs - 1}):  # a method may do other things late
            stage.step.epoch, stage.step.index = epoch, epoch * stage.per_epoch
            for loader in stage.loaders.values():
                loader.rewind(epoch)
            trainer.method.begin_epoch(stage.step)
            batches, _ = next(stage.groups())
            stage.optimizer.zero_grad()
            loss = stage.learner(batches[0], stage.step).loss
            when = f"{stage.step.stage.name}, epoch {epoch}"
            assert bool(torch.isfinite(loss)), f"the loss of {when} is {loss.item()}"
            loss.backward()
            for name, parameter in stage.learner.named_parameters():
                if parameter.grad is not None:
                    assert bool(torch.isfinite(parameter.grad).all()), f"the gradient of {name} is not finite ({when})"


def check_resume(method: str, folder: Path) -> None:
    """A run that is stopped anywhere, in any stage, ends as the uninterrupted one, bit for bit."""
    train(settings(method, folder / "whole"))
    steps = sum(json.loads((folder / "whole" / "results.json").read_text())["phases"].values())
    for at in sorted({2, steps // 2, steps - 1} - {0}):
        cut = settings(method, folder / f"cut{at}", checkpoint_every=at)
        try:
            train(cut, reporter=StopAfter(at))
        except Stop:
            torch.manual_seed(987)  # another process would have other random numbers
            train(cut, resume=True)
        assert_same(folder / "whole", cut.output, f"resumed after step {at}")


def check_state(method: str, folder: Path) -> None:
    """What is saved is all there is: another object with the loaded state gives the same loss."""
    trainer = begun(settings(method, folder / "one"))
    for number, (group, images) in enumerate(trainer.stage.groups()):
        trainer.optimise(group, images)
        if number == 1:
            break
    other = begun(settings(method, folder / "two", seed=5))
    other.stage.learner.load_state_dict(trainer.stage.learner.state_dict())
    batches, _ = next(trainer.stage.groups())
    losses = []
    for run in (trainer.stage, other.stage):
        run.step.generator.manual_seed(1)
        torch.manual_seed(1)
        losses.append(run.learner(batches[0], run.step).loss.detach())
    assert torch.equal(*losses), f"the loss is {float(losses[0])} before and {float(losses[1])} after a round trip"


def check_car(method: str, folder: Path) -> None:
    """``--car`` works with both estimators and changes the model."""
    plain = train(settings(method, folder / "plain"))
    for preset in ("paper", "classwise"):
        config = settings(method, folder / preset, car={"enabled": True, "preset": preset})
        results = train(config)
        assert results["car"] is not None, "the results do not mention CAR"
        lines = [json.loads(line) for line in (config.output / "metrics.jsonl").read_text().splitlines()]
        assert all(math.isfinite(line["loss"]) for line in lines), f"CAR ({preset}) spoils the loss"
        assert any(line.get("spectral_norm", 0) > 0 for line in lines), f"CAR ({preset}) saw no batch"
        if plain["car"] is None:
            a, b = (np.load(folder / name / "predictions.npz")["logits"] for name in ("plain", preset))
            assert not np.array_equal(a, b), f"CAR ({preset}) changes nothing"


def check_inference(method: str, folder: Path) -> None:
    """Evaluation adds no margin, prior or smoothing: the logits do not depend on class counts (unless the method says
    that they do by design), nor on the labels, and evaluating changes no state."""
    trainer = begun(settings(method, folder / "run"))
    model: Classifier = trainer.pieces.model.eval()
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    state = {name: value.clone() for name, value in trainer.stage.learner.state_dict().items()}
    kind = find_method(method).load()
    with torch.no_grad():
        logits = trainer.method.inference(model).eval()(images)
        counts = ClassCounts(trainer.counts.counts.flip(0))
        other = kind(counts, trainer.config.options, epochs=2).inference(model).eval()(images)
        bare = model(images)
    after = trainer.stage.learner.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in state.items()), "evaluation changes the state"
    assert logits.shape == (5, 6), f"inference gives {tuple(logits.shape)} for 5 images of 6 classes"
    if kind.adjusts_at_inference:
        return
    assert torch.equal(logits, other), "inference depends on the class counts"
    if kind.inference is Method.inference:
        assert torch.equal(logits, bare), "inference is not the model's own"


def check_backbone(method: str, folder: Path) -> None:
    """A stage that trains the head alone leaves every weight of the backbone as it was."""
    trainer = begun(settings(method, folder / "run"))
    for number, stage in enumerate(trainer.stages):
        if stage.train != "head":
            continue
        trainer = begun(settings(method, folder / f"stage{number}"), stage=number)
        before = [value.clone() for value in trainer.pieces.model.backbone.parameters()]
        trainer.method.begin_epoch(trainer.stage.step)
        for group, images in trainer.stage.groups():
            trainer.optimise(group, images)
        after = list(trainer.pieces.model.backbone.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), f"{stage.name} moves the backbone"
