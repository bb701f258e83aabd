"""Drawings are valid SVG in the page's colours, show what they are given, and ignore the user's matplotlib settings."""

import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from spectail.report import figures

SPACE = "{http://www.w3.org/2000/svg}"
ROWS = [("ce $x$ <b>", 90.0, 10.0, 55.0), ('car "a"', None, 3.0, 60.0)]
BINS = [{"low": 0.0, "high": 50.0, "confidence": 30.0, "accuracy": 20.0, "count": 5},
        {"low": 50.0, "high": 90.0, "confidence": None, "accuracy": None, "count": 0},
        {"low": 90.0, "high": 100.0, "confidence": 95.0, "accuracy": 70.0, "count": 15}]  # fmt: skip
LOG = [{"stage": "one", "loss": 3.0, "lr": 0.1}, {"stage": "one", "loss": 2.0, "lr": 0.05, "val_overall": 40.0},
       {"stage": "two", "loss": float("nan"), "lr": 0.0, "val_overall": None}]  # fmt: skip
DRAWN = {
    "singular": lambda: figures.singular_values([2.0, 1.0, 0.5], "a"),
    "gap": lambda: figures.gap_bars(ROWS, "b"),
    "reliability": lambda: figures.reliability(BINS, "c"),
    "curve": lambda: figures.training_curves([("x", LOG)])[0],
}


def parsed(drawing):
    return ElementTree.fromstring(str(drawing.svg).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def texts(drawing):
    return ["".join(element.itertext()) for element in parsed(drawing).iter(f"{SPACE}text")]


@pytest.mark.parametrize("name", DRAWN)
def test_valid_and_themed(name):
    drawing = DRAWN[name]()
    root = parsed(drawing)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert root.get("width") is None  # it fills its column
    assert not list(root.iter(f"{SPACE}style"))  # it would style the whole page
    assert "var(--ink)" in drawing.svg or "var(--muted)" in drawing.svg
    assert set(re.findall(r"#[0-9a-f]{6}\b", str(drawing.svg))) <= {"#ffffff"}
    assert "font-family" not in drawing.svg
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(re.match(r"(a|b|c|curve0)-", entry) for entry in ids)
    used = re.findall(r'(?:url\(|href=")#([^")]+)', str(drawing.svg))
    assert set(used) <= set(ids)


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_twice_whatever_the_settings(name):
    before = DRAWN[name]().svg
    with mpl.rc_context({"axes.grid": False, "font.size": 20, "text.color": "red", "svg.fonttype": "path"}):
        assert DRAWN[name]().svg == before
        assert mpl.rcParams["font.size"] == 20


def test_bars_have_their_heights():
    drawing = figures.singular_values([2.0, 1.0, 0.5], "a")
    heights = []
    for path in parsed(drawing).iter(f"{SPACE}path"):
        if path.get("style", "").startswith(("fill: var(--red)", "fill: var(--blue)")):
            ys = [float(pair.split()[1]) for pair in re.findall(r"[ML] ([\d.]+ [\d.]+)", path.get("d"))]
            heights.append(max(ys) - min(ys))
    assert heights == pytest.approx([heights[0], heights[0] / 2, heights[0] / 4], rel=1e-4)
    assert "2.00, 1.00, 0.50" in parsed(drawing).get("aria-label")


def test_names_are_text():
    drawing = figures.gap_bars(ROWS, "b")
    shown = texts(drawing)
    assert "ce $x$ <b>" in shown
    assert 'car "a"' in shown
    assert {"90.0", "10.0", "55.0", "n/a", "3.0", "60.0"} <= set(shown)
    assert "worst class, training n/a" in parsed(drawing).get("aria-label")
    odd = figures.gap_bars([(' id="q" #2563a8 url(#z)', 1.0, 1.0, 1.0)], "b")
    assert any('id="q"' in entry for entry in texts(odd))
    assert any("#2563a8" in entry for entry in texts(odd))


def test_training_curves():
    found = figures.training_curves([("x", LOG)])
    assert [drawing.title for drawing in found] == [
        "training loss", "learning rate", "validation: all images right, %"
    ]  # fmt: skip
    assert "x from 3 to 2" in parsed(found[0]).get("aria-label")  # what is not a number is left out
    assert figures.training_curves([]) == []
    car = [{"spectral_norm": 1.0}, {"spectral_norm": 2.0}]
    both = figures.training_curves([("ce", LOG), ("car", car)])
    norm = next(drawing for drawing in both if drawing.title == "CAR: spectral norm")
    assert "var(--amber)" in norm.svg  # the second run keeps its colour where the first has nothing to show
    assert "stroke: var(--blue)" not in norm.svg


def test_the_legend_of_the_reliability_lies_above_it():
    shown = figures.reliability(BINS, "c")
    height = {"".join(entry.itertext()): float(entry.get("y")) for entry in parsed(shown).iter(f"{SPACE}text")}
    top = height["100"]  # of the axis
    assert all(height[text] < top for text in ("right", "perfectly honest", "share of all predictions"))
