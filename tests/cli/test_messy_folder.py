"""A folder as people have it: one command trains on it and says what it left out."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from data.builders import class_folders, write_image
from experiments.small_cells import Here

from spectail.cli import many_runs
from spectail.cli.main import main
from spectail.diagnosis import read_predictions

FLAGS = ("--model", "tiny", "--transform", "cifar", "--epochs", "1", "--batch-size", "16", "--device", "cpu",
         "--workers", "0")  # fmt: skip


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Four classes, of which one is broken, an empty class folder, stray files, and an image under two labels."""
    class_folders(tmp_path / "photos", {"ant": 20, "bee <b>": 8, "cow": 5, "dog": 4}, side=40)
    root = tmp_path / "photos"
    (root / "new arrivals").mkdir()
    for name in ("README.txt", ".DS_Store", "ant/Thumbs.db"):
        (root / name).write_text("no image")
    (root / "ant/000.png").write_bytes(b"<html>404</html>")
    for file in (root / "dog").iterdir():
        file.write_bytes(b"")
    write_image(root / "ant/twin.png", np.zeros((40, 40, 3), np.uint8))
    write_image(root / "cow/twin.png", np.zeros((40, 40, 3), np.uint8))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)
    return root


def said(capsys, *arguments, code=0):
    capsys.readouterr()
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_one_command(photos, capsys):
    out = said(capsys, "train", "photos", *FLAGS)
    left_out = re.findall(r"^left out: (.*)$", out, re.MULTILINE)
    assert left_out[:2] == ["class 'new arrivals': its folder has no image",
                            "class 'dog': none of its 3 training images can be read"]  # fmt: skip
    assert sorted(line.split()[0] for line in left_out[2:]) == ["ant/000.png", *(f"dog/00{k}.png" for k in range(4))]
    run = Path("runs/photos-tiny-ce-seed0")
    assert f"results in {run}" in out
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["classes"] == ["ant", "bee <b>", "cow"]
    assert "data:image/png" in (run / "report.html").read_text()
    with np.load(run / "predictions.npz") as arrays:
        paths, labels = arrays["paths"].tolist(), arrays["labels"].tolist()
    assert all((photos / path).is_file() for path in paths)
    assert [path.split("/")[0] for path in paths] == [manifest["classes"][label] for label in labels]
    assert read_predictions(run).paths == tuple(paths)


def test_the_run_can_be_used_later(photos, capsys):
    said(capsys, "train", "photos", *FLAGS, "--no-report", "--output", "run")
    found = json.loads(said(capsys, "evaluate", "run", "--device", "cpu", "--json"))
    assert found["overall"] == json.loads(Path("run/results.json").read_text())["overall"]
    said(capsys, "report", "run")
    page = Path("run/report.html").read_text()
    assert "No example images" not in page
    assert 'title="bee &lt;b&gt;/' in page or 'title="ant/' in page or 'title="cow/' in page
    assert "photos/bee <b>/001.png" in said(capsys, "predict", "run", "photos/bee <b>/001.png")
    assert "already holds a run" in said(capsys, "train", "photos", *FLAGS, "--output", "run", code=1)
    assert "results in run" in said(capsys, "train", "photos", *FLAGS, "--output", "run", "--resume", "--no-report")


def test_prepare_names_files(photos, capsys):
    out = said(capsys, "prepare", "photos")
    assert "note: left out: class 'new arrivals': its folder has no image" in out
    assert re.search(r"1 identical images in train.*twin\.png.*twin\.png", out)
    assert "identity" in out


def test_strict_refuses(photos, capsys):
    assert "class folder photos/new arrivals has no image" in said(
        capsys, "train", "photos", *FLAGS, "--strict", code=1
    )
    (photos / "new arrivals").rmdir()
    assert "cannot be read: " in said(capsys, "prepare", "photos", "--strict", code=1)
    assert not Path("runs").exists()


def test_compare_takes_the_folder_too(photos, capsys, monkeypatch):
    monkeypatch.setattr(many_runs, "make_engine", lambda *options: Here())
    said(capsys, "compare", "photos", "--methods", "ce", "focal", *FLAGS, "--output", "both", "--no-report")
    assert len(json.loads(Path("both/compare.json").read_text())) == 2
    again = said(capsys, "compare", "photos", "--methods", "ce", "focal", *FLAGS, "--output", "both", "--no-report")
    assert "focal" in again


def test_a_benchmark_is_never_short_of_images(capsys):
    assert "--strict means nothing for glyphs-lt" in said(capsys, "prepare", "glyphs-lt", "--strict", code=1)
