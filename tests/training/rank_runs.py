"""Script for torchrun: the runs of a JSON file one after the other, in this process group."""

import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path


def main():
    import pytest
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from training.guarded import guarded
    from training.runs import Stop, StopAt, register, settings

    from spectail.training.loop import train
    from spectail.training.reporter import Reporter

    torch.set_num_threads(1)
    register()

    class Signal(Reporter):
        """The first process alone hears a signal at a step."""

        def __init__(self, at):
            self.at = at if os.environ["RANK"] == "0" else -1

        def step(self, done, figures):
            if done == self.at:
                os.kill(os.getpid(), signal.SIGTERM)

    for output, changes in json.loads(Path(sys.argv[1]).read_text()):
        stop = changes.pop("stop", None)
        resume = changes.pop("resume", False)
        signal_at = changes.pop("signal", None)
        watched = changes.pop("guarded", False)
        reporter = Signal(signal_at) if signal_at is not None else StopAt(steps=stop)
        try:
            with (
                pytest.MonkeyPatch.context() as patch,
                guarded(patch, free=2) if watched else nullcontext(),
            ):  # DDP settles
                train(settings(output, **changes), resume=resume, reporter=reporter)
        except Stop:
            continue
        except Exception as error:
            if signal_at is None:
                raise
            (Path(output) / f"left-{os.environ['RANK']}").write_text(type(error).__name__)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo that still drops a tensor while the interpreter shuts down would abort the process
