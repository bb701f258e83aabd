"""What the page says to do where there is no advice of `fit`, and every mistake by name."""

import csv
import io
from dataclasses import replace

import numpy as np
from test_page import written

from spectail.diagnosis import analyse, make_predictions
from spectail.report.hints import find_hints
from spectail.report.mistakes import mistakes_csv


def mixed():
    """Four classes: mugs and cups are mixed up, bowls are rare and never recognised, one plate is surely a bowl."""
    labels = np.repeat([0, 1, 2, 3], 20)
    predicted = labels.copy()
    predicted[:6], predicted[20:28], predicted[40:60], predicted[60] = 1, 0, 3, 2
    logits = 2.0 * np.eye(4)[predicted]
    logits[60, 2] = 9.0
    names = ["mug", "cup", "=bowl", "plate"]
    return make_predictions(labels, logits, class_names=names, class_counts=[500, 300, 4, 120], name="model")


def test_hints_from_the_confusions():
    found = find_hints(analyse(mixed()), None)
    assert [entry["name"] for entry in found.collect] == ["=bowl"]
    assert [(pair.first, pair.second, pair.taken, pair.images) for pair in found.pairs] == [
        (2, 3, 21, 40),
        (0, 1, 14, 40),
    ]
    assert [(one.name, one.true, one.predicted) for one in found.doubtful] == [("test image 60", 3, 2)]
    assert "rare ones in 0 %" in found.tune[0]
    assert found.unfinished is None


def test_a_perfect_classifier_gets_no_advice(tmp_path):
    assert not find_hints(analyse(make_predictions([0, 1, 2], [0, 1, 2])), None)
    _, text, _ = written(tmp_path / "a.html", make_predictions([0, 1, 2], [0, 1, 2]))
    assert 'id="advice"' not in text


def test_the_page_says_them_and_lists_every_mistake(tmp_path):
    predictions = mixed()
    _, _, page = written(tmp_path / "a.html", predictions)
    for words in ("What you can do", "Collect more of these classes", "=bowl and plate21 of 40", "spectail adjust"):
        assert words in page.text
    rows = list(csv.DictReader(io.StringIO(page.file("mistakes.csv"))))
    assert [int(row["position"]) for row in rows] == np.flatnonzero(
        predictions.predicted != predictions.labels
    ).tolist()
    assert {row["true_class"] for row in rows} == {"mug", "cup", "'=bowl", "plate"}  # no formula for a spreadsheet
    assert float(rows[-1]["confidence"]) > 99


def test_of_several_the_best_is_advised_and_paths_are_named(tmp_path):
    strong = mixed()
    named = replace(strong, paths=tuple(f"photos/{at}.jpg" for at in range(80)))
    assert "photos/60.jpg" in mistakes_csv([analyse(named)])
    worse = replace(strong, predicted=(strong.labels + 1) % 4, name="worse")
    _, _, page = written(tmp_path / "a.html", worse, named)
    assert "About model, whose classes are recognised best" in page.text
    assert "photos/60.jpg" in page.text
