"""Curves of CAR's settings: which runs belong together, means and deviations, and the figure as a file."""

from pathlib import Path

import numpy as np
import pytest

from spectail.data import load
from spectail.report import curves
from spectail.report.run_record import RunRecord
from spectail.training.config_io import from_dict


@pytest.fixture(scope="module")
def manifest():
    return load("glyphs-lt", num_classes=4, max_per_class=8, imbalance=4.0).manifest


@pytest.fixture
def make(manifest):
    def build(seed=0, *, method="car", overall=50.0, tail=20.0, worst=1.0, preset="paper", epochs=5, **car):
        content = {"method": method, "seed": seed, "output": f"runs/{seed}-{car}", "optim": {"epochs": epochs},
                   "car": {"preset": preset, **car}}  # fmt: skip
        config = from_dict(content)
        results = {"method": method, "overall": overall, "tail": tail, "worst_test": worst,
                   "car": {"preset": preset} if method == "car" else None}  # fmt: skip
        return RunRecord(Path("x"), config, results, manifest, [])

    return build


def test_mean_and_deviation_over_seeds(make):
    figures = {0.1: [50.0, 52.0, 57.0], 0.5: [60.0, 61.0, 59.0], 0.9: [40.0]}
    runs = [make(seed, beta=beta, overall=value, tail=value / 2, worst=None)
            for beta, values in figures.items() for seed, value in enumerate(values)]  # fmt: skip
    (panel,) = curves.find_panels(runs[::-1])
    assert panel.setting == "beta"
    (curve,) = panel.curves
    assert curve.label == ""
    assert [(point.value, point.runs) for point in curve.points] == [(0.1, 3), (0.5, 3), (0.9, 1)]
    for point in curve.points:
        values = np.array(figures[point.value])
        assert point.mean["overall"] == pytest.approx(values.mean())
        assert point.mean["tail"] == pytest.approx(values.mean() / 2)
        assert point.mean["worst_test"] is None
        assert point.std["overall"] == (pytest.approx(values.std(ddof=1)) if len(values) > 1 else None)
    sentence = curves.finding(panel)
    assert "from 0.1 to 0.9 moves overall accuracy by 20.0 points; the best value tried is 0.5 (60.0 %)" in sentence


def test_presets_and_defaults_are_values_too(make):
    runs = [make(), make(beta=0.3), make(alpha=0.1), make(gamma=2.0), make(r0=0.01)]
    panels = {panel.setting: panel for panel in curves.find_panels(runs)}
    values = {name: [point.value for point in panel.curves[0].points] for name, panel in panels.items()}
    assert values == {"beta": [0.3, 0.5], "r0": [0.01, 0.2], "alpha": [0.1, 0.5], "gamma": [0.0, 2.0]}
    assert make(preset="classwise").car_settings == {"beta": 0.9, "r0": 0.2, "alpha": 10.0, "gamma": 2.0}
    assert make(preset="reference").car_settings["alpha"] == 0.3
    assert make(method="ce").car_settings is None


def test_a_grid_has_a_curve_for_every_combination(make):
    runs = [make(beta=beta, alpha=alpha, overall=10 * beta + alpha) for beta in (0.1, 0.5) for alpha in (0.3, 1.0, 3.0)]
    panels = {panel.setting: panel for panel in curves.find_panels(runs)}
    assert {curve.label: len(curve.points) for curve in panels["alpha"].curves} == {"beta 0.1": 3, "beta 0.5": 3}
    assert {curve.label for curve in panels["beta"].curves} == {"alpha 0.3", "alpha 1.0", "alpha 3.0"}
    assert "at most" in curves.finding(panels["beta"])


def test_runs_that_differ_otherwise_are_not_joined(make):
    assert curves.find_panels([make(beta=0.1), make(beta=0.5, epochs=6)]) == []
    assert curves.find_panels([make(beta=0.1), make(beta=0.5, preset="classwise")]) == []
    assert curves.find_panels([make(method="ce"), make(method="ce", seed=1)]) == []
    assert curves.find_panels([make(seed=0), make(seed=1)]) == []
    assert curves.find_panels([]) == []


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_the_figure_as_a_file(ending, start, make, tmp_path):
    panels = curves.find_panels([make(beta=value, overall=value) for value in (0.0, 0.5)])
    path = tmp_path / f"curves{ending}"
    curves.save_curves(panels, path)
    assert path.read_bytes().startswith(start)


def test_four_panels_on_one_row(make, tmp_path):
    runs = [make(), make(beta=0.3), make(alpha=50.0), make(gamma=2.0), make(r0=0.01), make(alpha=0.1)]
    curves.save_curves(curves.find_panels(runs), tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    assert all(f"axes_{place}" in text for place in (1, 2, 3, 4))
    assert "mathdefault" not in text  # ticks of the logarithmic axis are plain numbers
    assert all(f">{value}<" in text for value in ("0.1", "0.5", "50"))
    drawn = curves.drawings(curves.find_panels(runs))
    assert len(drawn) == 4
    assert all("var(--blue)" in drawing.svg for drawing in drawn)
    assert "the best value tried" in drawn[0].svg  # said to those who cannot see it


def test_refusals(make, tmp_path):
    with pytest.raises(ValueError, match="there is no curve to draw: the runs must differ in CAR's beta"):
        curves.save_curves([], tmp_path / "c.png")
    with pytest.raises(ValueError, match=r"--curves must end in .png, .svg, .pdf; got 'c.gif'"):
        curves.save_curves([], Path("c.gif"))
    assert list(tmp_path.iterdir()) == []


def test_the_finding_says_what_seeds_do(make):
    def said(figures):
        runs = [make(seed, beta=beta, overall=value) for beta, values in figures.items()
                for seed, value in enumerate(values)]  # fmt: skip
        return curves.finding(curves.find_panels(runs)[0])

    assert said({0.1: [50.0], 0.9: [60.0]}).endswith("(60.0 %); one seed each.")
    assert said({0.1: [50.0, 58.0], 0.9: [55.0, 56.0]}).endswith("; seeds alone move it as much.")  # 5.7 against 1.5
    assert said({0.1: [50.0, 51.0], 0.9: [60.0, 61.0]}).endswith("(60.5 %).")
