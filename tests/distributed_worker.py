"""Trains small models and tells what came out: on two ranks if there are any, else on one process.

See test_distributed.py.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from no_waits import NoWaits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spectail import CARLoss, MixedTarget

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
FEATURES, LR = 8, 0.2
COLLECTIVES = ("all_reduce", "reduce", "broadcast", "gather", "all_gather", "all_gather_into_tensor", "all_to_all")


@dataclass(frozen=True)
class Case:
    """A training run; the batches are the same however many ranks there are."""

    classes: int = 20
    steps: int = 12
    batch: int = 32
    cut: tuple[int, ...] = (16,)  # samples of rank 0, step by step; the other rank has the rest
    micro: int = 1  # micro-batches per optimiser step
    labels: str = "hard"  # "mixed", "soft", "halves" (soft, in bfloat16), "either" (rank 0 hard, rank 1 mixed)
    separate: bool = False  # rank 0 has the classes below K / 2, rank 1 the others
    late: bool = False  # class 0 first appears at step 5
    ignored: str = ""  # "some" or "all" of the samples of rank 1, at every second step; or "everything" of both ranks
    bad: str = ""  # what rank 1 is given half way: "nan", "label" or "shape"
    probe: bool = False  # rank 0 alone calls CAR half way
    save: bool = False  # rank 0 saves its state half way
    guarded: bool = False  # after the first step, nothing may wait for a value
    dtype: torch.dtype = torch.float64
    preset: str = "batch"
    options: dict[str, Any] = field(default_factory=dict)


FIXED = {"solver": "fixed"}
CASES = {
    "batch": Case(),
    "classwise": Case(preset="classwise"),
    "alone": Case(options={"sync": False}),
    "ragged": Case(cut=(20, 32, 12, 0)),
    "ragged-classwise": Case(cut=(20, 32, 12, 0), preset="classwise"),
    "ragged-mixed": Case(cut=(20, 32, 12, 0), labels="mixed"),
    "separate": Case(separate=True),
    "separate-classwise": Case(separate=True, preset="classwise"),
    "mixed": Case(labels="mixed"),
    "mixed-classwise": Case(labels="mixed", preset="classwise"),
    "mixed-one-rank": Case(labels="either", preset="classwise"),
    "soft": Case(labels="soft", cut=(20,)),
    "soft-classwise": Case(labels="soft", preset="classwise"),
    "soft-bfloat16": Case(labels="halves", classes=6, steps=4, batch=560, cut=(303,)),
    "ignored": Case(ignored="some"),
    "ignored-mixed": Case(ignored="some", labels="mixed"),
    "ignored-rank": Case(ignored="all"),
    "ignored-everywhere": Case(ignored="everything"),
    "ignored-everywhere-mixed": Case(ignored="everything", labels="mixed", preset="worst"),
    "accumulated": Case(micro=2, cut=(16, 10)),
    "accumulated-classwise": Case(micro=2, cut=(16, 10), preset="classwise"),
    "live": Case(classes=2100, steps=10, dtype=torch.float32, options={"beta": 0.1}),
    "first": Case(options={"ema_start": "first"}),
    "first-classwise": Case(options={"ema_start": "first"}, preset="classwise", late=True),
    "first-ignored": Case(options={"ema_start": "first"}, preset="classwise", late=True, ignored="some"),
    "squared": Case(classes=100),
    "squared-classwise": Case(classes=100, preset="classwise"),
    "many": Case(classes=500, steps=10),
    "fixed": Case(options=FIXED, guarded=True),
    "fixed-classwise": Case(options=FIXED, preset="classwise", guarded=True),
    "fixed-ragged": Case(options=FIXED, cut=(20, 12, 30, 1), guarded=True),
    "fixed-separate": Case(options=FIXED, separate=True, preset="classwise", guarded=True),
    "fixed-mixed": Case(options=FIXED, labels="mixed", preset="classwise", guarded=True),
    "fixed-soft": Case(options=FIXED, labels="soft", cut=(20,), guarded=True),
    "fixed-ignored": Case(options=FIXED, ignored="some", guarded=True),
    "fixed-ignored-rank": Case(options=FIXED, ignored="all", guarded=True),
    "fixed-ignored-everywhere": Case(options=FIXED, ignored="everything", guarded=True),
    "fixed-first": Case(options=FIXED | {"ema_start": "first"}, preset="classwise", late=True, guarded=True),
    "fixed-accumulated": Case(options=FIXED, micro=2, cut=(16, 10), guarded=True),
    "fixed-many": Case(classes=500, steps=10, options=FIXED, guarded=True),
    "worst": Case(preset="worst"),
    "worst-batch": Case(options={"norm": "worst"}, cut=(20, 32, 12, 0)),
    "worst-mixed": Case(preset="worst", labels="mixed", cut=(20, 12), late=True),
    "worst-soft": Case(preset="worst", labels="soft", cut=(20,)),
    "worst-ignored": Case(preset="worst", ignored="some", late=True),
    "worst-many": Case(preset="worst", classes=500, steps=6),
    "fixed-worst": Case(options=FIXED, preset="worst", cut=(20, 12, 30, 1), late=True, guarded=True),
    "fixed-worst-mixed": Case(options=FIXED, preset="worst", labels="mixed", ignored="some", guarded=True),
    "nan": Case(bad="nan", preset="classwise"),
    "nan-worst": Case(bad="nan", preset="worst"),
    "label": Case(bad="label"),
    "shape": Case(bad="shape"),
    "one-rank": Case(probe=True, preset="classwise"),
    "saved": Case(save=True),
    "saved-classwise": Case(save=True, preset="classwise", classes=100),
    "saved-worst": Case(save=True, preset="worst"),
}


def draw(case: Case, turn: int, rank: int, world: int) -> tuple[Tensor, Any]:
    """Inputs and labels of this rank's part of a global batch."""
    random = torch.Generator().manual_seed(turn)
    cut = case.cut[turn % len(case.cut)]
    x = torch.randn(case.batch, FEATURES, generator=random, dtype=case.dtype)
    a, b = torch.randint(case.classes, (2, case.batch), generator=random)
    lam = torch.rand(case.batch, generator=random, dtype=case.dtype)
    if case.separate:
        a = a % (case.classes // 2)
        a[cut:] += case.classes // 2
    if case.late and turn < 5:
        a = a.clamp_min(1)
    if case.ignored and turn % 2:
        out = slice(0 if case.ignored == "everything" else cut, None, 3 if case.ignored == "some" else 1)
        a[out] = b[out] = -100
    mine = slice(None) if world == 1 else slice(cut) if rank == 0 else slice(cut, None)
    if case.labels in ("soft", "halves"):
        share = 0.5 if case.labels == "halves" else lam[:, None]
        soft = share * nn.functional.one_hot(a, case.classes) + (1 - share) * nn.functional.one_hot(b, case.classes)
        return x[mine], soft[mine].to(torch.bfloat16 if case.labels == "halves" else case.dtype)
    if case.labels == "either":
        lam[:cut] = 1
    if case.labels == "hard" or (case.labels == "either" and world > 1 and rank == 0):
        return x[mine], a[mine]
    return x[mine], MixedTarget(a[mine], b[mine], lam[mine])


class Run:
    """A model and a loss in training."""

    def __init__(self, case: Case, rank: int, world: int) -> None:
        torch.manual_seed(0)
        self.case, self.rank, self.world, self.turn = case, rank, world, 0
        self.net = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, case.classes)).to(case.dtype)
        self.model = DistributedDataParallel(self.net) if world > 1 else self.net
        counts = [1000 // (j + 1) + 1 for j in range(case.classes)]
        make = CARLoss if case.preset == "batch" else getattr(CARLoss, case.preset)
        options = dict(case.options)
        if case.bad and world > 1:  # a rank left waiting gets an error within seconds
            options["sync"] = dist.new_group(timeout=timedelta(seconds=5))
        self.criterion = make(counts, **options)
        self.optimizer = torch.optim.SGD(self.net.parameters(), LR)
        self.result: dict[str, Any] = {"car": [], "base": []}

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            for micro in range(self.case.micro):
                waits = self.world > 1 and micro + 1 < self.case.micro
                x, target = draw(self.case, self.turn, self.rank, self.world)
                with self.model.no_sync() if waits else contextlib.nullcontext():
                    logits = self.model(x)
                    with NoWaits() if self.case.guarded and self.turn else contextlib.nullcontext():
                        loss = self.criterion(logits, target) / self.case.micro
                    loss.backward()
                self.turn += 1
                for name in ("car", "base"):
                    self.result[name].append(float(self.criterion.parts[name]))
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        states = {"net": self.net.state_dict(), "criterion": self.criterion.state_dict(), "turn": self.turn}
        return {name: _copy(state) for name, state in states.items()}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.criterion.load_state_dict(state["criterion"])
        self.turn = state["turn"]

    def finish(self) -> dict[str, Any]:
        self.result["parameters"] = torch.cat([p.detach().flatten() for p in self.net.parameters()])
        car = self.criterion.car
        self.result["confusion"] = car.confusion if car.norm == "spectral" else car.errors
        self.result["step"] = int(self.criterion.step)
        return self.result

    def refuse(self) -> bool:
        """Give rank 1 a bad batch and say whether both ranks noticed: if not, they are out of step."""
        before = self.state()
        x, target = draw(self.case, 1000, self.rank, self.world)
        extra = 0
        if self.rank == 1 and self.case.bad == "nan":
            x[3] = float("nan")
        elif self.rank == 1 and self.case.bad == "label":
            target[3] = self.case.classes
        elif self.rank == 1:
            extra = 1
        error = "nothing"
        try:
            self.criterion(nn.functional.pad(self.model(x), (0, extra)), target)
        except (ValueError, RuntimeError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        errors = [""] * self.world
        dist.all_gather_object(errors, error)  # also waits for the other rank, in a group that still works
        self.result["errors"] = errors
        self.result["unchanged"] = _same(before, self.state())
        return errors[0].startswith("RuntimeError: another rank refused") and errors[1].startswith("ValueError")

    def probe(self) -> None:
        """Call CAR on this rank only: in evaluation for its value, and for its gradient."""
        before = self.state()
        x, target = draw(self.case, 1000, 0, 1)
        logits = self.net(x).detach().requires_grad_()
        self.criterion.eval()
        value = self.criterion.car(logits, target, sync=False)
        (gradient,) = torch.autograd.grad(value, logits)
        self.criterion.train()
        self.result["probe"] = torch.cat([value.detach().reshape(1), gradient.flatten()])
        self.result["unchanged"] = _same(before, self.state())


def train(name: str, folder: Path) -> dict[str, Any]:
    case = CASES[name]
    run = Run(case, RANK, WORLD)
    if case.save and WORLD == 1:
        run.load(torch.load(folder / f"{name}.pt"))
    else:
        run.steps(case.steps // 2)
    if case.bad and WORLD > 1 and not run.refuse():
        return run.finish()
    if case.probe and RANK == 0:
        run.probe()
    if case.save and WORLD > 1 and RANK == 0:
        torch.save(run.state(), folder / f"{name}.pt")
    run.steps(case.steps - case.steps // 2)
    return run.finish()


def refused_later(preset: str) -> dict[str, Any]:
    """On the fixed path nobody waits for a verdict: the rank that refuses raises, for the others the batch is empty."""
    run = Run(Case(options=FIXED, preset=preset), RANK, WORLD)
    run.steps(2)
    before = run.state()
    x, target = draw(run.case, 1000, RANK, WORLD)
    logits = run.net(x).detach().requires_grad_()
    try:
        value = run.criterion.car(nn.functional.pad(logits, (0, RANK)), target)
        error = f"value {float(value.detach())}, gradient {float(torch.autograd.grad(value, logits)[0].abs().max())}"
    except ValueError as raised:
        error = str(raised)
    errors = [""] * WORLD
    dist.all_gather_object(errors, error)
    return {"errors": errors, "unchanged": _same(before, run.state())}


def more_labels() -> dict[str, Any]:
    """A batch larger than the first one: the classes that have no slot are left out, on every rank alike."""
    car = CARLoss([5] * 500, **FIXED).car
    car(torch.zeros(2, 500), torch.tensor([2 * RANK, 2 * RANK + 1]))
    random = torch.Generator().manual_seed(RANK)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        car(torch.randn(40, 500, generator=random), torch.arange(RANK, 80, 2))
    return {"warned": [str(one.message) for one in warned], "confusion": car.confusion}


def after_the_job() -> dict[str, float]:
    """One loss used on uneven batches by two ranks and then by a process alone."""
    run = Run(CASES["ragged"], RANK, WORLD)
    run.steps(1)
    dist.destroy_process_group()
    x, target = draw(CASES["ragged"], 0, 0, 1)
    logits = run.net(x).detach()
    run.criterion(logits, target)
    return {"found": float(run.criterion.parts["base"]), "right": float(nn.functional.cross_entropy(logits, target))}


@contextlib.contextmanager
def watch() -> Iterator[list[int]]:
    """Record how many numbers each collective moves."""
    sizes: list[int] = []

    def recorded(collective: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            flat = [item for value in given for item in (value if isinstance(value, list) else [value])]
            sizes.append(sum(item.numel() for item in flat if isinstance(item, Tensor)))
            return collective(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in COLLECTIVES:
            patch.setattr(dist, name, recorded(getattr(dist, name)))
        yield sizes


def _copy(state: Any) -> Any:
    return {name: value.clone() for name, value in state.items()} if isinstance(state, dict) else state


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(torch.equal(a[part][key], b[part][key]) for part in ("net", "criterion") for key in a[part])


def train_all(folder: Path) -> dict[str, Any]:
    """All cases, on every rank; the one that saves its state does so in the folder."""
    results: dict[str, Any] = {}
    with warnings.catch_warnings(), watch() as sizes:
        warnings.simplefilter("error")
        for name in CASES:
            sizes.clear()
            results[name] = train(name, folder)
            results[name]["sizes"] = list(sizes)
        if WORLD > 1:
            results["refused later"] = refused_later("classwise")
            results["refused later, worst"] = refused_later("worst")
            results["more labels"] = more_labels()
            results["after the job"] = after_the_job()
    return results
