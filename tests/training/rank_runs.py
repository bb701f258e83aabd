"""Script for torchrun: the runs of a JSON file one after the other, in this process group."""

import json
import sys
from pathlib import Path


def main():
    import torch
    from accelerate import Accelerator

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from training.runs import Stop, StopAt, register, settings

    from spectail.training.loop import train

    torch.set_num_threads(1)
    register()
    # One launch for all runs: a run ends by closing the process group.
    Accelerator.end_training = lambda self: None
    for output, changes in json.loads(Path(sys.argv[1]).read_text()):
        stop = changes.pop("stop", None)
        resume = changes.pop("resume", False)
        try:
            train(settings(output, **changes), resume=resume, reporter=StopAt(steps=stop))
        except Stop:
            continue


if __name__ == "__main__":
    main()
