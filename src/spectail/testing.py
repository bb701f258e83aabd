"""Checks that every method must pass: ours, and those of others.

    import pytest
    from spectail.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_method(check, tmp_path):
        check("my_package.my_method:MyMethod", tmp_path)

or ``python -m spectail.testing my_package.my_method:MyMethod``. A check trains on a handful of rendered characters with
a network of two layers, which takes about a second, and raises AssertionError with a sentence if something is wrong.
``check_two_processes`` is not among ``CHECKS``, as it starts processes, which takes longer; the command runs it too.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .counts import ClassCounts
from .methods.base import Method
from .methods.registry import METHODS, find_method
from .models.build import MODELS
from .models.classifier import Classifier
from .models.weights import read_weights
from .training.config import TrainConfig
from .training.config_io import from_dict
from .training.loop import Trainer, train
from .training.reporter import Reporter
from .training.run_folder import RunFolder
from .training.signals import Interruptible
from .training.stage_run import StageRun

Check = Callable[[str, Path], None]


class TinyNetwork(nn.Module):
    """Pooled pixels, one layer and one block, without batch norm: results do not depend on how a batch is split."""

    num_features = 24

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 24), nn.LayerNorm(24))
        self.blocks = nn.Sequential(nn.Linear(24, 24))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(images).relu()).relu()
        return features


def register_network() -> None:
    """Make the network known as ``testing-net``."""
    MODELS.setdefault("testing-net", ("two layers, for the checks of spectail.testing", lambda options: TinyNetwork()))


def settings(method: str, output: Path, **changes: Any) -> TrainConfig:
    """A run of two epochs on 68 images of six classes. ``car`` and ``optim`` change those settings."""
    register_network()
    content: dict[str, Any] = {
        "method": method,
        "data": {"dataset": "glyphs-lt", "num_classes": 6, "max_per_class": 24, "imbalance": 6},
        "model": {"model": "testing-net"},
        "optim": {"epochs": 2, "batch_size": 16} | changes.pop("optim", {}),
        "device": "cpu",
        "workers": 0,
        "output": str(output),
    }
    if hasattr(find_method(method).load().options, "stage2_epochs"):  # a length that wins over that of a new head
        content["options"] = {"stage2_epochs": 1}
    return from_dict(content | changes)


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
        cut = settings(method, folder / f"cut{at}", checkpoint_every=1)
        try:
            train(cut, reporter=_StopAfter(at))
        except _Stop:
            torch.manual_seed(987)  # another process would have other random numbers
            train(cut, resume=True)
        _assert_same(folder / "whole", cut.output, f"resumed after step {at}")


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


def check_two_processes(method: str, folder: Path, seconds: float = 300) -> None:
    """Two processes with half batches end as one process with whole ones. Both end, or are ended, in time."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "-m", "spectail.testing", "--rank-run", method, str(folder / "two")]  # fmt: skip
    folders = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # where the method may come from
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": folders}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launched:
        try:
            said, _ = launched.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            launched.terminate()  # the launcher then ends its processes
            try:
                launched.communicate(timeout=45)
            except subprocess.TimeoutExpired:
                launched.kill()
            raise AssertionError(f"two processes did not end within {seconds:g} seconds") from None
    assert launched.returncode == 0, f"two processes failed: {said[-2000:]}"
    train(_shared_run(method, folder / "one"))
    one, two = (read_weights(folder / name) for name in ("one", "two"))
    assert one.keys() == two.keys(), "two processes leave other weights than one"
    for name, value in one.items():
        close = torch.allclose(two[name].float(), value.float(), rtol=1e-4, atol=2e-5)
        assert close, f"{name} of two processes differs from that of one"
    alone, both = (json.loads((folder / name / "results.json").read_text())["phases"] for name in ("one", "two"))
    assert alone == both, f"the phases of two processes are {both}, of one {alone}"


def _shared_run(method: str, output: Path) -> TrainConfig:
    """By SGD: Adam would make a large step of a rounding error in a small gradient."""
    return settings(method, output, optim={"optimizer": "sgd", "lr": 0.05}, eval_train=False)


CHECKS: tuple[Check, ...] = (
    check_trains, check_extreme_logits, check_resume, check_state, check_car, check_inference, check_backbone,
)  # fmt: skip


def begun(config: TrainConfig, stage: int = 0) -> Trainer:
    """A trainer that waits for the first step of a stage."""
    trainer = Trainer(config, RunFolder(config.output), Reporter(), Interruptible())
    trainer.stage = StageRun(trainer.stages[stage], config, trainer.pieces, trainer.car_term, trainer.generator, None)
    trainer.stage.learner.train()
    return trainer


class _Stop(Exception):
    pass


class _StopAfter(Reporter):
    """Raises after so many steps of the run, before the last of them is saved."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step(self, done: int, figures: Any) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise _Stop


def _assert_same(a: Path, b: Path, when: str) -> None:
    for name in ("model.safetensors", "predictions.npz"):
        same = (a / name).read_bytes() == (b / name).read_bytes()
        assert same, f"{name} differs from the uninterrupted run when {when}"
    first, second = (json.loads((folder / "results.json").read_text()) for folder in (a, b))
    differing = [key for key in first if key != "seconds" and first[key] != second[key]]
    assert not differing, f"results.json differs in {differing} when {when}"


def main(names: list[str]) -> int:
    """Run all checks on the named methods, by default on all that are registered."""
    failed = 0
    for name in names or METHODS:
        for check in (*CHECKS, check_two_processes):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(name, Path(folder))
                    print(f"{name}: {check.__name__} passed")
                except AssertionError as error:
                    failed += 1
                    print(f"{name}: {check.__name__} FAILED: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank-run"]:  # one of the processes of check_two_processes
        torch.set_num_threads(1)
        train(_shared_run(sys.argv[2], Path(sys.argv[3])))
        os._exit(0)  # not through the shutdown, in which gloo now and then aborts a process that is done
    sys.exit(main(sys.argv[1:]))
