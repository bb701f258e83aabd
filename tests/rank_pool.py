"""Two processes that work together, started once in a session: ``ranks(function, *arguments)`` runs a function on both.

The fixture ``ranks`` (root conftest) has them. They import the function by its name, so it stands in a
module that is cheap to import, and answer what it returns, or its traceback. The process group is there when the
function is called, and made anew if it left none. Where the launcher is the point, a test uses `forked.torchrun`.
"""

import faulthandler
import os
import pickle
import select
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

WORLD = 2


class Ranks:
    def __init__(self, folder):
        self.folder, self.processes, self.starts = folder, [], 0

    def __call__(self, function, *arguments, timeout=120, **variables):
        """What the function returns on each rank; environment variables are set while it runs."""
        import pytest

        if not self.processes:
            self.start()
        job = (f"{function.__module__}:{function.__qualname__}", arguments, timeout, variables)
        for process in self.processes:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
        answers, end = {}, time.monotonic() + timeout
        while len(answers) < WORLD:
            waiting = [process.stdout for process in self.processes if process.stdout not in answers]
            ready = select.select(waiting, [], [], max(0, end - time.monotonic()))[0]
            failure = None if ready else f"not done after {timeout} s"
            for stream in ready:
                try:
                    answers[stream], failure = pickle.load(stream)
                except EOFError:
                    failure = "a rank has ended"
                if failure:
                    break
            if failure:  # the other rank may wait for ever
                self.stop()
                pytest.fail(f"{function.__name__} on two ranks: {failure}\n{self.log.read_text()[-6000:]}")
        return [answers[process.stdout] for process in self.processes]

    def start(self):
        from forked import PYTHON, environment

        self.starts += 1
        self.log = self.folder / f"log-{self.starts}"
        for rank in range(WORLD):
            with open(self.log, "a") as log:
                process = subprocess.Popen(
                    [PYTHON, __file__, str(self.folder / f"group-{self.starts}")], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                    env=environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=WORLD, LOCAL_WORLD_SIZE=WORLD),
                )  # fmt: skip
            self.processes.append(process)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.communicate()
        self.processes = []


def serve(address):
    """On a rank: carry out what comes through standard input. What functions print goes to the log."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    groups = 0
    while True:
        try:
            name, arguments, timeout, variables = pickle.load(jobs)
        except EOFError:
            os._exit(0)  # gloo now and then aborts a process that is done while the interpreter shuts down
        faulthandler.dump_traceback_later(timeout, exit=True)
        before = dict(os.environ)
        os.environ.update({variable: str(value) for variable, value in variables.items()})
        try:
            if not dist.is_initialized():
                groups += 1
                place = {"rank": int(os.environ["RANK"]), "world_size": WORLD, "timeout": timedelta(seconds=60)}
                dist.init_process_group("gloo", init_method=f"file://{address}-{groups}", **place)
            module, _, function = name.partition(":")
            __import__(module)
            answer = getattr(sys.modules[module], function)(*arguments), None
        except BaseException:
            answer = None, traceback.format_exc()
        os.environ.clear()
        os.environ.update(before)
        faulthandler.cancel_dump_traceback_later()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]).absolute())
