"""Images per second of the data path on one core, beside plain torchvision, in turns.

Pictures: synthetic, with the spectrum of photographs, JPEG files of the size of ImageNet's and iNaturalist's. The plain
side is what most training scripts have: torchvision's ImageFolder and its v2 transforms in a torch DataLoader. Both
sides read files and end with a normalised float32 batch in the main process; they take turns, and the least CPU time of
all rounds counts. Without workers, so that a round is the work of one core.

    python benchmarks/jpegs.py                           a minute or two
    python benchmarks/jpegs.py --images 16 --rounds 3    a look
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image

from spectail.data.image_set import ImageSet
from spectail.data.images import ArrayImages, FileImages, Texts
from spectail.data.loader import Loader
from spectail.data.samplers import LongTailSampler
from spectail.data.transforms import preset

import torchvision  # isort: skip
from torchvision.transforms import v2  # isort: skip

SIZES = {(500, 375): 90, (800, 600): 87}
"""Width and height, and the quality that gives about 100 and 220 KB."""
END = [
    v2.PILToTensor(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]
CASES: dict[str, tuple[str, str, bool, list[Any]]] = {
    "crop, flip": ("inat", "inat-fast", True, [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]),
    "crop, flip, jitter": (
        "imagenet", "imagenet-fast", True,
        [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4)],
    ),
    "resize 246, crop, flip": (
        "vit-224", "vit-224-fast", True,
        [v2.Resize(246), v2.RandomResizedCrop(224, scale=(0.8, 1.0)), v2.RandomHorizontalFlip()],
    ),
    "test": ("inat", "inat-fast", False, [v2.Resize(256), v2.CenterCrop(224)]),
}  # fmt: skip
"""What it is: our preset of old, the fast one, training or test, torchvision's steps."""


def photo(width: int, height: int, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    distance = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    waves = np.fft.fft2(rng.standard_normal((3, height, width))) / np.maximum(distance, 1 / width) ** 1.1
    values = np.fft.ifft2(waves).real
    values = 0.7 * values.mean(0) + 0.3 * values  # colours go together
    values = 120 + 50 * (values - values.mean()) / values.std()
    return Image.fromarray(values.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def rates(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Images per second of CPU time, the best of all rounds."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, run in ways.items():
            start = time.process_time()
            images = run()
            rate = images / (time.process_time() - start)
            if number:  # one round to warm up
                best[name] = max(best.get(name, 0.0), rate)
    return best


def epoch(loader: Any) -> Callable[[], int]:
    return lambda: sum(len(batch[1]) for batch in loader)


def jpeg_cases(folder: Path, images: int, rounds: int) -> dict[str, dict[str, float]]:
    found = {}
    for (width, height), quality in SIZES.items():
        root = folder / f"{width}x{height}"
        (root / "a").mkdir(parents=True)
        for index in range(images):
            photo(width, height, index).save(root / "a" / f"{index:04}.jpg", quality=quality)
        kilobytes = sum(path.stat().st_size for path in root.rglob("*.jpg")) / images / 1024
        data = ImageSet(
            FileImages(root, Texts.pack(f"a/{index:04}.jpg" for index in range(images))), [0] * images, "ab"
        )
        for name, (usual, fast, train, steps) in CASES.items():
            plain = torchvision.datasets.ImageFolder(str(root), v2.Compose([*steps, *END]))
            ways: dict[str, Callable[[], int]] = {
                "torchvision": epoch(torch.utils.data.DataLoader(plain, batch_size=32, shuffle=train))
            }
            for kind in (usual, fast):
                sampler = LongTailSampler(data.labels, num_classes=2) if train else None
                ways[kind] = epoch(Loader(data, preset(kind), batch_size=32, sampler=sampler))
            rate = rates(ways, rounds)
            found[f"{width} x {height}, {kilobytes:.0f} KB, {name}"] = {
                "torchvision": rate["torchvision"], "usual": rate[usual], "fast": rate[fast],
                "ratio": rate[fast] / rate["torchvision"],
            }  # fmt: skip
    return found


def small_cases(images: int, rounds: int) -> dict[str, dict[str, float]]:
    """CIFAR and Tiny-ImageNet at 224 pixels, from memory."""
    found = {}
    for side, name in ((32, "CIFAR"), (64, "Tiny-ImageNet")):
        pixels = np.random.default_rng(0).integers(0, 256, (images, side, side, 3), dtype=np.uint8)
        data = ImageSet(ArrayImages(pixels), [0] * images, "ab")
        ways = {
            kind: epoch(Loader(data, preset(kind), batch_size=128, sampler=LongTailSampler(data.labels, num_classes=2)))
            for kind in ("vit-224", "vit-224-fast")
        }
        rate = rates(ways, rounds)
        found[f"{name} at 224 pixels, in memory"] = {
            "usual": rate["vit-224"], "fast": rate["vit-224-fast"], "ratio": rate["vit-224-fast"] / rate["vit-224"]
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "jpegs.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cases = jpeg_cases(Path(folder), options.images, options.rounds)
    cases |= small_cases(256, options.rounds)
    print("| what | torchvision | usual transform | fast transform | ratio |\n|---|---|---|---|---|")
    for name, rate in cases.items():
        plain = f"{rate['torchvision']:,.0f}" if "torchvision" in rate else ""
        print(f"| {name} | {plain} | {rate['usual']:,.0f} | {rate['fast']:,.0f} | {rate['ratio']:.2f} |")
    report = {
        "torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": PIL.__version__,
        "machine": platform.machine(), "images": options.images, "rounds": options.rounds, "images_per_second": cases,
    }  # fmt: skip
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
