"""The Slurm array script: it parses, and it runs the command it was given, word for word."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from spectail.experiments.slurm import array_script

PLAIN = {"count": 3, "hours": 2.0, "gpus": 0, "cpus": 4, "partition": None, "processes": 1}
STUB = """
import json, os, sys
names = ("SLURM_ARRAY_TASK_ID", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK")
told = {"words": sys.argv[2:], "pid": os.getpid(), **{name: os.environ.get(name) for name in names}}
with open(sys.argv[1] + os.environ.get("RANK", ""), "w") as file:
    json.dump(told, file)
"""
AWKWARD = [
    "with space",
    "$(touch hacked)",
    "`touch hacked`",
    "it's",
    'a "quote"',
    "line\nbreak",
    "",
    "*",
    "; exit 3",
    "ü",
]


def run(script, folder, **environment):
    path = folder / "array.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", path], check=True, timeout=30)
    started = subprocess.Popen(
        ["bash", str(path)], cwd=folder, env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = started.communicate(timeout=120)
    return started, out, err


def options(script):
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return dict(line.split("=", 1) for line in lines)


def test_the_command_runs_word_for_word(tmp_path):
    stub = tmp_path / "a stub.py"
    stub.write_text(STUB)
    told = tmp_path / "told"
    script = array_script([sys.executable, str(stub), str(told), *AWKWARD], **PLAIN)
    started, out, err = run(script, tmp_path, SLURM_ARRAY_TASK_ID="2")
    assert started.returncode == 0, err
    found = json.loads(told.read_text())
    assert found["words"] == AWKWARD
    assert found["SLURM_ARRAY_TASK_ID"] == "2"
    assert found["OMP_NUM_THREADS"] == "4"
    assert found["pid"] == started.pid  # signals sent to the script reach the worker
    assert "task 2 on " in out
    assert not (tmp_path / "hacked").exists()


def test_the_exit_code_is_the_workers(tmp_path):
    script = array_script([sys.executable, "-c", "raise SystemExit(7)"], **PLAIN)
    assert run(script, tmp_path, SLURM_ARRAY_TASK_ID="0")[0].returncode == 7


def test_outside_an_array_it_says_so_and_runs_nothing(tmp_path):
    script = array_script(["touch", "ran"], **PLAIN)
    started, _, err = run(script, tmp_path)
    assert started.returncode != 0
    assert "for sbatch" in err
    assert not (tmp_path / "ran").exists()


def test_torchrun_starts_the_processes(tmp_path):
    """The real torchrun, found beside the command."""
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    told = tmp_path / "told"
    script = array_script([sys.executable, str(stub), str(told), "a b"], **{**PLAIN, "processes": 2})
    started, _, err = run(script, tmp_path, SLURM_ARRAY_TASK_ID="1")
    assert started.returncode == 0, err
    found = [json.loads((tmp_path / f"told{rank}").read_text()) for rank in (0, 1)]
    assert [each["RANK"] for each in found] == ["0", "1"]
    assert {each["WORLD_SIZE"] for each in found} == {"2"}
    assert {each["OMP_NUM_THREADS"] for each in found} == {"2"}
    assert all(each["words"] == ["a b"] for each in found)


def test_a_command_on_the_path_uses_the_torchrun_there():
    last = array_script(["spectail", "x"], **{**PLAIN, "processes": 4}).splitlines()[-1]
    words = shlex.split(last)
    assert words == ["exec", "torchrun", "--standalone", "--nproc-per-node=4", "--no-python", "spectail", "x"]


def test_resources():
    asked = options(array_script(["x"], **{**PLAIN, "gpus": 2, "partition": "gpu-long", "hours": 50.26}))
    assert asked["array"] == "0-2"
    assert asked["time"] == "2-02:16:00"
    assert asked["gres"] == "gpu:2"
    assert asked["partition"] == "gpu-long"
    assert asked["cpus-per-task"] == "4"
    assert asked["signal"].startswith("B:TERM@")
    plain = options(array_script(["x"], **{**PLAIN, "hours": 0.001}))
    assert plain["time"] == "0-00:01:00"
    assert not plain.keys() & {"gres", "partition"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": []}, "list of words"),
        ({"command": "spectail run"}, "list of words"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"count": 0}, "count .* at least 1, got 0"),
        ({"gpus": -1}, "gpus .* at least 0"),
        ({"cpus": 0}, "cpus .* at least 1"),
        ({"processes": 0}, "processes .* at least 1"),
        ({"hours": 0}, "hours .* positive, got 0"),
        ({"hours": float("nan")}, "hours .* positive"),
        ({"gpus": 2, "processes": 4}, "4 processes need a GPU each, but a task has 2"),
        ({"partition": "a\n#SBATCH --uid=0"}, "cannot be the name of a Slurm partition"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        array_script(**{"command": ["x"], **PLAIN, **change})
