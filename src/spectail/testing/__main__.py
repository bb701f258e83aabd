"""`python -m spectail.testing [METHOD ...]`: every check on every method, or on those that are named."""

import os
import sys
from pathlib import Path

import torch

from ..training.loop import train
from . import main
from .processes import shared_run

if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank-run"]:  # one of the processes of check_two_processes
        torch.set_num_threads(1)
        train(shared_run(sys.argv[2], Path(sys.argv[3])))
        os._exit(0)  # not through the shutdown, in which gloo now and then aborts a process that is done
    sys.exit(main(sys.argv[1:]))
