"""The report as a file: what is in it, that it agrees with plain counting, and that names stay text."""

import base64
import csv
import gzip
import hashlib
import io
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spectail.diagnosis.analysis import analyse
from spectail.diagnosis.comparison import compare
from spectail.diagnosis.predictions import make_predictions
from spectail.report import page, payload
from spectail.report.figures import cluster_order
from spectail.report.page import write_report

NASTY = (
    "</script><script>window.hit=1</script>", '"><img src=x onerror="window.hit=1">', "' onmouseover='window.hit=1",
    "<!-- comment", "{{ 7 * 7 }}", "&lt;b&gt; & <b>", "\u202eesrever", "$x^2$ \\frac", "line\u2028break\u2029",
    "]]> --> <svg",
)  # fmt: skip


def random_predictions(size=12, images=600, seed=0, *, scores=True, counts=True, names=None, name="model"):
    labels = np.concatenate([np.arange(size), np.random.default_rng(7).integers(0, size, images - size)])
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(images, size)) + 2.5 * np.eye(size)[labels] * (labels[:, None] % 3)
    return make_predictions(
        labels, logits if scores else logits.argmax(1), name=name,
        class_names=names or [f"class {label}" for label in range(size)],
        class_counts=[max(300 >> label, 1) for label in range(size)] if counts else None,
    )  # fmt: skip


class Page(HTMLParser):
    """The tags of a page with their attributes, and the text between them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.scripts, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open[-1:] == ["script"]:
            self.scripts.append(text)
        elif self.open[-1:] != ["style"]:
            self.texts.append(text)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def file(self, name):
        return gzip.decompress(base64.b64decode(self.data["files"][name])).decode()


def written(path, *predictions, **options):
    analyses = [analyse(entry) for entry in predictions]
    write_report(analyses, path, comparison=compare(analyses) if len(analyses) > 1 else None, **options)
    text = path.read_text(encoding="utf-8")
    return analyses, text, Page(text)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The page of one classifier, in a folder that was not there."""
    return written(tmp_path_factory.mktemp("one") / "deep" / "report.html", random_predictions())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("two") / "report.html"
    return written(path, random_predictions(), random_predictions(seed=3, name="other"))


def test_one_classifier(one):
    (analysis,), _, read = one
    found = analysis.predictions
    assert read.open == []
    right = found.predicted == found.labels
    assert f"{100 * right.mean():.1f} % of the test images are recognised" in read.text
    per_class = np.array([right[found.labels == label].mean() for label in range(12)])
    worst = int(per_class.argmin())
    hits = int(right[found.labels == worst].sum())
    assert f"class {worst} fails most: {hits} of its {(found.labels == worst).sum()} images" in read.text
    first = analysis.top_confusions[0]
    assert f"class {first.true} is taken for class {first.predicted} in {first.count} of its" in read.text
    pairs = Counter(zip(found.labels[~right].tolist(), found.predicted[~right].tolist(), strict=True))
    share = 100 * sum(count for _, count in pairs.most_common(10)) / (~right).sum()
    assert f"The ten most frequent make up {share:.0f} % of all {(~right).sum()} mistakes" in read.text
    anchors = [attributes["href"][1:] for tag, attributes in read.tags if tag == "a"]
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(anchors) <= set(ids)
    assert {"training", "record", "generalise", "settings"}.isdisjoint(anchors)  # there is no run to tell of
    assert "The 8 classes with the lowest accuracy" in read.text


def test_nothing_is_fetched_and_only_the_own_script_runs(one):
    _, text, read = one
    for _, attributes in read.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert [tag for tag, _ in read.tags].count("script") == 2
    policy = next(attributes["content"] for tag, attributes in read.tags if "http-equiv" in attributes)
    digest = base64.b64encode(hashlib.sha256(read.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_names_stay_text(tmp_path):
    found = random_predictions(10, names=NASTY, name="<i>model</i>")
    other = random_predictions(10, names=NASTY, seed=1, name="</title>")
    for predictions in ((found,), (found, other)):
        _, _, read = written(tmp_path / "report.html", *predictions)
        plain = written(tmp_path / "plain.html", *(random_predictions(10, seed=at) for at in range(len(predictions))))[
            2
        ]
        assert [tag for tag, _ in read.tags] == [tag for tag, _ in plain.tags]
        for (_, attributes), (_, usual) in zip(read.tags, plain.tags, strict=True):
            assert attributes.keys() == usual.keys()
        assert read.data["classes"] == list(NASTY)
        assert all(name in "".join(read.texts) for name in analyse(found).predictions.class_names[:1])
        assert list(csv.DictReader(io.StringIO(read.file("classes.csv"))))[4]["class"] == "{{ 7 * 7 }}"


def test_the_embedded_matrix_is_the_whole_one(tmp_path):
    found = random_predictions(30, 2000)
    (analysis,), _, read = written(tmp_path / "report.html", found)
    run = read.data["runs"][0]
    matrix, at = np.zeros((30, 30), dtype=int), 0
    for step, count in zip(run["confusion"]["steps"], run["confusion"]["counts"], strict=True):
        at += step
        matrix[at // 30, at % 30] = count
    expected = np.zeros((30, 30), dtype=int)
    for label, predicted in zip(found.labels, found.predicted, strict=True):
        expected[predicted, label] += 1
    np.testing.assert_array_equal(matrix, expected)
    assert (
        sorted(run["orders"]["cluster"]) == sorted(run["orders"]["count"]) == run["orders"]["label"] == list(range(30))
    )
    assert [run["train"][label] for label in run["orders"]["count"]] == sorted(run["train"], reverse=True)
    assert run["accuracy"] == [round(value, 6) for value in analysis.metrics["per_class"]]


def test_very_many_cells_keep_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(payload, "CELLS", 20)
    _, _, read = written(tmp_path / "report.html", random_predictions(30, 2000))
    confusion = read.data["runs"][0]["confusion"]
    assert len(confusion["counts"]) == 20
    full = analyse(random_predictions(30, 2000)).confusion
    assert sorted(confusion["counts"]) == sorted(full.ravel().tolist())[-20:]
    assert f"{np.count_nonzero(full) - 20:,} cells with the fewest images are not drawn" in read.text


def test_downloads(two):
    (analysis, second), _, read = two
    found, other = analysis.predictions, second.predictions
    numbers = json.loads(read.file("report.json"))
    assert numbers["analyses"][1]["name"] == "other"
    assert numbers["analyses"][0]["metrics"]["overall"] == pytest.approx(100 * (found.predicted == found.labels).mean())
    assert numbers["comparison"]["pairs"][0]["name"] == "other"
    rows = list(csv.DictReader(io.StringIO(read.file("confusions.csv"))))
    assert (
        sum(int(row["count"]) for row in rows if row["predictions"] == "model")
        == (found.predicted != found.labels).sum()
    )
    for row in rows[:50]:
        of = found if row["predictions"] == "model" else other
        wanted = (of.labels == int(row["true"])) & (of.predicted == int(row["predicted"]))
        assert int(row["count"]) == wanted.sum()
        assert row["true_class"] == f"class {row['true']}"
    assert read.file("tables.md").startswith("**")
    assert r"\begin{tabular}" in read.file("tables.tex")
    files = {attributes["data-file"] for tag, attributes in read.tags if "data-file" in attributes}
    assert files == read.data["files"].keys()
    assert len(list(csv.DictReader(io.StringIO(read.file("classes.csv"))))) == 2 * len(analysis.per_class)


def test_several_are_compared_in_words(tmp_path):
    labels = [0] * 200 + [1] * 200
    first = make_predictions(labels, [0] * 300 + [1] * 100, name="A")
    second = make_predictions(labels, [0] * 230 + [1] * 170, name="B")
    analyses, _, read = written(tmp_path / "report.html", first, second)
    gain = compare(analyses).pairs[0].differences["overall"]
    sentence = f"B is better than A overall by 17.5 points (95 % interval {gain.low:.1f} to {gain.high:.1f})"
    assert sentence in read.text
    assert "Class by class, 1 is better and 0 worse beyond chance." in read.text
    _, _, read = written(tmp_path / "report.html", first, make_predictions(labels, [0] * 299 + [1] * 101, name="C"))
    assert "C and A cannot be told apart overall" in read.text
    many = [random_predictions(seed=at, name=f"m{at}") for at in range(8)]
    _, text, read = written(tmp_path / "report.html", *many)
    assert "Details are shown for the first 6 of 8 classifiers" in read.text
    assert [run["confusion"] is None for run in read.data["runs"]] == [False] * 6 + [True] * 2
    assert read.text.count("m7") >= 3
    assert "<summary>2 more</summary>" in text  # words for five pairs, two behind a click


@pytest.mark.parametrize("options", [{"scores": False}, {"counts": False}, {"scores": False, "counts": False}], ids=str)
def test_less_is_known(options, tmp_path):
    _, _, read = written(tmp_path / "report.html", random_predictions(**options))
    assert ("there are predicted classes only" in read.text) == ("scores" in options)
    assert ("How many training images they had is not known" in read.text) == ("counts" in options)
    assert ("Rare (tail)" in read.text) == ("counts" not in options)


def test_nothing_wrong_and_classes_without_test_images(tmp_path):
    _, _, read = written(tmp_path / "report.html", make_predictions([0, 1, 1], [0, 1, 1]))
    assert "every test image is recognised" in read.text
    assert "There are no mistakes, so there is no pattern." in read.text
    found = make_predictions([0, 0, 2], [0, 2, 2], class_names=["a", "b", "c"], class_counts=[200, 50, 3])
    _, _, read = written(tmp_path / "report.html", found)
    assert read.data["runs"][0]["accuracy"] == [50.0, None, 100.0]
    assert "No: rare classes are recognised as often" in read.text


def test_many_classes_have_a_list_instead_of_a_matrix(tmp_path):
    size = 2500
    labels = np.arange(size).repeat(2)
    predicted = np.where(np.arange(2 * size) % 2, (labels + 1) % size, labels)
    _, text, read = written(tmp_path / "report.html", make_predictions(labels, predicted, class_counts=[5] * size))
    assert "canvas" not in [tag for tag, _ in read.tags]
    assert read.data["runs"][0]["confusion"] is None
    assert "The 50 most frequent confusions" in read.text
    assert len(text) < 2e6


def test_order_by_cluster():
    """Classes of the same clique stand together, whatever their numbers."""
    generator = np.random.default_rng(0)
    member = generator.permutation(np.arange(40) // 5)
    matrix = np.where(member[:, None] == member[None], 10, 0) + 50 * np.eye(40, dtype=int)
    order = cluster_order(matrix.astype(np.int32))
    assert sorted(order) == list(range(40))
    changes = int((np.diff(member[order]) != 0).sum())
    assert changes == 7  # eight cliques
    assert cluster_order(np.eye(3, dtype=np.int32)) == [0, 1, 2]


def test_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="one classifier or more; got none"):
        write_report([], path)
    first, second = analyse(random_predictions()), analyse(random_predictions(13))
    with pytest.raises(ValueError, match="Write one report each"):
        write_report([first, second], path)
    with pytest.raises(ValueError, match="one run per analysis: got 2 runs for 1 analyses"):
        write_report([first], path, runs=[None, None])
    monkeypatch.setattr(page, "_render", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report([first], path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_one_number_has_one_value(tmp_path):
    """Halves are rounded up as scripts do, and the calibration has the accuracy of the rest of the page."""
    labels = np.arange(800) % 2
    logits = np.zeros((800, 2))
    logits[np.arange(800), labels] = np.where(np.arange(800) // 2 < 49, 1.0, -1.0)  # 12.25 %
    (analysis,), _, read = written(tmp_path / "report.html", make_predictions(labels, logits))
    assert analysis.metrics["overall"] == 12.25
    assert "12.3 % of the test images are recognised" in read.text
    assert "right in 12.3 %" in read.text
    assert "12.2" not in read.text
    tied = make_predictions([0, 1, 1, 1], [0, 1, 1, 1])
    tied = replace(tied, logits=np.zeros((4, 2), dtype=np.float32))  # the classes given break the ties
    assert analyse(tied).calibration["accuracy"] == analyse(tied).metrics["overall"] == 100


def test_ties_at_the_bottom_are_counted(tmp_path):
    labels = np.arange(8).repeat(5)
    predicted = np.where(labels < 3, 7, labels)
    _, _, read = written(tmp_path / "report.html", make_predictions(labels, predicted, class_names=list("abcdefgh")))
    assert "3 classes share the lowest accuracy, 0.0 %; one of them is a: 0 of its 5 images" in read.text
    assert "fails most" not in read.text
    assert "0.0 % a and 2 more" in read.text
    predicted = np.where((labels < 3) & (np.arange(40) % 5 > 0), 7, labels)
    _, _, read = written(tmp_path / "report.html", make_predictions(labels, predicted))
    assert "; 3 classes share the lowest accuracy, 20.0 %." in read.text
    predicted[0] = 7
    _, _, read = written(tmp_path / "report.html", make_predictions(labels, predicted))
    assert "0 fails most: 0 of its 5 images" in read.text


def test_no_group_where_there_is_none(tmp_path):
    """Every class is taken for each of the next thirty, equally often: ten of them are a tenth of it."""
    labels = np.arange(100).repeat(31)
    ring = make_predictions(labels, (labels + np.arange(3100) % 31) % 100)
    (analysis,), _, read = written(tmp_path / "report.html", ring)
    assert analysis.spectrum.share_true < 50
    sentence = "No small group stands out: the 10 classes that add most make up {:.0f} % of the strongest pattern"
    assert sentence.format(analysis.spectrum.share_true) in read.text
    assert "The strongest pattern:" not in read.text
    assert read.text.count("all others") == 2
    drain = make_predictions(labels, np.where(np.arange(3100) % 31, labels, 0))  # all into one
    _, _, read = written(tmp_path / "report.html", drain)
    assert "in which classes are taken for 0." in read.text


@pytest.mark.parametrize("amount", [2, 5])
def test_several_stand_in_even_columns(amount, tmp_path):
    found = [random_predictions(seed=at, name=f"m{at}") for at in range(amount)]
    _, _, read = written(tmp_path / "report.html", *found)
    assert sum(attributes.get("class") == f"columns of-{amount}" for _, attributes in read.tags) == 5
    worst = [attributes for tag, attributes in read.tags if tag == "ol" and attributes["class"] == "worst-list"]
    assert len(worst) == amount
    assert "The 4 classes with the lowest accuracy" in read.text


@pytest.mark.parametrize(("amount", "sizes"), [(1, [1]), (3, [3]), (4, [2, 2]), (5, [3, 2]), (6, [3, 3])])
def test_bars_are_split_evenly(amount, sizes):
    analysis, run = analyse(random_predictions()), SimpleNamespace(results={"worst_train": 50.0})
    found = page._gap([(f"m{at}", analysis, run) for at in range(amount)])
    boxes = {re.search(r'viewBox="([^"]+)"', drawing.svg)[1] for drawing in found["drawings"]}
    assert len(boxes) == 1  # one scale
    assert [len(set(re.findall(r">(m\d)<", drawing.svg))) for drawing in found["drawings"]] == sizes


def test_notes_are_shown(tmp_path):
    found = replace(random_predictions(), notes=("Only <b> is used.",))
    _, _, read = written(tmp_path / "report.html", found)
    assert "model : Only <b> is used." in read.text.replace("model:", "model :")
    assert json.loads(read.file("report.json"))["analyses"][0]["notes"] == ["Only <b> is used."]


def test_differences_are_among_the_downloads(one, two):
    analyses, _, read = two
    found, other = (analysis.predictions for analysis in analyses)
    rows = list(csv.DictReader(io.StringIO(read.file("differences.csv"))))
    for row, entry in zip(rows, compare(analyses).pairs[0].per_class, strict=True):
        mine = found.labels == int(row["index"])
        gain = (other.predicted == other.labels)[mine].mean() - (found.predicted == found.labels)[mine].mean()
        assert float(row["difference"]) == pytest.approx(100 * gain)
        assert (row["baseline"], row["other"], row["class"]) == ("model", "other", entry["name"])
        assert float(row["p_holm"]) == entry["p_holm"]
    assert "training.csv" not in read.data["files"]  # there is no run
    assert "differences.csv" not in one[2].data["files"]


def test_the_legend_has_the_colours_of_the_matrix():
    """A share t of mistakes is drawn with opacity .14 + .86 times its root, in the script and in the style sheet."""
    folder = Path(page.__file__).parent / "templates"
    script, style = ((folder / name).read_text(encoding="utf-8") for name in ("matrix.js", "style.css"))
    floor = float(re.search(r'wrong = ramp\("--wrong-rgb", ([\d.]+)\)', script)[1])
    assert "Math.sqrt(entry.share)" in script
    gradient = re.search(r"\.scale \.wrong \{ background: linear-gradient\(90deg, (.*)\); \}", style)[1]
    stops = re.findall(r"rgba\(var\(--wrong-rgb\), ([\d.]+)\)(?: ([\d.]+)%)?", gradient)
    assert len(stops) > 5
    for opacity, at in stops:
        assert float(opacity) == pytest.approx(floor + (1 - floor) * (float(at or 0) / 100) ** 0.5, abs=1e-3)
