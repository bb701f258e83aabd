"""A method on two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from ..models.weights import read_weights
from ..training.config import TrainConfig
from ..training.loop import train
from .runs import settings


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
    train(shared_run(method, folder / "one"))
    one, two = (read_weights(folder / name) for name in ("one", "two"))
    assert one.keys() == two.keys(), "two processes leave other weights than one"
    for name, value in one.items():
        close = torch.allclose(two[name].float(), value.float(), rtol=1e-4, atol=2e-5)
        assert close, f"{name} of two processes differs from that of one"
    alone, both = (json.loads((folder / name / "results.json").read_text())["phases"] for name in ("one", "two"))
    assert alone == both, f"the phases of two processes are {both}, of one {alone}"


def shared_run(method: str, output: Path) -> TrainConfig:
    """By SGD: Adam would make a large step of a rounding error in a small gradient."""
    return settings(method, output, optim={"optimizer": "sgd", "lr": 0.05}, eval_train=False)
