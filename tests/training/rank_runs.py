"""Runs on ranks, one after the other."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from training.guarded import guarded
from training.runs import Stop, StopAt, register, settings

from spectail.training.config_io import from_dict
from spectail.training.heads import train_head
from spectail.training.loop import train
from spectail.training.reporter import Reporter


class Signal(Reporter):
    """The first process alone hears a signal at a step."""

    def __init__(self, at):
        self.at = at if os.environ["RANK"] == "0" else -1

    def step(self, done, figures):
        if done == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def train_all(jobs):
    """A folder and settings for each; ``stop``, ``resume``, ``signal`` and ``guarded`` say what happens to a run."""
    register()
    for output, changes in jobs:
        happens = {name: changes.get(name) for name in ("stop", "resume", "signal", "guarded")}
        config = settings(output, **{name: value for name, value in changes.items() if name not in happens})
        signal_at = happens["signal"]
        reporter = Signal(signal_at) if signal_at is not None else StopAt(steps=happens["stop"])
        try:
            with (
                pytest.MonkeyPatch.context() as patch,
                guarded(patch, free=2) if happens["guarded"] else nullcontext(),
            ):  # DDP settles
                train(config, resume=bool(happens["resume"]), reporter=reporter)
        except Stop:
            continue
        except Exception as error:
            if signal_at is None:
                raise
            (Path(output) / f"left-{os.environ['RANK']}").write_text(type(error).__name__)


def head_alone(method):
    """The logits of a head that each rank trains by itself; the second one has trained another before."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), [40, 20, 6])
    features = torch.from_numpy(random.normal(size=(66, 5)).astype(np.float32))
    config = from_dict({"method": method, "device": "cpu", "optim": {"batch_size": 16}})
    for _ in range(1 + (os.environ["RANK"] == "1")):
        head = train_head(features, labels, ["a", "b", "c"], config, 20)
    return head.logits(features).tolist(), head.loss(features, torch.from_numpy(labels))
