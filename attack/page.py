"""The report in Chromium, with names that are scripts: the tests of the page that open it."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from .cases import Row


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    if not (shutil.which("chromedriver") or os.environ.get("CHROMEDRIVER")):
        print("  no chromedriver: the page was not opened", file=sys.stderr)
        return
    environment = os.environ | {"SPECTAIL_BROWSER": "1", "PYTHONHASHSEED": str(random.Random(seed).randrange(1000))}
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "tests/browser/test_report_page.py",
        "-k",
        "hostile or silent or downloads",
    ]
    found = subprocess.run(
        words, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True, check=False
    )
    for line in found.stdout.splitlines():
        if " PASSED" in line or " FAILED" in line or " ERROR" in line:
            row.add(line.partition("::")[2].partition(" ")[0], None if " PASSED" in line else "fails")
    if "passed" not in found.stdout:
        row.add("Chromium", found.stdout[-300:] + found.stderr[-300:])
