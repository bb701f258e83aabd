"""Two processes that write one folder at once: one works, the other gets a sentence, and the run is as ever."""

import random
import time
from pathlib import Path

from training.runs import FLAGS, assert_same, settings

from spectail.cli.main import main
from spectail.training.loop import train

from .cases import Child, Row


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    draws = random.Random(seed)
    long = {"optim__epochs": 12, "checkpoint_every": 1}
    train(settings(work / "whole", **long))
    for number in range(amount):
        run = work / f"run{number}"
        words = [
            "train",
            *FLAGS,
            "--model",
            "tiny",
            "--lr",
            "0.01",
            "--epochs",
            "12",
            "--checkpoint-every",
            "1",
            "--output",
            str(run),
            "--quiet",
            "--no-report",
        ]
        words += ["--resume"] * (number % 2)
        logs = [work / f"{number}-{name}.log" for name in "ab"]
        first = Child(lambda words=words: main(words), log=logs[0])
        time.sleep(draws.random() * 0.3)
        second = Child(lambda words=words: main(words), log=logs[1])
        codes = sorted([first.wait(), second.wait()], key=str)
        said = "".join(log.read_text() for log in logs)
        fault = None
        if codes == [0, 0] and number % 2:  # the second one found a run that had ended
            codes = [0, 1]
            said += "used by another process"
        if codes != [0, 1] or "Traceback" in said:
            fault = f"exit codes {codes}: {said[-300:]}"
        elif (
            "used by another process" not in said
            and "already holds a run" not in said
            and "no folder of a run" not in said
        ):
            fault = f"no sentence: {said[-300:]}"
        else:
            try:
                assert_same(work / "whole", run)
            except AssertionError as error:
                fault = f"another end: {str(error)[:200]}"
        row.add(f"try {number}", fault)
