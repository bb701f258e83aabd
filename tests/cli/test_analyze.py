"""`spectail analyze`: what it shows and writes, and that mistakes leave one sentence and no file."""

import csv
import json
import re

import numpy as np
import pytest
from training.runs import QUICK

from spectail.cli.main import main
from spectail.diagnosis import analyse, compare, read_predictions, summary
from spectail.diagnosis.text_table import number

NAMES = ["otter", "cat", "dog", "[red]fox", "owl"]
COUNTS = [500, 120, 60, 15, 5]


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


@pytest.fixture
def file(tmp_path):
    def write(name="one.npz", skill=1.5, seed=0, shift=0):
        draw = np.random.default_rng(seed)
        labels = (np.arange(200) + shift) % 5
        logits = draw.normal(size=(200, 5)).astype(np.float32) + 0.5 * np.log(COUNTS).astype(np.float32)
        logits[np.arange(200), labels] += skill
        np.savez(tmp_path / name, labels=labels, logits=logits, class_names=NAMES, class_counts=COUNTS)
        return tmp_path / name

    return write


def said(capsys, *arguments, code=0):
    capsys.readouterr()
    assert main(["analyze", *map(str, arguments)]) == code
    return capsys.readouterr()


def test_the_table(file, capsys):
    path = file()
    found = analyse(read_predictions(path))
    out, err = said(capsys, path, "--top", "3")
    assert err == ""
    for key in ("overall", "head", "medium", "tail"):
        assert f"{number(found.metrics[key])} ({number(found.intervals[key][0])}" in out
    assert f"{number(found.metrics['worst_test'])} ({number(found.intervals['worst'][0])}" in out
    top = found.top_confusions[0]
    assert re.search(rf"{re.escape(NAMES[top.true])} .*{re.escape(NAMES[top.predicted])} .*{top.count} ", out)
    assert "The strongest direction of confusion" in out
    listed = out.split("Lowest classes of one")[1].split("The strongest")[0]
    rows = re.findall(r"^│ (\S+)", listed, re.MULTILINE)
    assert rows == [NAMES[label] for label in found.worst[:3]]


def test_json_is_the_whole_analysis(file, capsys):
    path = file()
    out, err = said(capsys, path, "--json")
    assert err == ""
    assert json.loads(out) == {"analyses": [json.loads(json.dumps(summary(analyse(read_predictions(path)))))],
                               "comparison": None}  # fmt: skip


def test_two_files_are_compared(file, capsys):
    paths = file("one.npz"), file("two.npz", skill=3.0, seed=1)
    wanted = compare([analyse(read_predictions(path)) for path in paths]).pairs[0]
    content = json.loads(said(capsys, *paths, "--json").out)
    assert [entry["name"] for entry in content["analyses"]] == ["one", "two"]
    pair = content["comparison"]["pairs"][0]
    assert pair["differences"]["tail"]["low"] == wanted.differences["tail"].low
    assert pair["p_exact"] == wanted.p_exact
    out = said(capsys, *paths).out
    assert "Difference from one in points" in out
    assert f"{wanted.differences['overall'].value:+.1f} (" in out


def test_floors_for_ci(file, capsys):
    path = file()
    found = analyse(read_predictions(path)).metrics
    assert said(capsys, path, "--fail-under", "overall=1", "f1=1").err == ""
    err = said(capsys, path, "--fail-under", "worst=99", "tail=0", code=1).err
    assert err == (f"spectail analyze: one: accuracy of the worst class is {found['worst_test']:.1f} %, class "
                   f"{found['worst_test_class']!r}, below the floor of 99 %.\n")  # fmt: skip
    plain = path.with_name("plain.csv")
    plain.write_text("label,prediction\na,a\nb,b\n")
    err = said(capsys, plain, "--fail-under", "tail=5", code=1).err
    assert "plain has no such figure. Pass the training images per class with --counts." in err


def test_other_images_are_shown_but_not_compared(file, capsys):
    out, _ = said(capsys, file("one.npz"), file("two.npz", shift=1))
    assert "not compared: one and two must have the same labels in the same order" in out
    assert "Difference from" not in out


def test_files_of_one_name_are_told_apart(file, capsys, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        file().rename(tmp_path / folder / "one.npz")
    content = json.loads(said(capsys, tmp_path / "a" / "one.npz", tmp_path / "b" / "one.npz", "--json").out)
    assert [entry["name"] for entry in content["analyses"]] == [str(tmp_path / name / "one.npz") for name in "ab"]


def test_a_table_with_names_and_counts(capsys, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("gold,answer\ncat,cat\ndog,cat\ndog,dog\n")
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    (tmp_path / "counts.json").write_text('{"cat": 500, "dog": 5}')
    content = json.loads(
        said(
            capsys, path, "--label-column", "gold", "--prediction-column", "answer", "--names", tmp_path / "names.txt",
            "--counts", tmp_path / "counts.json", "--groups", "oltr", "--json",
        ).out
    )["analyses"][0]  # fmt: skip
    assert (content["metrics"]["head"], content["metrics"]["tail"]) == (100.0, 50.0)
    assert content["classes"] == ["dog", "cat"]
    assert content["metrics"]["groups"]["convention"] == "oltr"


def test_two_arrays(capsys, tmp_path):
    np.save(tmp_path / "labels.npy", [0, 1, 2])
    np.save(tmp_path / "scores.npy", np.eye(3)[[0, 1, 1]])
    content = json.loads(said(capsys, tmp_path / "labels.npy", "--scores", tmp_path / "scores.npy", "--json").out)
    assert content["analyses"][0]["metrics"]["per_class"] == [100, 100, 0]


def test_large_scores_are_let_go(file, capsys, monkeypatch):
    whole = said(capsys, file(), "--json").out
    monkeypatch.setattr("spectail.cli.analyze.HEAVY", 10)
    seen = []
    monkeypatch.setattr("spectail.diagnosis.terminal.show", lambda console, analyses, *rest: seen.extend(analyses))
    assert said(capsys, file(), "--json").out == whole
    said(capsys, file())
    assert seen[0].predictions.logits is None
    assert seen[0].calibration is not None


# ---- files


@pytest.mark.parametrize("kind", ["json", "csv", "md", "tex", "html"])
def test_files_that_are_written(kind, file, capsys, tmp_path):
    paths = file("one.npz"), file("two.npz", skill=3.0, seed=1)
    output = tmp_path / "new folder" / f"out.{kind}"
    out, err = said(capsys, *paths, "--output", output)
    assert err == ""
    assert f"written to {output}" in out
    assert [entry.name for entry in output.parent.iterdir()] == [output.name]
    text = output.read_text(encoding="utf-8")
    overall = analyse(read_predictions(paths[0])).metrics["overall"]
    if kind == "json":
        assert json.loads(text) == json.loads(said(capsys, *paths, "--json").out)
    elif kind == "csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert len(rows) == 10
        assert np.mean([float(row["accuracy"]) for row in rows[:5]]) == pytest.approx(overall)  # 40 images each
    elif kind == "html":
        assert text.lower().startswith("<!doctype html>")
        assert f"{overall:.1f}" in text
    else:
        assert f"{overall:.1f} (" in text
        assert text.count({"md": "**Lowest classes", "tex": "% Lowest classes"}[kind]) == 2


def test_a_file_that_cannot_be_written_leaves_nothing(file, capsys, tmp_path, monkeypatch):
    def full(*rest):
        raise OSError(28, "No space left on device")

    path = file()
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    (tmp_path / "out").mkdir()
    out, err = said(capsys, path, "--output", tmp_path / "out" / "a.md", code=1)
    assert out == ""
    assert err.startswith("spectail analyze: ")
    assert "No space left on device" in err
    assert err.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())


# ---- mistakes


def cut(path):
    path.write_bytes(path.read_bytes()[:100])
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda path, folder: [folder / "none.npz"], "none.npz does not exist"),
        (lambda path, folder: [folder], "is a folder without predictions.npz"),
        (lambda path, folder: [cut(path)], "no .npz file, or a damaged one"),
        (lambda path, folder: [path, "--top", "0"], "--top must lie in 1 to 50; got 0"),
        (lambda path, folder: [path, "--top", "51"], "--top must lie in 1 to 50; got 51"),
        (lambda path, folder: [path, "--label-column", "labls"], r"did you mean 'labels'\?"),
        (lambda path, folder: [path, "--groups", "halves"], "convention must be one of 'count', 'oltr'"),
        (lambda path, folder: [path, "--names", folder / "no.txt"], "no.txt does not exist"),
        (lambda path, folder: [path, "--output", folder / "a.docx"], "--output must end in .html, .json, .csv, .md"),
        (lambda path, folder: [path, path, folder / "none.npz"], "none.npz does not exist"),
        (lambda path, folder: [], "name at least one file"),
    ],
)  # fmt: skip
def test_mistakes(arguments, words, file, capsys, tmp_path):
    path = file()
    (tmp_path / "out").mkdir()
    given = arguments(path, tmp_path)
    given += [] if "--output" in given else ["--output", tmp_path / "out" / "a.md"]
    out, err = said(capsys, *given, code=1)
    assert out == ""
    assert err.startswith("spectail analyze: ")
    assert re.search(words, err)
    assert err.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())
    assert not (tmp_path / "a.docx").exists()


def test_an_output_folder_is_refused(file, capsys, tmp_path):
    (tmp_path / "a.md").mkdir()
    assert "is a folder; expected a file" in said(capsys, file(), "--output", tmp_path / "a.md", code=1).err


def test_the_command_is_listed(capsys):
    assert main(["--help"]) == 0
    assert re.search(r"^  analyze ", capsys.readouterr().out, re.MULTILINE)


# ---- a run


def test_a_run_is_found_as_its_results_say(capsys, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path_factory.mktemp("analyze-cache")))
    run = tmp_path / "my-run"
    assert main(["train", *QUICK, "--quiet", "--output", str(run)]) == 0
    results = json.loads((run / "results.json").read_text())
    found = json.loads(said(capsys, run, "--json").out)["analyses"][0]
    assert found["name"] == "my-run"
    for key, value in found["metrics"].items():
        assert value == (
            pytest.approx(results[key], rel=1e-6, abs=1e-3) if isinstance(value, float) else results[key]
        ), key


def test_scores_of_the_best_classes_are_left_out_and_that_is_said(capsys, tmp_path):
    path = tmp_path / "best.csv"
    path.write_text("filename,label,pred,p1,p2,p3\n" + "".join(f"{at},{at},{at // 2},.7,.2,.1\n" for at in range(6)))
    out, err = said(capsys, path)
    assert "best: Only the predicted classes are used: 'p1', 'p2', 'p3' are not one column of scores per class" in out
    assert err == ""
    out, err = said(capsys, path, "--json")
    assert json.loads(out)["analyses"][0]["metrics"]["overall"] == pytest.approx(100 / 6)
    assert "Only the predicted classes are used" in err
