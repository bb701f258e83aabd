"""Folders of images and lists of them, each with one thing wrong."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .cases import Answer, command


def make_photos(folder: Path, draws: random.Random, classes: str = "ab", images: int = 6) -> Path:
    rng = np.random.default_rng(draws.randrange(2**32))
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(images):
            Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


def spoils(folder: Path, draws: random.Random) -> Iterator[tuple[str, Any]]:
    some = folder / "a" / f"{draws.randrange(6)}.png"
    yield "cut", lambda: some.write_bytes(some.read_bytes()[: draws.randrange(60)])
    yield "garbage", lambda: some.write_bytes(draws.randbytes(100))
    yield "pipe", lambda: os.mkfifo(folder / "a" / "pipe.png")
    yield "postscript", lambda: (folder / "a" / "x.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    yield "loop", lambda: os.symlink(folder, folder / "a" / "loop")
    yield "link to nothing", lambda: os.symlink(folder / "none", folder / "a" / "y.png")
    yield "empty class", (folder / "c").mkdir
    yield "odd name", lambda: (folder / "a").rename(folder / "\x1b[2J=1+1")
    yield "no class", lambda: shutil.rmtree(folder / "a")
    yield "text", lambda: (folder / "a" / "t.jpg").write_text("no image")
    yield "device", lambda: os.symlink("/dev/zero", folder / "a" / "zero.png")
    yield "many bytes", lambda: (folder / "a" / "b.png").write_bytes(b"\x89PNG" + bytes(100_000))
    yield "folder called image", (folder / "a" / "z.png").mkdir


def folders(place: Path, run: Path, photos: Path, draws: random.Random) -> tuple[str, Answer, str | None]:
    shutil.copytree(photos, place / "photos")
    way, spoil = draws.choice(list(spoils(place / "photos", draws)))
    spoil()
    answer = command(
        "prepare", place / "photos", "--output", place / "out", *draws.choice([[], ["--strict"], ["--check", "none"]])
    )
    fault = "half-written: refused, and a manifest is there" if answer.code and (place / "out").exists() else None
    return way, answer, fault


def lists(place: Path, run: Path, photos: Path, draws: random.Random) -> tuple[str, Answer, str | None]:
    lines = [f"{name}/{number}.png {label}" for label, name in enumerate("ab") for number in range(6)]
    bad = draws.choice(["", "onlypath", "a/0.png", "a/0.png x", "a/0.png -1", "a/0.png 99", "a/0.png " + "9" * 30, "../../etc/passwd 0", "/etc/passwd 0",
                        "a\\0.png 0", "a/\x000.png 0", "none.png 0", "a/0.png 0.5", "\ud800 0", "=1+1 0", "a/0.png\t", ",,,", "a/0.png,b"])  # fmt: skip
    at = draws.randrange(len(lines))
    lines.insert(at, bad)
    path = photos / "list.txt"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape" if "\ud800" not in bad else "surrogatepass"))
    answer = command("prepare", f"list:{path}", "--output", place / "out")
    fault = None
    if (
        answer.code
        and bad.split()
        and f"line {at + 1}" not in answer.err
        and bad.split()[0] not in answer.err
        and bad.split()[-1][:18] not in answer.err
    ):
        fault = f"does not name the line: {answer.err.strip()}"
    if answer.code and (place / "out").exists():
        fault = "half-written: refused, and a manifest is there"
    return f"{bad!r} in line {at + 1}", answer, fault
