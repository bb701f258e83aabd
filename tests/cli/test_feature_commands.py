"""The commands on features: prepare, train, compare, evaluate, report, predict and export."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from experiments.small_cells import Here

from spectail.cli import many_runs
from spectail.cli.main import main

FLAGS = ("--epochs", "2", "--batch-size", "16", "--device", "cpu", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of features and a run on it."""
    place = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    labels = np.repeat(["fox", "ant", "bee"], [40, 20, 8])
    x = rng.normal(size=(68, 5)) + (labels == "bee")[:, None] * 3
    np.savez(place / "x.npz", X=x, y=labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["train", "--dataset", "features:x.npz", *FLAGS, "--output", "run"]) == 0
    return place


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


def said(capsys, *arguments, code=0):
    capsys.readouterr()
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_prepare_shows_what_there_is(capsys):
    out = said(capsys, "prepare", "features:x.npz", "--output", "prepared")
    results = json.loads(Path("run/results.json").read_text())
    assert f"identity {results['identity']}" in out


def test_evaluate_measures_the_same(capsys):
    found = json.loads(said(capsys, "evaluate", "run", "--device", "cpu", "--json"))
    results = json.loads(Path("run/results.json").read_text())
    assert [found[key] for key in ("overall", "tail", "per_class")] == [
        results[key] for key in ("overall", "tail", "per_class")
    ]


def test_report_has_no_pictures_and_says_why(capsys):
    assert "report in page.html" in said(capsys, "report", "run", "--output", "page.html")
    assert "the data are features" in Path("page.html").read_text()


def test_compare(capsys, monkeypatch):
    monkeypatch.setattr(many_runs, "make_engine", lambda *options: Here())
    out = said(capsys, "compare", "--methods", "ce", "balanced-softmax", "--dataset", "features:x.npz", *FLAGS,
               "--output", "both", "--no-report")  # fmt: skip
    assert "balanced-softmax" in out
    assert len(json.loads(Path("both/compare.json").read_text())["ce"]) == 1


def new_rows():
    return np.random.default_rng(3).normal(size=(4, 5))


def test_predict_takes_every_format(capsys):
    np.savez("new.npz", features=new_rows())
    np.savez("labelled.npz", X=new_rows(), y=np.zeros(4))
    np.save("new.npy", new_rows())
    pq.write_table(pa.table({"vector": pa.array(list(new_rows()), pa.list_(pa.float64()))}), "new.parquet")
    found = []
    for name in ("new.npz", "labelled.npz", "new.npy", "new.parquet"):
        rows = [json.loads(line) for line in said(capsys, "predict", "run", name, "--json").splitlines()]
        assert [row["row"] for row in rows] == [f"{name} row {at}" for at in range(4)]
        found.append([row["classes"] for row in rows])
    assert all(other == found[0] for other in found)
    assert {name for name, _ in found[0][0]} == {"ant", "bee", "fox"}
    assert "new.npz row 3" in said(capsys, "predict", "run", "new.npz", "--top", "1")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"X": np.zeros((2, 6))}, "bad.npz has 6 features in a row, the run was trained on 5"),
        ({"X": np.full((2, 5), np.nan)}, "bad.npz has features that are not finite"),
        ({"y": np.zeros(3)}, "bad.npz has no features of the train split"),
    ],
)
def test_predict_refuses_other_features(capsys, arrays, sentence):
    np.savez("bad.npz", **arrays)
    assert sentence in said(capsys, "predict", "run", "bad.npz", code=1)


def test_predict_refuses_images_and_nothing(capsys):
    Path("photo.jpg").write_bytes(b"x")
    assert "photo.jpg ends in '.jpg'; expected a .npz" in said(capsys, "predict", "run", "photo.jpg", code=1)
    assert "none.npz does not exist" in said(capsys, "predict", "run", "none.npz", code=1)
    assert "a file of features" in said(capsys, "predict", "run", code=1)


def test_export_takes_features(capsys):
    assert "[null, 5] to logits" in said(capsys, "export", "run", "--output", "model.pt2")
    described = json.loads(Path("model.json").read_text())
    assert (described["width"], described["input"], described["classes"]) == (5, "features", ["ant", "bee", "fox"])
    card = Path("README.md").read_text()
    exec(compile(card.split("```python\n")[1].split("```")[0], "README.md", "exec"), {})
    model = torch.export.load("model.pt2").module()
    shares = model(torch.from_numpy(new_rows()).float()).softmax(1).tolist()
    np.save("new.npy", new_rows())
    lines = said(capsys, "predict", "run", "new.npy", "--json").splitlines()
    for row, line in zip(shares, lines, strict=True):
        assert dict(json.loads(line)["classes"]) == pytest.approx(dict(zip(["ant", "bee", "fox"], row, strict=True)))
