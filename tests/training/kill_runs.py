"""Script: kill -9 a run at several moments and resume it. Forks, because importing torch anew each time is slow."""

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path


def child(work):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main():
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from training.runs import register, settings

    from spectail.training.loop import train

    torch.set_num_threads(1)
    register()
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])

    def config(name):
        return settings(
            folder / name, model__model="tiny-dropout", method="car", optim__epochs=3, optim__ema=0.9,
            checkpoint_every=1, data__val_fraction=0.2, select_on="val",
        )  # fmt: skip

    def run(name, resume):
        return child(lambda: train(config(name), resume=resume))

    whole = float("inf")
    for name in ("whole", "warm"):  # the first one also warms caches: the second tells how long a run takes
        start = time.monotonic()
        assert os.waitpid(run(name, False), 0)[1] == 0
        whole = min(whole, time.monotonic() - start)
    draws = random.Random(5)
    for number in range(kills):
        name = f"killed{number}"
        moments = 0
        for share in (draws.uniform(0.05, 0.95), draws.uniform(0.05, 0.6)):  # the resumed run is killed too
            pid = run(name, True)
            time.sleep(whole * share)
            done, _ = os.waitpid(pid, os.WNOHANG)
            if not done:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                moments += 1
        left = sorted(path.name for path in (folder / name / "checkpoints").glob("*"))
        print(f"{name}: killed {moments} times, {left}")
        assert os.waitpid(run(name, True), 0)[1] == 0


if __name__ == "__main__":
    main()
