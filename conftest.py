"""What every test and doctest shares: a cache that goes with the session, and a server that forks processes."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# Tests that need Chromium, a cluster, a C++ compiler or heavy frameworks run only when a target of the Makefile asks
collect_ignore = [] if os.environ.get("SPECTAIL_BROWSER") else ["tests/browser"]
collect_ignore += [] if os.environ.get("SPECTAIL_AXE") else ["tests/browser/test_access.py"]
collect_ignore += [] if os.environ.get("SPECTAIL_CLUSTER") else ["tests/cluster"]
collect_ignore += [] if os.environ.get("SPECTAIL_COMPILE") else ["tests/compile"]
if not os.environ.get("SPECTAIL_INTEGRATIONS"):
    collect_ignore += ["tests/integrations", "src/spectail/integrations"]
collect_ignore_glob = ["tests/*/conftest.py"]  # they have one name, and nothing to collect
FORK_SERVER = Path(__file__).parent / "tests/fork_server.py"
MEMORY, ENOUGH = Path("/dev/shm"), 4 << 30


def pytest_configure(config):
    worker = hasattr(config, "workerinput")  # of xdist
    if worker:
        sys.executable = os.environ["SPECTAIL_FRESH_PYTHON"]
    else:
        if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # thousands of small files, each one synced
        start_fork_server(config)
    if worker or not config.getoption("numprocesses", None):  # the process that hands out the tests needs no torch
        import torch  # noqa: PLC0415

        # One thread: results repeat, and small matrices are faster. SPECTAIL_THREADS asks for more.
        torch.set_num_threads(int(os.environ.get("SPECTAIL_THREADS", "1")))
        gc.disable()


def pytest_collection_finish(session):
    """What is imported and collected stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # there is memory enough to look less often, too
    gc.enable()


def start_fork_server(config):
    """One server and one cache for all workers of xdist, which it forks, and for what they start."""
    folder = tempfile.mkdtemp(prefix="forks-")  # short: the address of a socket has at most 107 characters
    os.environ["SPECTAIL_FRESH_PYTHON"] = sys.executable
    os.environ["SPECTAIL_FORKED_PYTHON"] = f"{folder}/python"
    os.environ["SPECTAIL_CACHE"] = f"{folder}/cache"  # never the user's own
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["OMP_WAIT_POLICY"] = "passive"  # more threads than cores, with SPECTAIL_THREADS, must not spin
    server = subprocess.Popen(
        [sys.executable, str(FORK_SERVER), folder], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert server.stdout.readline() == b"ready\n"
    if config.getoption("numprocesses", None) and not os.environ.get("SPECTAIL_INTEGRATIONS"):
        config.option.tx = [f"popen//python={folder}/python"] * len(config.option.tx)

    def end():
        server.communicate(b"end", timeout=60)  # a worker of a loader that is still there may hold the pipe open
        shutil.rmtree(folder)

    config.add_cleanup(end)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """Two processes that work together, for all tests: ``ranks(function, *arguments)``."""
    from rank_pool import Ranks  # noqa: PLC0415

    pool = Ranks(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.stop()
