"""`python -m attack`: everything that must not happen, tried. Prints a table; the exit code is 1 if anything failed.

make attack          about an hour, with a seed of the day
make attack-short    ten minutes, always the same
python -m attack --only damage disk --seed 7
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from training.runs import register

from . import api, bombs, damage, disk, hostile, inputs, kills, memory, page, writers
from .cases import Row, workshop

SEED = 24
ROWS = {
    # first, since memory that other rows have freed could be used again
    "memory": (memory.attack, "memory that runs out", "a sentence, earlier files whole, runs go on", 4, 2),
    "inputs": (inputs.attack, "generated bad input, commands", "0 tracebacks, hangs, half-written files, silently wrong",
               3_000, 900),
    "api": (api.attack, "generated bad input, Python API", "an answer or a sentence", 2_500, 800),
    "kills": (kills.attack, "kill -9, SIGTERM, Ctrl-C twice, at random moments", "all bit-identical", 160, 36),
    "damage": (damage.attack, "damage to files of runs, checkpoints, stores, caches", "noticed or harmless", 2, 1),
    "hostile": (hostile.attack, "hostile files, names and paths", "0 code run, 0 files outside", 1, 1),
    "bombs": (bombs.attack, "small files that become large, numbers without end", "a sentence in 20 s and 1 GB", 1, 1),
    "writers": (writers.attack, "two writers on one folder", "one works, one gets a sentence", 10, 10),
    "disk": (disk.attack, "full disk at every kind of write", "a sentence, earlier files whole", 1, 1),
    "page": (page.attack, "names in the report, opened in Chromium", "text stays text", 1, 1),
}  # fmt: skip
"""Per name: what it does, its words in the table, and how much of it is done in the long and in the short attack."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="ten minutes in place of an hour")
    parser.add_argument("--seed", type=int, help=f"of everything that is drawn; by default {SEED}, or the day")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--amount", type=int, help="how much of each row, in place of what is usual")
    parser.add_argument("--output", type=Path, help="a JSON file for what was found")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else SEED if options.short else int(time.time()) // 86_400
    torch.set_num_threads(1)
    register()
    rows = []
    for name in options.only:
        attack, title, target, long, short = ROWS[name]
        row = Row(title, target)
        start = time.monotonic()
        with workshop() as work:
            os.environ["SPECTAIL_CACHE"] = str(work / "cache")
            attack(row, work, seed, options.amount or (short if options.short else long))
        rows.append(row)
        print(f"{name}: {row.cases:,} cases, {len(row.failures)} failed, {time.monotonic() - start:.0f} s", flush=True)
    print(f"\nseed {seed}\n\n| test | cases | failed | target |\n|---|---:|---:|---|")
    for row in rows:
        print(f"| {row.title} | {row.cases:,} | {len(row.failures)} | {row.target} |")
    if options.output is not None:
        options.output.write_text(json.dumps({"seed": seed, "rows": [vars(row) for row in rows]}, indent=1) + "\n")
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
