"""Tables and figures of README and results page are what the evidence says."""

from __future__ import annotations

import csv
import importlib.util
import io
import statistics
import sys
from pathlib import Path

import pytest

from spectail.experiments.tables import from_csv

ROOT = Path(__file__).parents[2]
EVIDENCE = sorted((ROOT / "docs" / "evidence").glob("*.csv"))


@pytest.fixture(scope="module")
def make_results():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "make_results.py")
    module = sys.modules["make_results"] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_pages_show_the_evidence(make_results):
    assert make_results.main(["--check"]) == 0


def test_a_number_changed_by_hand_is_found(make_results, tmp_path, monkeypatch, capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    mark = make_results.MARKED.search(text)
    assert mark, "README has no generated table"
    changed = text[: mark.start()] + mark[0].replace(" ± ", " ±  ", 1) + text[mark.end() :]
    (tmp_path / "README.md").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(make_results, "PAGES", (tmp_path / "README.md",))
    assert make_results.main(["--check"]) == 1
    assert "README.md differs from its evidence" in capsys.readouterr().err
    monkeypatch.setattr(make_results, "draw", lambda: None)
    assert make_results.main([]) == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == text


def test_every_table_and_figure_has_its_evidence(make_results):
    known = {path.stem for path in EVIDENCE}
    assert known == {part.evidence for part in make_results.TABLES.values()}
    for name in make_results.DRAWN:
        assert (ROOT / "docs" / "figures" / f"{name}.png").exists()


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_evidence_is_whole(path):
    """Means and deviations are those of the seeds; accuracies are percentages; no machine's path is in it."""
    text = path.read_text(encoding="utf-8")
    assert not any(word in text for word in ("/work", "/tmp", "/home"))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert sum(len(row.figures) for row in from_csv(text)) == len(lines)
    for line in lines:
        values = [float(value) for value in line["values"].split()]
        assert len(values) == int(line["seeds"]) <= len(line["seed numbers"].split())
        if values:
            assert float(line["mean"]) == pytest.approx(statistics.fmean(values))
        if len(values) > 1:
            assert float(line["std"]) == pytest.approx(statistics.stdev(values))
        if not line["metric"].startswith(("gain_", "above_", "worst_ratio", "late_gain", "steps")):
            assert all(0 <= value <= 100 for value in values)
