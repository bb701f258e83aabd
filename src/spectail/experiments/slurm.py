"""Many workers that share one result store: as processes of this machine, or as a Slurm array on many."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

WARNING = 120
"""Seconds before the time limit at which a worker is told to stop: time to save and to give its cell back."""


def array_script(
    command: Sequence[str], *, count: int, hours: float, gpus: int, cpus: int, partition: str | None, processes: int,
    share: int | None = None,
) -> str:  # fmt: skip
    """A script for ``sbatch`` whose tasks all run the same worker command.

    The tasks need no task number of their own: each takes free cells from the store until none is left, so a task that
    starts late, or never, leaves no gap. With several processes the command is started by ``torchrun``.

    Args:
        command: the worker and its arguments; its store must be one that several machines can share.
        count: number of tasks.
        hours: time limit of a task.
        gpus: GPUs per task; 0 for none.
        cpus: cores per task.
        partition: where to queue; None for the cluster's default.
        processes: per task, one GPU each where there are GPUs.
        share: how many processes share the cores of a task, where the command starts them itself.

    >>> text = array_script(["spectail", "experiment", "run", "lt-main", "--store", "journal:/shared/lt main.log"],
    ...                     count=8, hours=1.5, gpus=1, cpus=4, partition=None, processes=1)
    >>> [line for line in text.splitlines() if "array" in line or "time" in line]
    ['#SBATCH --array=0-7', '#SBATCH --time=0-01:30:00']
    >>> text.splitlines()[-1]
    "exec spectail experiment run lt-main --store 'journal:/shared/lt main.log'"
    """
    _check(command, count, hours, gpus, cpus, partition, processes)
    minutes = max(1, round(hours * 60))
    limit = f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
    options = ["job-name=spectail", f"array=0-{count - 1}", f"time={limit}", "nodes=1", "ntasks=1"]
    options += [f"cpus-per-task={cpus}", f"signal=B:TERM@{WARNING}", "output=spectail-%A_%a.log", "open-mode=append"]
    options += [f"gres=gpu:{gpus}"] if gpus else []
    options += [f"partition={partition}"] if partition else []
    words = list(command)
    if processes > 1:
        # the torchrun that belongs to the command, if its place is told; --standalone finds a free port by itself
        torchrun = os.path.join(os.path.dirname(words[0]), "torchrun")
        words = [torchrun, "--standalone", f"--nproc-per-node={processes}", "--no-python", *words]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{option}" for option in options),
        "",
        "set -eu",
        f"export OMP_NUM_THREADS={max(1, cpus // (share or processes))}",
        'echo "task ${SLURM_ARRAY_TASK_ID:?this script is for sbatch} on $(uname -n)"',
        "# in place of the shell, so that Slurm's signals reach it",
        f"exec {shlex.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def run_workers(command: Sequence[str], count: int, threads: int = 0) -> tuple[list[int], int | None]:
    """Run a command so many times at once and wait: the exit codes, and the signal that ended it all, if one came.

    SIGINT, SIGTERM and SIGHUP are passed on, so that every worker saves and gives its run back before this returns. The
    workers are in sessions of their own: a signal to the whole group would otherwise reach them twice, and the second
    of a kind ends a run at once.
    """
    environment = dict(os.environ) | {"SPECTAIL_WORKER": "1"}
    if threads:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    workers: list[subprocess.Popen[bytes]] = []
    heard: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not known everywhere
    before = {getattr(signal, name): signal.signal(getattr(signal, name), pass_on) for name in names
              if hasattr(signal, name)}  # fmt: skip
    try:
        while len(workers) < count and not heard:
            new = subprocess.Popen(command, env=environment, start_new_session=True)
            if heard:  # it came while this one was being started
                new.send_signal(signal.SIGTERM)
            workers.append(new)
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes, heard[0] if heard else None


def _check(
    command: Sequence[str], count: int, hours: float, gpus: int, cpus: int, partition: str | None, processes: int
) -> None:
    if not command or isinstance(command, str):
        raise ValueError(f"the worker's command must be a list of words, got {command!r}.")
    if any("\0" in word for word in command):
        raise ValueError("a word of the worker's command holds a NUL character, which no shell can pass on; remove it.")
    for name, value, least in (("count", count, 1), ("gpus", gpus, 0), ("cpus", cpus, 1), ("processes", processes, 1)):
        if value < least:
            raise ValueError(f"{name} of a Slurm array must be at least {least}, got {value}.")
    if not 0 < hours < float("inf"):
        raise ValueError(f"hours of a Slurm array must be positive, got {hours:g}.")
    if gpus and processes > gpus:
        raise ValueError(f"{processes} processes need a GPU each, but a task has {gpus}; ask for as many GPUs.")
    if partition is not None and not re.fullmatch(r"[\w.,+-]+", partition):
        raise ValueError(f"{partition!r} cannot be the name of a Slurm partition; sinfo lists those there are.")
