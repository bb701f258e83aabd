"""Other processes, with a hard limit on their time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


def launch(*arguments, seconds=400, cwd=None, **environment):
    """Run Python and return what it printed; a job that hangs or fails fails the test with its last lines."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], env={**inherited, "OMP_NUM_THREADS": "1", **environment}, cwd=cwd,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # torchrun then ends its ranks, which are not in its process group
        try:
            output, _ = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        pytest.fail(f"not done after {seconds} s:\n{output[-6000:]}")
    if process.returncode:
        pytest.fail(f"exit code {process.returncode}:\n{output[-6000:]}")
    return output


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
