"""Tables read back as what they say."""

import csv
import io
import re

import numpy as np
import pytest
from rich.console import Console

from spectail.report import analyse, compare, make_predictions, tables
from spectail.report.terminal import show
from spectail.report.text_table import DASH

NAMES = ("a|b", "c_d & e%", "f\\g", "new\nline", "[bold]x", '=1, "q"', "$^~#{}<>", "plain", "ümläut", "none")
COUNTS = [500, 300, 150, 90, 60, 30, 15, 10, 5, 2]


def some(name, skill, seed, counts=COUNTS, scores=True):
    draw = np.random.default_rng(seed)
    labels = np.arange(450) % 9  # the tenth class has no image
    values = draw.normal(size=(450, 10)) + 0.5 * np.log(COUNTS)
    values[np.arange(450), labels] += skill
    values = values if scores else values.argmax(1)
    return analyse(make_predictions(labels, values, class_names=NAMES, class_counts=counts, name=name))


@pytest.fixture(scope="module")
def two():
    return [some("one | two", 1.5, 0), some("b_2", 2.5, 1)]


def markdown_tables(text):
    """Cells of every table, with escapes undone."""
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells])
        elif rows:
            found.append(rows)
            rows = []
    return found


def flat(name):
    return name.replace("\n", " ").strip()


def test_markdown(two):
    accuracy, difference, confusions, worst, *rest = markdown_tables(tables.markdown(two, compare(two), top=4))
    assert len(rest) == 2
    for table in (accuracy, difference, confusions, worst, *rest):
        assert len({len(row) for row in table}) == 1  # no name breaks a row
        assert set(table[1]) <= {"---", "---:"}
    metrics, interval = two[0].metrics, two[0].intervals["tail"]
    assert accuracy[2][:2] == ["one | two", f"{metrics['overall']:.1f} ({two[0].intervals['overall'][0]:.1f}{DASH}"
                               f"{two[0].intervals['overall'][1]:.1f})"]  # fmt: skip
    assert accuracy[2][5] == f"{metrics['tail']:.1f} ({interval[0]:.1f}{DASH}{interval[1]:.1f})"
    assert difference[2][0] == "b_2"
    gain = two[1].metrics["overall"] - metrics["overall"]
    assert difference[2][1].startswith(f"{gain:+.1f} (")
    for row, entry in zip(confusions[2:], two[0].top_confusions, strict=False):
        assert row == [flat(NAMES[entry.true]), flat(NAMES[entry.predicted]), str(entry.count), f"{entry.share:.1f}"]
    assert [row[0] for row in worst[2:]] == [flat(NAMES[label]) for label in two[0].worst[:4]]
    assert worst[2][1].startswith(flat(NAMES[two[0].per_class[two[0].worst[0]]["taken_for"][0].predicted]))


def test_latex(two):
    text = tables.latex(two, compare(two), top=9)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 6
    for block in re.findall(r"\\begin\{tabular\}\{(l+r+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        rows = [line for line in block[1].splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(block[0])}
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[%#_~^]", body.replace(r"\textasciitilde", "").replace(r"\textasciicircum", ""))
    assert r"c\_d \& e\%" in body
    assert r"\$\textasciicircum{}\textasciitilde{}\#\{\}\textless{}\textgreater{}" in body
    assert DASH not in body


def test_csv(two):
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(two))))
    assert len(rows) == 20
    for row, entry in zip(rows, [*two[0].per_class, *two[1].per_class], strict=True):
        assert (row["class"], int(row["index"]), row["group"]) == (entry["name"], entry["index"], entry["group"])
        for key in ("train_count", "test_count", "accuracy", "low", "high", "precision"):
            assert row[key] == "" if entry[key] is None else float(row[key]) == entry[key]
        for place, taken in enumerate(entry["taken_for"], 1):
            assert row[f"taken_for_{place}"] == NAMES[taken.predicted]
            assert float(row[f"taken_for_{place}_share"]) == taken.share
    assert {row["predictions"] for row in rows} == {"one | two", "b_2"}
    assert rows[9]["accuracy"] == ""  # no test image: no figure, not 0


def test_words(two):
    text = tables.direction_text(two[0])
    spectrum = two[0].spectrum
    assert f"singular value {spectrum.singular_values[0]:.2f}, the next {spectrum.singular_values[1]:.2f}" in text
    for label in (*spectrum.top_true, *spectrum.top_predicted):
        assert f"“{NAMES[label]}”" in text
    assert text.index(NAMES[spectrum.top_true[0]]) < text.index(" to ")
    right = analyse(make_predictions([0, 1], [0, 1]))
    assert "Nothing is confused" in tables.direction_text(right)
    assert "without class weights" in tables.direction_text(analyse(make_predictions([0, 1], [1, 1])))
    assert tables.probability(0.04999) == "0.050"
    assert tables.probability(3e-9) == "3e-09"


def shown(*arguments, width=100):
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    show(console, *arguments)
    return console.file.getvalue()


def test_the_terminal(two):
    text = shown(two, compare(two), 3)
    for analysis in two:
        assert f"{analysis.metrics['overall']:.1f} (" in text
    assert "tail (4 classes)" in text
    assert "[bold]x" in text  # a name is not markup
    assert "1 class without test images counts nowhere" in text
    assert "McNemar" in text
    bare = shown([some("x", 1, 0, counts=None, scores=False)])
    assert bare.count("tail") == bare.count("there is no head, medium and tail") == 1
    assert not re.search(r"calibration|spectral norm", bare)
    assert "n/a" in bare  # training images per class
    perfect = shown([analyse(make_predictions([0, 1], [0, 1]))])
    assert "Most frequent confusions" not in perfect


def test_narrow_terminals_keep_the_figures(two):
    assert f"{two[0].metrics['overall']:.1f} (" in shown(two[:1], None, 3, width=60)
