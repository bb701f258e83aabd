"""What the page says under "What you can do", from the record in a run's folder."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from test_page import NASTY, Page, written

from spectail.data import load
from spectail.diagnosis import make_predictions
from spectail.diagnosis.advice import Advice, ClassPair, Duplicate, LabelIssue, MoreImages
from spectail.report import page
from spectail.report.advice import AdviceView, advice_views
from spectail.report.hints import find_hints, unfinished
from spectail.report.run_record import RunRecord
from spectail.training.config_io import from_dict

OPTIONS = {"num_classes": 4, "max_per_class": 8, "imbalance": 4.0}
PAIR = ClassPair("mug", "cup", 31, 120, 18.9, 34.3, 2.0)
MORE = MoreImages("bowl", 5, 40.0, 13.0, 9.0, 17.0)
COPY = Duplicate("two labels", ("a/1.jpg", "b/2.jpg"), (1, 2), ("mug", "cup"), ("train", "train"))


@pytest.fixture(scope="module")
def data():
    return load("glyphs-lt", **OPTIONS)


@pytest.fixture
def make(data, tmp_path):
    """The page of a run with this advice."""

    def build(advice, *, amount=1):
        runs = []
        for number in range(amount):
            folder = tmp_path / f"run{number}"
            config = from_dict({"data": OPTIONS, "output": str(folder)})
            runs.append(RunRecord(folder, config, {"method": "ce"}, data.manifest, [], None, data))
            if advice is not None:
                advice.save(folder)
        labels = data.test.labels
        logits = 3 * np.eye(4)[labels] + np.random.default_rng(0).normal(size=(len(labels), 4))
        known = {"class_names": data.train.names, "class_counts": data.train.counts.counts.numpy()}
        predictions = [make_predictions(labels, logits, name=f"ce {number}", **known) for number in range(amount)]
        return written(tmp_path / "report.html", *predictions, runs=runs)[1:]

    return build


def issue(data, place, **more):
    given = int(data.train.labels[place])
    entry = LabelIssue(place, f"photos/{place}.jpg", data.train.names[given], data.train.names[given - 1], 0.93)
    return replace(entry, **more)


def section(text):
    return text[text.index('<section id="advice">') :].split("</section>")[0] + "</section>"


def test_without_advice_there_are_hints(make):
    text, _ = make(None)
    assert "From the test predictions alone." in section(text)
    assert "judged by a head" not in section(text)


def test_a_run_that_was_not_trained_to_the_end_is_called_so(make, monkeypatch):
    told = {"late_gain": 4.26, "epochs": 12}
    monkeypatch.setattr(
        page, "find_hints", lambda analysis, run: find_hints(analysis, replace(run, results=told | run.results))
    )
    text, _ = make(Advice(300))
    said = Page(section(text)).text
    assert "Not trained to the end: accuracy still rose by 4.3 points in the last fifth of the 12 epochs." in said
    assert (
        unfinished({"worst_train": 0.0, "worst_train_class": "cup"})
        == "even in training, class 'cup' is never recognised"
    )


def test_everything_is_said(make, data):
    advice = Advice(
        300, tuple(issue(data, place) for place in range(12)), (PAIR,), (MORE,), (COPY,), 4.5, ("A note of ours.",)
    )
    text, whole = make(advice)
    assert '<a href="#advice">What you can do</a>' in text
    shown = Page(section(text))
    assert (
        "Check the labels of 12 images, look closer at 1 pair of classes, collect more images of 1 class and sort"
        in shown.text
    )
    first = advice.label_issues[0]
    assert f"labelled {first.given}, looks like {first.suggested}" in shown.text
    assert "photos/0.jpg" in shown.text
    assert "photos/7.jpg" in shown.text
    assert "photos/8.jpg" not in shown.text
    assert "4 more in advice.csv" in shown.text
    assert "wrong with 93 % confidence" in shown.text
    assert "31 of 120" in shown.text
    assert "19 to 34 %" in shown.text
    assert "+13.0 points" in shown.text
    assert "9.0 to 17.0, for 5 more images" in shown.text
    assert "a/1.jpg (mug) = b/2.jpg (cup)" in shown.text
    assert "A note of ours." in shown.text
    rows = list(csv.DictReader(io.StringIO(whole.file("advice.csv"))))
    assert len(rows) == 16
    assert rows[11]["file"] == "photos/11.jpg"


def test_pictures_are_those_of_the_images(make, data):
    text, _ = make(Advice(300, (issue(data, 3), issue(data, 0, file=None))))
    images = [attributes for tag, attributes in Page(section(text)).tags if tag == "img"]
    assert len(images) == 2
    assert all(entry["src"].startswith("data:image/png;base64,") for entry in images)
    assert images[0]["src"] != images[1]["src"]
    assert images[0]["alt"].startswith(f"training image labelled {issue(data, 3).given}")
    assert "image 0 of the training set" in Page(section(text)).text


@pytest.mark.parametrize("change", [{"given": "something else"}, {"position": 10_000}])
def test_no_picture_where_the_images_are_others(change, make, data):
    """A wrong picture would be worse than none."""
    text, _ = make(Advice(300, (issue(data, 3), issue(data, 4, **change))))
    assert "<img" not in section(text)
    assert "photos/3.jpg" in section(text)


def test_nothing_to_do(make):
    text, _ = make(Advice(300, notes=("Why not.",)))
    assert "Nothing stands out" in section(text)
    assert "Why not." in section(text)


@pytest.mark.parametrize(
    ("advice", "sentence"),
    [
        (Advice(9, (LabelIssue(0, None, "a", "b", 0.9),)), "Check the label of 1 image."),
        (Advice(9, pairs=(PAIR, PAIR)), "Look closer at 2 pairs of classes."),
        (Advice(9, more_images=(MORE, MORE), duplicates=(COPY, COPY)),
         "Collect more images of 2 classes and sort out 2 images that are there twice."),
    ],
)  # fmt: skip
def test_the_summary(advice, sentence):
    assert AdviceView("run", advice, {}).summary == sentence


def test_names_and_files_stay_text(make, data):
    names = NASTY[:3]
    advice = Advice(
        300,
        tuple(issue(data, place, file=name, suggested=name) for place, name in enumerate(names)),
        tuple(replace(PAIR, first=name, second=name) for name in names),
        tuple(replace(MORE, name=name) for name in names),
        tuple(replace(COPY, files=(name, None), classes=(name, None), splits=("train", name)) for name in names),
        notes=names,
    )
    text, _ = make(advice)
    shown = Page(section(text))
    assert not shown.scripts
    assert not any("onerror" in attributes or "onmouseover" in attributes for _, attributes in shown.tags)
    assert all(" ".join(name.split()) in shown.text for name in names)


def test_several_runs_are_told_apart(make):
    text, whole = make(Advice(300, pairs=(PAIR,)), amount=2)
    shown = section(text)
    assert shown.index("ce 0") < shown.index("ce 1")
    assert shown.count("31 of 120") == 2
    assert {"advice1.csv", "advice2.csv"} <= whole.data["files"].keys()


def test_a_damaged_record_is_named(make, data, tmp_path):
    make(Advice(300))
    (tmp_path / "run0" / "advice.json").write_text("{")
    record = RunRecord(tmp_path / "run0", from_dict({}), {"method": "ce"}, data.manifest, [], None, data)
    with pytest.raises(ValueError, match=r"advice\.json is damaged"):
        advice_views([("ce", record)])


def test_the_section_has_its_place():
    assert list(page.SECTIONS)[:3] == ["choice", "overall", "advice"]


def test_the_record_is_plain_json(data, tmp_path):
    Advice(300, (issue(data, 0),), (PAIR,), (MORE,), (COPY,), 4.5).save(tmp_path)
    content = json.loads((tmp_path / "advice.json").read_text())
    assert content["label_issues"][0]["position"] == 0
    assert content["duplicates"][0]["splits"] == ["train", "train"]
