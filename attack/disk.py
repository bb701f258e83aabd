"""A full disk: the kernel refuses files beyond a size, in every command that writes."""

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from training.runs import FLAGS, settings

from spectail.cli.main import main
from spectail.training.loop import train

from .cases import Child, Row, leftovers

SIZES = (0, 200, 4096)
"""Bytes that still fit into a file."""


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    run = work / "run"
    train(settings(run))
    out = work / "out"
    commands = {
        "train, fresh": ("train", *FLAGS, "--model", "tiny", "--output", out / "new", "--no-report"),
        "prepare": ("prepare", "glyphs-lt", "--num-classes", "6", "--max-per-class", "24", "--imbalance", "6", "--output", out / "p"),
        "report": ("report", run, "--output", out / "page.html"),
        "analyze, html": ("analyze", run, "--output", out / "a.html"),
        "analyze, json": ("analyze", run, "--output", out / "a.json"),
        "analyze, csv": ("analyze", run, "--output", out / "a.csv"),
        "analyze, tex": ("analyze", run, "--output", out / "a.tex"),
        "export": ("export", run, "--output", out / "m.pt2"),
        "compare": ("compare", *FLAGS, "--methods", "ce", "--output", out / "c", "--no-report", "--model", "small-cnn"),
    }  # fmt: skip
    for name, words in commands.items():
        for size in SIZES:
            out.mkdir()
            earlier = out / "earlier.txt"
            earlier.write_text("whole")
            before = digest(run)
            log = work / "log"
            log.write_text("")
            child = Child(
                lambda words=words, size=size: limited(size, lambda: main([str(word) for word in words])), log=None
            )
            code = child.wait(120)
            left = list(leftovers(out))
            fault = None
            if code not in (0, 1):
                fault = f"exit code {code}"
            elif left:
                fault = f"leaves {left}"
            elif earlier.read_text() != "whole" or digest(run) != before:
                fault = "an earlier file is not whole"
            row.add(f"{name}, {size} bytes", fault)
            shutil.rmtree(out)


def limited(size: int, work: Callable[[], int]) -> int:
    import contextlib
    import io
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = work()
    return (
        code
        if code == 0 or "cannot be written" in err.getvalue() or "File too large" in err.getvalue() or code == 70
        else 99
    )


def digest(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}
