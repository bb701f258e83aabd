"""examples/tour.ipynb runs from top to bottom, and shows what it says."""

import ast
import json
import sys
from pathlib import Path

from spectail.experiments import driver
from spectail.fit import crossfit

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def run(source, namespace):
    """What a notebook does with a cell; gives the value of its last line."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), TOUR.name, "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), TOUR.name, "eval"), namespace)


def test_the_tour(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_methods", None)
    monkeypatch.setattr(driver, "make_engine", lambda *_: crossfit.Here())  # heads are trained here, for a few steps
    monkeypatch.setattr(crossfit.cross_fit, "__kwdefaults__", crossfit.cross_fit.__kwdefaults__ | {"ladder": (10, 20)})
    cells = json.loads(TOUR.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")  # they would grow old
    namespace, shown = {}, []
    for cell in cells:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace('"--epochs", "20"', '"--epochs", "2"')
            shown.append(run(source, namespace))
    counts, fitted, analysis, frame, comparison, trained = shown
    assert (max(counts.values()), min(counts.values())) == (80, 4)
    assert (fitted, trained) == (0, 0)
    assert "<table>" in analysis._repr_html_()
    assert len(frame) == 5
    assert "CARLoss.balanced" in comparison._repr_html_()
    assert (tmp_path / "runs" / "tour" / "report.html").exists()
