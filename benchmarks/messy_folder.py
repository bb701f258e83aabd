"""From a messy folder to a model, a report and a prediction: two commands, no decision, and how long they take.

    python benchmarks/messy_folder.py --weights FILE.safetensors

The folder has 15 classes of 4 to 300 drawn images, some of them broken, an empty class folder and stray files. The
weight file, named after its timm model, is put into the cache folder: the time is that with weights at hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

RESULTS = Path(__file__).parent / "results" / "messy_folder.json"
SHAPES = ("circle", "ring", "square", "frame", "triangle", "cross", "star", "bar", "arc", "pie", "dots", "grid", "wave",
          "arrow", "house")  # fmt: skip


def draw(kind: str, random: np.random.Generator) -> Image.Image:
    """One image: a shape of some colour, size and place on a noisy ground."""
    ground = random.integers(0, 256, 3)
    noise = np.clip(ground + random.normal(0, 25, (160, 200, 3)), 0, 255).astype(np.uint8)
    image = Image.fromarray(noise)
    pen = ImageDraw.Draw(image)
    ink = tuple(int(value) for value in (ground + random.integers(70, 186, 3)) % 256)
    x, y, size = random.integers(50, 150), random.integers(45, 115), random.integers(20, 42)
    box = (x - size, y - size, x + size, y + size)
    corners = [(x, y - size), (x + size, y + size), (x - size, y + size)]
    wide = int(random.integers(5, 11))
    if kind == "circle":
        pen.ellipse(box, fill=ink)
    elif kind == "ring":
        pen.ellipse(box, outline=ink, width=wide)
    elif kind == "square":
        pen.rectangle(box, fill=ink)
    elif kind == "frame":
        pen.rectangle(box, outline=ink, width=wide)
    elif kind == "triangle":
        pen.polygon(corners, fill=ink)
    elif kind == "cross":
        pen.line((x - size, y, x + size, y), fill=ink, width=wide)
        pen.line((x, y - size, x, y + size), fill=ink, width=wide)
    elif kind == "star":
        for turn in np.linspace(0, np.pi, 4)[:-1]:
            dx, dy = size * np.cos(turn), size * np.sin(turn)
            pen.line((x - dx, y - dy, x + dx, y + dy), fill=ink, width=wide)
    elif kind == "bar":
        pen.rectangle((x - size, y - wide, x + size, y + wide), fill=ink)
    elif kind == "arc":
        pen.arc(box, 200, 340, fill=ink, width=wide)
    elif kind == "pie":
        pen.pieslice(box, 30, 330, fill=ink)
    elif kind in ("dots", "grid"):
        for dx in (-size, 0, size):
            for dy in (-size, 0, size):
                if kind == "dots":
                    pen.ellipse((x + dx - 6, y + dy - 6, x + dx + 6, y + dy + 6), fill=ink)
            if kind == "grid":
                pen.line((x + dx, y - size, x + dx, y + size), fill=ink, width=4)
                pen.line((x - size, y + dx, x + size, y + dx), fill=ink, width=4)
    elif kind == "wave":
        steps = np.linspace(-size, size, 40)
        pen.line([(x + step, y + size / 2 * np.sin(step / 6)) for step in steps], fill=ink, width=wide)
    elif kind == "arrow":
        pen.line((x - size, y, x + size, y), fill=ink, width=wide)
        pen.polygon([(x + size + 8, y), (x + size - 14, y - 16), (x + size - 14, y + 16)], fill=ink)
    else:
        pen.rectangle((x - size, y, x + size, y + size), fill=ink)
        pen.polygon([(x, y - size), (x + size + 6, y), (x - size - 6, y)], fill=ink)
    return image.filter(ImageFilter.GaussianBlur(float(random.uniform(0, 1.2))))


def make_folder(root: Path, seed: int) -> int:
    random, files = np.random.default_rng(seed), 0
    sizes = np.round(300 * (4 / 300) ** (np.arange(15) / 14)).astype(int)
    for kind, size in zip(SHAPES, sizes, strict=True):
        (root / kind).mkdir(parents=True)
        for number in range(size):
            draw(kind, random).save(root / kind / f"{number} ({kind}).{('jpg', 'png', 'webp')[number % 3]}")
            files += 1
    (root / "new arrivals").mkdir()
    (root / "README.txt").write_text("photos\n")
    (root / "circle" / ".DS_Store").write_bytes(b"\0")
    (root / "circle" / "empty.jpg").touch()
    (root / "ring" / "page.png").write_text("<html></html>")
    whole = (root / "square" / "0 (square).jpg").read_bytes()
    (root / "square" / "cut.jpg").write_bytes(whole[: len(whole) // 3])
    return files + 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        files = make_folder(place / "photos", options.seed)
        (place / "cache" / "weights").mkdir(parents=True)
        shutil.copy(options.weights, place / "cache" / "weights")
        draw("house", np.random.default_rng(10**6)).save(place / "new.jpg")
        environment = os.environ | {"SPECTAIL_CACHE": str(place / "cache")}
        spectail = [sys.executable, "-m", "spectail"]
        commands = [[*spectail, "fit", "photos"], [*spectail, "predict", "runs/fit-photos-balanced", "new.jpg"]]
        times, said = [], []
        for command in commands:
            began = time.perf_counter()
            done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
            times.append(round(time.perf_counter() - began, 1))
            said.append(done.stdout)
            print(done.stdout[-3500:], done.stderr[-2000:])
            done.check_returncode()
        record = json.loads((place / "runs" / "fit-photos-balanced" / "fit.json").read_text())
        results = json.loads((place / "runs" / "fit-photos-balanced" / "results.json").read_text())
    named = [name for name in ("empty.jpg", "page.png", "cut.jpg", "new arrivals") if name in said[0]]
    found = {"files": files, "commands": 2, "decisions": 0, "fit_seconds": times[0], "predict_seconds": times[1],
             "left_out_and_named": named, "model": record["model"], "chosen": record["chosen"]["title"],
             "balanced_test": round(results["balanced"], 1), "answer": record["answer"],
             "seed": options.seed}  # fmt: skip
    print(json.dumps(found, indent=1))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
