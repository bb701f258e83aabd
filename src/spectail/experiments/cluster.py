"""Runs as tasks of a Ray cluster: Ray decides which node has room, the driver keeps what comes back."""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._utils.errors import one_line
from .._utils.files import whole_file
from .._utils.versions import pip_install
from ..training.run_folder import RunFolder
from .engines import EngineOptions, Listening, Say, Stopped
from .task import Outcome, Task

ANSWER = 10.0
"""Seconds that a cluster may take to answer."""
AHEAD = 4
"""Runs that wait in Ray's own queue, where an autoscaler sees that there is more to do."""
AGAIN = 15.0
"""Seconds after which a run that was told to stop is told again: a worker that is busy may not hear it."""
INSTALL = f"--engine ray needs Ray: {pip_install('cluster')}."
Answer = tuple[str, str, Outcome | str, dict[str, bytes] | None]
"""Node and its host, the outcome or why the node cannot be used, and the files of a run that it has on its own disk."""


class RayEngine:
    """A Ray task for each run. What a node writes on a disk of its own is sent back and written by the driver."""

    def __init__(self, options: EngineOptions, device: str, say: Say) -> None:
        self.options, self.say = options, say
        self.ray = _connect(options.address)
        self.unfit: dict[str, set[str]] = {}
        """Nodes that cannot be used: for every run (the key ""), or for those on some data or with some weights."""
        self.cpus = max(options.cpus_per_run, options.processes) if options.processes > 1 else options.cpus_per_run
        gpus = options.gpus_per_run
        if gpus is None:
            has_any = self.ray.cluster_resources().get("GPU", 0) > 0
            gpus = options.processes if has_any and device.partition(":")[0] in ("auto", "cuda") else 0
        self.gpus = max(gpus, options.processes) if gpus and options.processes > 1 else gpus
        self.threads = options.threads or max(1, int(self.cpus) // options.processes)
        self.is_waiting = False

    def carry_out(self, waiting: deque[Task], begun: Callable[[Task], None]) -> Iterator[tuple[Task, Outcome]]:
        running: dict[Any, Task] = {}
        marks: dict[Path, Path] = {}
        told = 0.0
        with Listening() as signals:
            try:
                while running or (waiting and signals.heard is None):
                    room = self._room()
                    while waiting and len(running) < room + AHEAD and signals.heard is None:
                        task = waiting.popleft()
                        running[self._submit(task, marks)] = task
                        begun(task)
                    if signals.heard is not None and time.monotonic() - told > AGAIN:
                        told = time.monotonic()
                        for reference in running:
                            self.ray.cancel(reference)  # it saves itself
                    self._say_no_room(room)
                    ready, _ = self.ray.wait(list(running), num_returns=1, timeout=0.5)
                    for reference in ready:
                        task = running.pop(reference)
                        outcome = self._ended(task, reference)
                        if outcome is None:
                            waiting.appendleft(task)
                        else:
                            yield task, outcome
            finally:
                for reference in running:
                    self.ray.cancel(reference, force=True)
                for mark in marks.values():
                    mark.unlink(missing_ok=True)
        if signals.heard is not None:
            raise Stopped(signals.heard)

    def _submit(self, task: Task, marks: dict[Path, Path]) -> Any:
        folder = task.config.output if task.words else task.config.output.parent
        if folder not in marks:  # a node that sees this file shares the folder
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(".driver-*"):  # of a driver that was killed
                old.unlink(missing_ok=True)
            marks[folder] = folder.absolute() / f".driver-{secrets.token_hex(8)}"
            marks[folder].touch()
        others = self._unfit_for(task)
        elsewhere = {"ray.io/node-id": f"!in({','.join(sorted(others))})"} if others else None
        remote = self.ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0, label_selector=elsewhere)
        whole = replace(task, threads=self.threads, config=replace(task.config, output=task.config.output.absolute()))
        whole = whole.on_cores(int(self.cpus))
        return remote(_for_nodes(task.code)).remote(pickle.dumps(whole), str(marks[folder]), os.getcwd())

    def _ended(self, task: Task, reference: Any) -> Outcome | None:
        """What came of a task; None if its node cannot be used for it and another one may."""
        try:
            answer: Answer = self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            return Outcome("stopped")
        except self.ray.exceptions.RayTaskError as error:  # before the run began
            return Outcome("failed", error=one_line(error.cause))
        except self.ray.exceptions.RayError as error:  # the process or the node died, or ran out of memory
            return Outcome("died", error=str(error).strip().splitlines()[0])
        node, host, outcome, files = answer
        if isinstance(outcome, str) or outcome.status in ("no data", "no weights"):
            why, needs = (outcome, "") if isinstance(outcome, str) else (outcome.error, _needs(task, outcome))
            known = self.unfit.setdefault(needs, set())
            if node not in known:
                known.add(node)
                self.say(f"node {host} is not used{' for such runs' * bool(needs)}: {why}")
            if self._fit(self._unfit_for(task)):
                return None
            if isinstance(outcome, str):
                raise ValueError(f"no node of the cluster can carry out runs; {host}: {why}")
        elif files is not None:
            outcome = self._kept(task, outcome, files)
            if task.attempt > 1:
                self.say(f"{task.title}: node {host} does not share the folder of the runs, so it began anew there")
        return outcome

    def _kept(self, task: Task, outcome: Outcome, files: dict[str, bytes]) -> Outcome:
        """Write the files of a run that ended on the disk of a node, results.json last: it says that all are there."""
        folder = task.folder(outcome.identity)
        for name in sorted(files, key=lambda name: name == "results.json"):
            with whole_file(folder / name) as temporary:
                temporary.write_bytes(files[name])
        run = RunFolder(folder)
        run.rewrite_config(replace(run.config(), output=folder))
        return replace(outcome, folder=str(folder.absolute()))

    def _unfit_for(self, task: Task) -> set[str]:
        needs = ("", _needs(task, Outcome("no data")), _needs(task, Outcome("no weights")))
        return {node for need in needs for node in self.unfit.get(need, ())}

    def _fit(self, unfit: Collection[str] = ()) -> list[dict[str, Any]]:
        """Nodes of this moment that are large enough for a run."""
        alive = [node for node in self.ray.nodes() if node["Alive"] and node["NodeID"] not in unfit]
        return [node for node in alive if self._fits(node)]

    def _fits(self, node: dict[str, Any]) -> int:
        """How many runs a node has room for."""
        has = node["Resources"]
        needs = [(kind, need) for kind, need in (("CPU", self.cpus), ("GPU", self.gpus)) if need]
        return min((int(has.get(kind, 0.0) / need) for kind, need in needs), default=1)

    def _room(self) -> int:
        return sum(map(self._fits, self._fit(self.unfit.get("", ()))))

    def _say_no_room(self, room: int) -> None:
        if room == 0 and not self.is_waiting:
            self.is_waiting = True
            self.say(f"no node has the {self.cpus:g} CPUs and {self.gpus:g} GPUs that a run needs; waiting for one. "
                     "--cpus-per-run and --gpus-per-run ask for less.")  # fmt: skip


def _needs(task: Task, outcome: Outcome) -> str:
    """What a node lacks that could not carry a task out."""
    return repr(task.config.data) if outcome.status == "no data" else f"weights of {task.config.model.model}"


def _for_nodes(code: str) -> Callable[..., Answer]:
    """The task's function. Ray sends one that is made here as code, so that it runs where spectail is not installed."""

    def on_node(task: bytes, mark: str, folder: str) -> Answer:
        import contextlib  # noqa: PLC0415
        import os  # noqa: PLC0415
        import socket  # noqa: PLC0415

        import ray  # noqa: PLC0415

        here = ray.get_runtime_context().get_node_id(), socket.gethostname()
        try:
            from spectail.experiments.node import train_on_node  # noqa: PLC0415
            from spectail.experiments.runs import code_version  # noqa: PLC0415
        except ImportError as error:
            return *here, f"it lacks the package {error.name}; install spectail[train] there.", None
        if code_version() != code:
            return *here, f"its spectail is {code_version()} and the driver's {code}; install the same one.", None
        with contextlib.suppress(OSError):  # paths are meant as from the folder of the driver, where the node has it
            os.chdir(folder)
        return *here, *train_on_node(task, mark)

    return on_node


def _connect(address: str) -> Any:
    """Ray, connected; a sentence where no cluster answers, at once: Ray itself would try for minutes."""
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        raise ValueError(INSTALL) from None
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdigit()):
        raise ValueError(f"--address must be HOST:PORT or auto; got {address!r}.")
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), timeout=ANSWER / 2).close()
        subprocess.run(status, timeout=ANSWER, check=True, capture_output=True)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except (OSError, subprocess.SubprocessError):  # Ray's ConnectionError is one of the first
        where = "on this machine" if address == "auto" else f"at {address}"
        raise ValueError(
            f"no Ray cluster answers {where}; `ray start --head` starts one, and `ray start --address=HOST:PORT` "
            "lets a machine join it."
        ) from None
    except RuntimeError as error:  # another version of Ray or Python
        raise ValueError(f"the Ray cluster at {address} cannot be used: {' '.join(str(error).split())}") from None
    return ray
