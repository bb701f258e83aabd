"""``python -m spectail.experiments.ranks FOLDER N``: carry out the task in a folder with N processes, by torchrun.

Every rank ends with torchrun, and torchrun with the process that started it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path

from .._utils.parent import end_with_parent


def launch(folder: str, processes: str) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.run import main as torchrun  # noqa: PLC0415

    try:
        torchrun(["--standalone", "--nproc-per-node", processes, "-m", f"{__package__}.ranks", folder])
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        signals = [-code for code in codes if code < 0 and code != -signal.SIGTERM]  # torchrun itself sends that one
        if signals:
            Path(folder, "killed").write_text(f"signal {signals[0]}")
        raise SystemExit(1) from None


def rank(folder: str) -> None:
    from .task import train_here  # noqa: PLC0415

    outcome = train_here(pickle.loads(Path(folder, "task").read_bytes()))
    ended_well = outcome.status in ("done", "known", "stopped")
    if os.environ["RANK"] == "0" or not ended_well:
        # the first failure is the cause of the others
        with suppress(FileExistsError), Path(folder, "outcome").open("xb") as file:
            file.write(pickle.dumps(outcome))
    sys.stdout.flush()
    os._exit(0 if ended_well else 1)  # gloo now and then aborts a process while the interpreter shuts down


if __name__ == "__main__":
    end_with_parent()
    rank(*sys.argv[1:]) if "RANK" in os.environ else launch(*sys.argv[1:])
