"""`spectail report RUN...` on real runs: the file, example images, several runs, curves, and refusals."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from training.runs import QUICK

from spectail.cli.main import main
from spectail.diagnosis.text_table import number
from spectail.report.run_record import read_run


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Cross entropy, and CAR with two values of beta, the first with the page that training writes."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {"ce": [], "car1": ["--method", "car", "--log-cm-gap"], "car2": ["--method", "car", "--car.beta", "0.9"]}
    for name, flags in kinds.items():
        page = [] if name == "car1" else ["--no-report"]
        assert main(["train", *QUICK, *flags, "--quiet", *page, "--output", str(folder / name)]) == 0
    return folder


def report(*arguments):
    return main(["report", *map(str, arguments)])


def test_one_run(runs, capsys):
    assert report(runs / "ce") == 0
    assert f"report in {runs / 'ce' / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    text = (runs / "ce" / "report.html").read_text(encoding="utf-8")
    results = json.loads((runs / "ce" / "results.json").read_text())
    assert f"{results['overall']:.1f} % of the test images are recognised" in text
    assert results["identity"] in text
    assert f"<span>--output {runs / 'ce'}</span>" in text
    assert "training loss" in text
    assert len(re.findall(r'<img src="data:image/png;base64,', text)) > 5
    assert "No example images" not in text
    assert 'id="settings"' not in text


def test_the_page_of_a_run_that_has_just_ended_is_that_of_its_folder(runs, tmp_path):
    """The one is made from memory, the other from files."""
    assert report(runs / "car1", "--output", tmp_path / "again.html") == 0
    assert (tmp_path / "again.html").read_bytes() == (runs / "car1" / "report.html").read_bytes()


def test_the_pictures_are_of_the_images_they_name(runs):
    assert report(runs / "ce") == 0
    text = (runs / "ce" / "report.html").read_text(encoding="utf-8")
    record = read_run(runs / "ce")
    with np.load(runs / "ce" / "predictions.npz") as found:
        predicted = found["logits"].argmax(1)
    names = record.manifest.classes
    pictures = re.findall(
        r'<img src="data:image/png;base64,([^"]+)"[^>]* alt="test image of class ([^"]+), taken for ([^"]+)">', text
    )
    assert len(pictures) > 5
    for content, true, taken in pictures:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
        places = np.flatnonzero((record.data.test.labels == names.index(true)) & (predicted == names.index(taken)))
        assert any(np.array_equal(record.data.test.images.read(int(at)), pixels) for at in places)
        assert true != taken


def test_several_runs(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert report(runs / "ce", runs / "car1", runs / "car2", "--curves", "beta.svg") == 0
    assert "curves in beta.svg" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "3 classifiers compared" in text
    assert "Each compared with" in text
    assert "<bdi>car (car1)</bdi>" in text  # two runs of the method car with one seed: folders tell them apart
    assert 'id="settings"' in text
    assert "the best value tried is" in text
    assert "CAR: gap between its memory" in text
    assert (tmp_path / "beta.svg").read_text().startswith("<?xml")


def test_opening(runs, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert report(runs / "ce", "--output", tmp_path / "a" / "r.html", "--open") == 0
    assert opened == [(tmp_path / "a" / "r.html").as_uri()]


def test_data_that_cannot_be_loaded_is_said_in_one_line(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "ce", copy)
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("dataset: glyphs-lt", "dataset: folder:/nowhere/to/be/found"))
    config.write_text(re.sub(r"(num_classes|max_per_class|imbalance): .*", r"\1: null", config.read_text()))
    (copy / "digests.json").unlink()  # the change is meant
    assert report(copy) == 0
    text = (copy / "report.html").read_text(encoding="utf-8")
    assert re.search(r"No example images: [^<\n]*nowhere[^<\n]*\.", text)
    assert "<img" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected the folders of one run or more; got none"),
        (["nothing-here"], "nothing-here does not exist"),
        (["RUNS/ce", "RUNS/ce"], "is named twice; expected different runs"),
        (
            ["RUNS"],
            "is a folder of runs; it holds 3 finished runs. Name those to report: spectail report RUNS/car1 RUNS",
        ),
        (["."], ". holds no finished run: config.yaml is missing"),
        (["RUNS/ce", "--output", "RUNS"], "is a folder; expected a file"),
        (["RUNS/ce", "--curves", "c.gif"], "--curves must end in .png, .svg, .pdf; got 'c.gif'"),
        (["RUNS/ce", "RUNS/car1", "--output", "RUNS/x.html", "--curves", "c.png"], "there is no curve to draw"),
    ],
)
def test_refusals(arguments, words, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert report(*(argument.replace("RUNS", str(runs)) for argument in arguments)) == 1
    err = capsys.readouterr().err
    assert err.startswith("spectail report: ")
    assert words.replace("RUNS", str(runs)) in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_other_classes_are_refused(runs, tmp_path, capsys):
    flags = [*QUICK[:3], "5", *QUICK[4:]]
    assert main(["train", *flags, "--quiet", "--output", str(tmp_path / "five")]) == 0
    capsys.readouterr()
    assert report(runs / "ce", tmp_path / "five", "--output", tmp_path / "r.html") == 1
    assert "must be of the same test images" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_seeds_of_one_method_are_put_together(runs, tmp_path):
    copies = []
    for seed in (0, 1, 2):
        folder = tmp_path / f"ce-{seed}"
        shutil.copytree(runs / "ce", folder)
        config = folder / "config.yaml"
        config.write_text(re.sub(r"(?m)^seed: \d+", f"seed: {seed}", config.read_text()))
        (folder / "digests.json").unlink()
        copies.append(folder)
    assert report(runs / "car1", *copies, "--output", tmp_path / "r.html") == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "2 methods compared over 4 runs" in text
    overall = json.loads((runs / "ce" / "results.json").read_text())["overall"]
    assert f"{number(overall)} ± 0.0 (3)" in text  # copies do not differ
    assert "(one seed)" in text
    assert re.search(r"<h3><bdi>ce, seed \d \(median of 3 seeds\)</bdi></h3>", text)
    assert "could not be judged" in text  # one seed in common
