"""What every method must do in bfloat16, and with a compiled backbone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..methods.base import Batches, Method, Outcome, Step
from ..models.classifier import Classifier
from ..training import hardware
from ..training.config import TrainConfig
from ..training.loop import train
from .runs import Stop, StopAfter, assert_same, begun, settings

STEPS = 2
"""Of the first and of the last epoch of a stage: a method may do other things late."""
ROUNDING = 0.03
"""Share by which a loss may differ in bfloat16, whose numbers have eight binary digits."""
BACKEND = "aot_eager"
"""Differentiates as the real one does, with torch's own kernels: there is nothing to wait for."""


class Course(NamedTuple):
    """What came of a few steps."""

    losses: list[float]
    """Loss and CAR's term, step by step."""
    state: dict[str, Tensor]
    """Of the model, the method and CAR."""
    kinds: set[torch.dtype]
    """Of the losses as the method gives them."""
    compiled: int
    """Forms of the backbone that torch.compile has made."""


def check_bf16(method: str, folder: Path) -> None:
    """With ``--precision bf16`` and CAR the first losses are close to those of float32, the loss itself and CAR's are
    computed in float32, and so are weights and states kept, all finite."""
    for stage in range(_stages(method, folder)):
        usual = course(_config(method, folder / f"float32-{stage}"), stage)
        short = course(_config(method, folder / f"bf16-{stage}", precision="bf16"), stage)
        assert short.kinds == usual.kinds, "the loss is computed in bfloat16: take float() of the logits first"
        for place, (a, b) in enumerate(zip(usual.losses, short.losses, strict=True)):
            close = abs(a - b) <= ROUNDING * max(abs(a), 0.1)
            assert close, f"loss {place} of stage {stage} is {b} in bfloat16 and {a} in float32"
        for name, value in short.state.items():
            assert value.dtype == usual.state[name].dtype, f"{name} is kept in {value.dtype} under bf16"
            assert bool(torch.isfinite(value).all() or not torch.isfinite(usual.state[name]).all()), (
                f"{name} is not finite under bf16"
            )


def check_compiled(method: str, folder: Path, backend: str = BACKEND) -> None:
    """With ``--compile`` and CAR the steps are those without it. A method with ``compiles = False`` is refused."""
    with compiling_by(backend):
        if not _compiles(method, folder):
            _check_refused(_config(method, folder / "refused", compile=True))
            return
        for stage in range(_stages(method, folder)):
            usual = course(_config(method, folder / f"eager-{stage}"), stage)
            other = course(_config(method, folder / f"compiled-{stage}", compile=True), stage)
            assert other.compiled, f"stage {stage} never calls the compiled backbone: call model or model.backbone"
            for place, (a, b) in enumerate(zip(usual.losses, other.losses, strict=True)):
                assert abs(a - b) <= 1e-4 * max(abs(a), 0.1), f"loss {place} of stage {stage} is {b} compiled, not {a}"
            for name, value in usual.state.items():
                close = torch.allclose(other.state[name].float(), value.float(), rtol=1e-3, atol=1e-5)
                assert close, f"{name} differs in stage {stage} when compiled"


def check_resume_compiled(method: str, folder: Path, backend: str = BACKEND) -> None:
    """In bf16, with a compiled backbone if it can be, and with CAR, a run that is stopped and resumed ends as the
    uninterrupted one, bit for bit."""
    whole = _config(method, folder / "whole", "bf16", compile=_compiles(method, folder))
    with compiling_by(backend):
        steps = sum(train(whole)["phases"].values())
    cut = replace(whole, output=folder / "cut", checkpoint_every=1)
    for resume in (False, True):
        with compiling_by(backend), suppress(Stop):  # each as in a process of its own
            torch.manual_seed(987)
            train(cut, resume=resume, reporter=None if resume else StopAfter(steps // 2))
    assert_same(whole.output, cut.output, f"in bfloat16, compiled and resumed after step {steps // 2}")


def _check_refused(config: TrainConfig) -> None:
    refused = False
    try:
        begun(config)
    except ValueError:
        refused = True
    assert refused, "the method says that it cannot be compiled, and --compile is not refused"


@contextmanager
def compiling_by(backend: str) -> Iterator[None]:
    """Another backend of torch.compile, and nothing left of what was compiled before or in here."""
    usual, hardware.BACKEND = hardware.BACKEND, backend
    torch._dynamo.reset()
    try:
        yield
    finally:
        hardware.BACKEND = usual
        torch._dynamo.reset()


def course(config: TrainConfig, stage: int) -> Course:
    """A few steps of the first and the last epoch of a stage."""
    trainer = begun(config, stage)
    run, losses, kinds = trainer.stage, list[float](), set[torch.dtype]()
    _note_kinds(trainer.method, kinds)
    before = torch._dynamo.utils.counters["frames"]["ok"]
    torch.manual_seed(config.seed)
    for epoch in sorted({0, run.step.epochs - 1}):
        run.step.epoch, run.step.index = epoch, epoch * run.per_epoch
        for loader in run.loaders.values():
            loader.rewind(epoch)
        trainer.method.begin_epoch(run.step)
        for _, (group, images) in zip(range(STEPS), run.groups(), strict=False):
            run.sums, run.counted = {}, {}
            trainer.optimise(group, images)
            losses += [float(run.sums[name]) / run.counted[name] for name in ("loss", "car") if name in run.sums]
    assert trainer.car_term is not None
    state = {**run.learner.state_dict(), **trainer.car_term.state_dict(prefix="car.")}
    state = {name: value for name, value in state.items() if torch.is_tensor(value)}
    return Course(losses, state, kinds, torch._dynamo.utils.counters["frames"]["ok"] - before)


def _note_kinds(method: Method, kinds: set[torch.dtype]) -> None:
    """Where the engine makes float32 of whatever a method gives."""
    loss = method.loss

    def noted(model: Classifier, batches: Batches, step: Step) -> Outcome:
        outcome = loss(model, batches, step)
        kinds.add(outcome.loss.dtype)
        return outcome

    method.loss = noted  # type: ignore[method-assign]


def _compiles(method: str, folder: Path) -> bool:
    return begun(_config(method, folder / "asked")).method.compiles


def _stages(method: str, folder: Path) -> int:
    return len(begun(_config(method, folder / "stages")).stages)


def _config(method: str, output: Path, precision: str = "no", compile: bool = False) -> TrainConfig:
    """By SGD and with small steps, so that differences stay what they are."""
    optim: dict[str, Any] = {"optimizer": "sgd", "lr": 0.01, "precision": precision}
    return settings(method, output, optim=optim, car={"enabled": True}, hardware={"compile": compile})
