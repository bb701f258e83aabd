"""``PYTHON``: in place of ``sys.executable``, wherever a test needs a process but no fresh interpreter.

It starts in a hundredth of a second, with everything imported already (see `fork_server.py`). Where an interpreter of
its own is the point (what an import brings with it, warnings, how Python ends), a test uses ``sys.executable``.
"""

import os
import signal
import socket
import subprocess

import pytest

PYTHON = os.environ["SPECTAIL_FORKED_PYTHON"]
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def environment(**variables):
    """That of a process that works on its own with one thread, and variables."""
    found = {name: value for name, value in os.environ.items() if name not in LAUNCHED} | {"OMP_NUM_THREADS": "1"}
    if "lo" in {name for _, name in socket.if_nameindex()}:
        found["GLOO_SOCKET_IFNAME"] = "lo"  # whatever the machine is called
    return found | {name: str(value) for name, value in variables.items()}


def python(*words, timeout=120, **variables):
    """Output of ``python WORDS``, which must end well and in time."""
    process = subprocess.Popen(
        [PYTHON, *map(str, words)], env=environment(**variables),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # torchrun then ends its processes
        try:
            out, err = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        pytest.fail(f"not done after {timeout} s:\n{out[-2000:]}{err[-6000:]}")
    if process.returncode:
        pytest.fail(f"exit code {process.returncode}:\n{out[-2000:]}{err[-6000:]}")
    return out


def torchrun(*words, **options):
    """The same in two processes that work together, started by torchrun."""
    return python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words, **options)
