"""Memory that runs out: the kernel refuses it beyond some megabytes, in every command."""

import random
import shutil
from pathlib import Path

from training.runs import FLAGS, Stop, StopAt, assert_same, settings

from spectail.training.loop import train

from .bombs import with_little_memory
from .cases import Child, Row, import_commands, leftovers
from .disk import digest
from .pictures import make_photos

SMALLEST, LARGEST = 64, 12_000
"""Kilobytes; small runs need no more, as what was freed before is used again."""
SENTENCES = ("not enough memory", "a library could not be loaded")


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    draws = random.Random(seed)
    run, out, log = work / "run", work / "out", work / "log"
    train(settings(run))
    photos = make_photos(work / "photos", draws)
    long = {"optim__epochs": 3, "checkpoint_every": 1}
    train(settings(work / "whole", **long))
    try:
        train(settings(work / "stopped", **long), reporter=StopAt(steps=7))
    except Stop:
        pass
    import_commands()
    usual = ("--model", "tiny", "--lr", "0.01", "--no-report", "--epochs", "3", "--checkpoint-every", "1")
    commands = {
        "train": ("train", *FLAGS, *usual, "--output", out / "new"),
        "train, large": ("train", *FLAGS, "--model", "small-cnn", "--img-size", "512", "--no-report", "--output", out / "new"),
        "resume": ("train", *FLAGS, *usual, "--output", out / "stopped", "--resume"),
        "evaluate": ("evaluate", run, "--device", "cpu"),
        "predict": ("predict", run, photos / "a" / "0.png"),
        "export": ("export", run, "--output", out / "m.pt2"),
        "analyze": ("analyze", run, "--output", out / "a.html"),
        "report": ("report", run, "--output", out / "page.html"),
        "adjust": ("adjust", run, "--on", work / "whole", "--output", out / "a.npz"),
        "prepare": ("prepare", photos, "--output", out / "p"),
        "compare": ("compare", *FLAGS, "--methods", "ce", "--model", "small-cnn", "--output", out / "c", "--no-report"),
    }  # fmt: skip
    before, short = digest(run), 0
    for name, words in commands.items():
        for number in range(amount):
            size = int(SMALLEST * (LARGEST / SMALLEST) ** (number / max(amount - 1, 1)) * (1 + draws.random())) << 10
            out.mkdir()
            shutil.copytree(work / "stopped", out / "stopped")
            code = Child(lambda words=words, size=size: with_little_memory(words, size), log=log).wait(120)
            said = log.read_text(errors="replace")
            log.unlink()
            short += code == 1
            fault, left = None, leftovers(out)
            if code not in (0, 1) or "Traceback" in said:
                fault = f"exit code {code}: {said[-300:]}"
            elif code and not any(sentence in " ".join(said.split()) for sentence in SENTENCES):
                fault = f"another sentence: {said[-300:]}"
            elif left:
                fault = f"leaves {left}"
            elif digest(run) != before:
                fault = "an earlier file is not whole"
            elif name == "resume":
                train(settings(out / "stopped", **long), resume=True)
                try:
                    assert_same(work / "whole", out / "stopped")
                except AssertionError as error:
                    fault = f"goes on to another end: {str(error)[:100]}"
            row.add(f"{name}, {size >> 10:,} kB", fault)
            shutil.rmtree(out)
    # most commands are small enough for what Python has freed before; those that are not must have met the limit
    row.add("memory did run out", None if short >= 2 * amount else f"in {short} cases only")
