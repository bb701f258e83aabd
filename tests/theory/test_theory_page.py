"""docs/theory.md: its Python runs, prints what it says, and its numbers are those of the results file."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from spectail.theory import Bound

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "theory.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_snippets_run_and_print_what_they_say(capsys):
    namespace = {}
    for snippet in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(snippet, str(PAGE), "exec"), namespace)
    printed = capsys.readouterr().out
    wanted = re.findall(r"^print\(.*\)  # (.*)$", TEXT, re.MULTILINE)
    assert len(wanted) == 4
    assert all(line in printed.splitlines() for line in wanted)
    found = namespace["found"]
    assert f"{float(found.per_class.min()):,.0f}"[:4] == "29,6"
    assert f"{found.images_needed:.0e}" == "2e+11"
    right = namespace["model"](namespace["features"]).argmax(1) == namespace["labels"]
    assert float(right.double().mean()) == pytest.approx(0.97, abs=0.01)


def test_every_term_is_explained():
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE))))
    inputs = {"counts", "gamma", "delta", "smallest", "weights", "folded"}
    assert {field.name for field in fields(Bound)} - inputs <= named


def test_the_table_is_the_results_file():
    results = json.loads((ROOT / "benchmarks" / "results" / "ema_stability.json").read_text())
    means, limits = results["means"], results["settings"]["absent_gap"]
    assert f"a gap of {min(limits):.2f} to {max(limits):.2f}, depending on the seed" in TEXT
    rows = re.findall(r"^\| (0(?:\.\d+)?) \| (.*) \|$", TEXT, re.MULTILINE)
    assert [beta for beta, _ in rows] == ["0", "0.5", "0.9", "0.98"]
    for beta, rest in rows:
        batch, by_class = (
            next(row for row in means if row["ema"] == mode and row["beta"] == float(beta))
            for mode in ("batch", "class")
        )
        wanted = [batch["predicted_gain"], batch["gain"], by_class["gain"]]
        wanted += [batch["predicted_variance"], batch["variance"], by_class["variance"]]
        wanted += [batch["noise"], by_class["noise"], batch["gap"], by_class["gap"]]
        for printed, value in zip(rest.split(" | "), wanted, strict=True):
            digits = len(printed.partition(".")[2])
            assert float(printed) == pytest.approx(value, abs=0.51 * 10**-digits), (beta, printed)


def test_the_figure_is_there():
    assert (PAGE.parent / "figures" / "ema_stability.png").read_bytes()[:4] == b"\x89PNG"
