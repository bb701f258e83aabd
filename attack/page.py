"""The report in Chromium, with names that are scripts: the tests of the page that open it."""

import os
import shutil
import sys
from pathlib import Path

from .cases import Row, tests


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    if shutil.which("chromedriver") or os.environ.get("CHROMEDRIVER"):
        tests(row, "tests/browser/test_report_page.py", "-k", "hostile or silent or downloads", SPECTAIL_BROWSER="1")
    else:
        print("  no chromedriver: the page was not opened", file=sys.stderr)
