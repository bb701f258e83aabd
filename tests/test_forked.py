"""The forked Python does what Python does."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from forked import PYTHON

TELL = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("TOLD"), sys.stdin.read(), __name__]))
print("aside", file=sys.stderr)
"""


@pytest.mark.parametrize("how", ["code", "script", "module"])
def test_arguments_environment_folder_and_streams_are_those_of_python(how, tmp_path):
    (tmp_path / "tell.py").write_text(TELL)
    words = {"code": ["-c", TELL], "script": [str(tmp_path / "tell.py")], "module": ["-m", "tell"]}[how]
    environment = os.environ | {"TOLD": "a\nb", "PYTHONPATH": str(tmp_path)}
    forked, fresh = (
        subprocess.run([python, *words, "a b", "--c"], env=environment, cwd=tmp_path, input="typed",
                       capture_output=True, text=True, timeout=60, check=True)
        for python in (PYTHON, sys.executable)
    )  # fmt: skip
    assert json.loads(forked.stdout) == [["a b", "--c"], str(tmp_path), "a\nb", "typed", "__main__"]
    assert (forked.stdout, forked.stderr) == (fresh.stdout, fresh.stderr)


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("", 0),
        ("raise SystemExit(7)", 7),
        ("import sys; sys.exit('sentence')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_it_ends_as_python_does(code, end):
    forked, fresh = (
        subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        for python in (PYTHON, sys.executable)
    )
    assert forked.returncode == fresh.returncode == end
    assert forked.stdout == fresh.stdout
    assert forked.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def test_processes_are_each_on_their_own_with_one_thread_and_everything_imported():
    code = "import os, sys; print(len(os.listdir('/proc/self/task')), 'torch' in sys.modules); sys.spectail_mark = 1"
    again = "import sys; print(hasattr(sys, 'spectail_mark'))"
    said = [subprocess.run([PYTHON, "-c", one], capture_output=True, text=True, timeout=60, check=True).stdout
            for one in (code, again)]  # fmt: skip
    assert said == ["1 True\n", "False\n"]


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_process(which, tmp_path):
    """And a process whose program is killed does not live on."""
    code = (
        "import os, signal, sys, time\n"
        "for each in (signal.SIGINT, signal.SIGTERM): signal.signal(each, lambda number, frame: sys.exit(number))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        process = int(program.stdout.readline())
        program.send_signal(which)
        assert program.wait(30) == (-which if which == signal.SIGKILL else which)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("still there")
