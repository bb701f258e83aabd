"""The Slurm script: it parses, starts Ray on every machine of the job, and runs the driver word for word."""

import json
import os
import subprocess

import pytest

from spectail.experiments.slurm import ray_script

PLAIN = {"nodes": 3, "hours": 2.0, "gpus": 0, "cpus": 4, "partition": None}
AWKWARD = ["with space", "$(touch hacked)", "`touch hacked`", "it's", 'a "quote"', "line\nbreak", "", "*", "; exit 3",
           "ü"]  # fmt: skip
PROGRAMS = {
    "scontrol": '[ "$*" = "show hostnames n[1-3]" ] && printf "n1\\nn2\\nn3\\n"',
    "srun": 'echo "$*" >> sruns; sleep 30',  # blocks, as Ray does
    "ray": 'echo "$*" >> rays; [ $(wc -l < rays) -gt 1 ]',  # the head answers at the second try
    "sleep": "exec /bin/sleep 0.1",
    "driver": """exec python3 -c 'import json, os, sys
json.dump([sys.argv[1:], os.getpid()], open("told", "w"))
raise SystemExit(7)' "$@" """,
}


def run(script, folder, **environment):
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o700)
    (folder / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", folder / "job.sh"], check=True, timeout=30)
    variables = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **environment}
    with (folder / "out").open("w") as out:
        started = subprocess.Popen(["bash", "job.sh"], cwd=folder, env=variables, stdout=out, stderr=out)
        code = started.wait(timeout=60)
    return started.pid, code, (folder / "out").read_text()


def options(script):
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return dict(line.split("=", 1) for line in lines)


def test_ray_starts_everywhere_and_the_driver_runs_word_for_word(tmp_path):
    pid, code, said = run(ray_script(["driver", *AWKWARD], **PLAIN), tmp_path, SLURM_JOB_NODELIST="n[1-3]",
                          SLURM_JOB_ID="40017")  # fmt: skip
    assert code == 7, said
    words, its_pid = json.loads((tmp_path / "told").read_text())
    assert words == [*AWKWARD, "--engine", "ray", "--address", "n1:20017"]
    assert its_pid == pid  # signals sent to the script reach the driver
    head, others = (tmp_path / "sruns").read_text().splitlines()
    assert head.startswith(
        "--cpus-per-task=4 --nodes=1 --ntasks=1 --nodelist=n1 ray start --block --num-cpus=4 --num-gpus=0 --head"
    )
    assert "--port=20017" in head
    assert others.startswith(
        "--cpus-per-task=4 --nodes=2 --ntasks=2 --exclude=n1 ray start --block --num-cpus=4 --num-gpus=0"
    )
    assert others.endswith("--address=n1:20017")
    assert (tmp_path / "rays").read_text().splitlines() == ["status --address n1:20017"] * 2
    assert not (tmp_path / "hacked").exists()


def test_outside_a_job_it_says_so_and_runs_nothing(tmp_path):
    _, code, said = run(ray_script(["driver"], **PLAIN), tmp_path)
    assert code != 0
    assert "for sbatch" in said
    assert not (tmp_path / "told").exists()


def test_resources():
    asked = options(ray_script(["x"], **{**PLAIN, "gpus": 2, "partition": "gpu-long", "hours": 50.26}))
    assert (asked["nodes"], asked["time"], asked["gres"]) == ("3", "2-02:16:00", "gpu:2")
    assert (asked["partition"], asked["cpus-per-task"]) == ("gpu-long", "4")
    assert asked["signal"].startswith("B:TERM@")
    alone = ray_script(["x"], **{**PLAIN, "nodes": 1, "hours": 0.001})
    assert options(alone)["time"] == "0-00:01:00"
    assert not options(alone).keys() & {"gres", "partition"}
    assert alone.count("$run") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": ["a\0b"]}, "NUL"),
        ({"nodes": 0}, "--nodes must be at least 1; got 0"),
        ({"gpus": -1}, "--gpus must be at least 0"),
        ({"cpus": 0}, "--cpus must be at least 1"),
        ({"hours": 0}, "--hours must be positive; got 0"),
        ({"hours": float("nan")}, "--hours must be positive"),
        ({"partition": "a\n#SBATCH --uid=0"}, "cannot be the name of a Slurm partition"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        ray_script(**{"command": ["x"], **PLAIN, **change})
