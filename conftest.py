"""What every test and doctest shares: a cache that goes with the session, and a server that forks processes."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Tests that need Chromium or heavy frameworks run only when asked for: make test-browser, make test-integrations
collect_ignore = [] if os.environ.get("SPECTAIL_BROWSER") else ["tests/browser"]
if not os.environ.get("SPECTAIL_INTEGRATIONS"):
    collect_ignore += ["tests/integrations", "src/spectail/integrations"]
FORK_SERVER = Path(__file__).parent / "tests/fork_server.py"


def pytest_configure(config):
    """One fork server and one cache for all workers of xdist, which inherit their names."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="forks-")  # short: the address of a socket has at most 107 characters
    os.environ["SPECTAIL_FORKED_PYTHON"] = f"{folder}/python"
    os.environ["SPECTAIL_CACHE"] = f"{folder}/cache"  # never the user's own
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, str(FORK_SERVER), folder], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert server.stdout.readline() == b"ready\n"

    def end():
        server.communicate(b"end", timeout=60)  # a worker of a loader that is still there may hold the pipe open
        shutil.rmtree(folder)

    config.add_cleanup(end)
