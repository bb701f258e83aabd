"""A Ray cluster on this machine: each node a group of processes with a folder and an address of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ray.scripts import scripts

TESTS = Path(__file__).parents[1]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    """``address`` is the head's. :meth:`start` starts nodes, :meth:`kill` ends one and :meth:`end` all."""

    def __init__(self, folder):
        self.folder, self.nodes = folder, []
        self.address = f"127.0.0.1:{free_port()}"
        self.sockets = tempfile.TemporaryDirectory(prefix="ray-")  # short: the address of a socket has 107 characters

    def start(self, cpus=1, path=()):
        """One more node, the first one the head; workers look for packages in ``path`` first."""
        number = len(self.nodes) + 1
        own = self.folder / f"node{number}"
        own.mkdir(exist_ok=True)
        words = ["start", "--block", f"--num-cpus={cpus}", f"--node-ip-address=127.0.0.{number}",
                 "--object-store-memory=80000000", "--disable-usage-stats"]  # fmt: skip
        if number == 1:
            words += ["--head", f"--port={self.address.partition(':')[2]}", "--include-dashboard=false",
                      f"--temp-dir={self.sockets.name}"]  # fmt: skip
        else:
            words += [f"--address={self.address}"]
        paths = [*map(str, path), str(TESTS / "experiments"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0",
                                    "OMP_NUM_THREADS": "1", "NODE_FOLDER": str(own)}  # fmt: skip
        with (own / "log").open("w") as log:
            node = subprocess.Popen([sys.executable, scripts.__file__, *words], cwd=own, env=environment, stdout=log,
                                    stderr=log, start_new_session=True)  # fmt: skip
        self.nodes.append(node)
        deadline = time.time() + 60
        while "--block" not in (own / "log").read_text():  # it says so once the node runs
            assert node.poll() is None, (own / "log").read_text()
            assert time.time() < deadline, (own / "log").read_text()
            time.sleep(0.1)
        return node

    def kill(self, node):
        """The whole machine, without a word."""
        for pid in processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def end(self):
        for node in reversed(self.nodes):
            self.kill(node)
        self.sockets.cleanup()


def processes(node):
    """All processes of a node: those of its session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(process.name)) == node.pid:
                found.append(int(process.name))
    return found
