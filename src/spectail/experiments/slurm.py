"""A script for Slurm: Ray on every machine of a job, and the driver of a plan on the first one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

WARNING = 120
"""Seconds before the time limit at which the driver is told to stop, and its runs save themselves."""
SCRIPT = """#!/bin/bash
{options}

set -eu
head=$(scontrol show hostnames "${{SLURM_JOB_NODELIST:?this script is for sbatch}}" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
export RAY_USAGE_STATS_ENABLED=0
start="ray start --block --num-cpus={cpus} --num-gpus={gpus}"
run="srun --cpus-per-task={cpus}"
$run --nodes=1 --ntasks=1 --nodelist="$head" $start --head --port="$port" --include-dashboard=false &
tries=60
until ray status --address "$head:$port" >/dev/null 2>&1; do
  tries=$((tries - 1)); [ "$tries" -gt 0 ] || {{ echo "Ray did not start on $head" >&2; exit 1; }}
  sleep 2
done
{join}# in place of the shell, so that Slurm's signals reach the driver
exec {command} --engine ray --address "$head:$port"
"""
JOIN = """$run --nodes={others} --ntasks={others} --exclude="$head" $start --address="$head:$port" &
"""


def ray_script(
    command: Sequence[str], *, nodes: int, hours: float, gpus: int, cpus: int, partition: str | None
) -> str:  # fmt: skip
    """A script for ``sbatch`` that carries a plan out on all machines of its job.

    Args:
        command: the driver and its arguments, without those of the engine.
        nodes: machines of the job; one that starts late takes part from then on.
        hours: time limit. The same script goes on where a job that ran out of time stopped.
        gpus, cpus: of each machine.
        partition: where to queue; None for the cluster's default.

    >>> text = ray_script(["spectail", "experiment", "run", "lt-main"], nodes=4, hours=1.5, gpus=8, cpus=64,
    ...                   partition=None)
    >>> [line for line in text.splitlines() if "nodes=" in line and "SBATCH" in line or "time=" in line]
    ['#SBATCH --time=0-01:30:00', '#SBATCH --nodes=4']
    >>> text.splitlines()[-1]
    'exec spectail experiment run lt-main --engine ray --address "$head:$port"'
    """
    for name, value, least in (("nodes", nodes, 1), ("gpus", gpus, 0), ("cpus", cpus, 1)):
        if value < least:
            raise ValueError(f"--{name} must be at least {least}; got {value}.")
    if not 0 < hours < float("inf"):
        raise ValueError(f"--hours must be positive; got {hours:g}.")
    if partition is not None and not re.fullmatch(r"[\w.,+-]+", partition):
        raise ValueError(f"{partition!r} cannot be the name of a Slurm partition; sinfo lists those there are.")
    if any("\0" in word for word in command):
        raise ValueError("a word of the command holds a NUL character, which no shell can pass on; remove it.")
    minutes = max(1, round(hours * 60))
    options = ["job-name=spectail", f"time={minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"]
    options += [f"nodes={nodes}", "ntasks-per-node=1", f"cpus-per-task={cpus}", f"signal=B:TERM@{WARNING}"]
    options += ["output=spectail-%j.log", "open-mode=append"]
    options += [f"gres=gpu:{gpus}"] * bool(gpus) + [f"partition={partition}"] * bool(partition)
    join = JOIN.format(others=nodes - 1) if nodes > 1 else ""
    return SCRIPT.format(options="\n".join(f"#SBATCH --{option}" for option in options), cpus=cpus, gpus=gpus,
                         join=join, command=shlex.join(command))  # fmt: skip
