"""Tables read back as what they say."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from spectail.diagnosis import analyse, compare, make_predictions, tables
from spectail.diagnosis.comparison import Difference
from spectail.diagnosis.terminal import show
from spectail.diagnosis.text_table import DASH, number

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
    accuracy, difference, confusions, worst, *rest = markdown_tables(
        tables.markdown(tables.all_tables(two, compare(two), top=4), two)
    )
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
    text = tables.latex(tables.all_tables(two, compare(two), top=9))
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
        name = entry["name"].replace("=1", "'=1")  # no formula for a spreadsheet
        assert (row["class"], int(row["index"]), row["group"]) == (name, entry["index"], entry["group"])
        for key in ("train_count", "test_count", "accuracy", "low", "high", "precision"):
            assert row[key] == "" if entry[key] is None else float(row[key]) == entry[key]
        for place, taken in enumerate(entry["taken_for"], 1):
            assert row[f"taken_for_{place}"].removeprefix("'") == NAMES[taken.predicted]
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


def test_numbers_are_rounded_as_scripts_round_them():
    """Half up, away from zero, on the value that the page carries; checked against whole numbers of tenths."""
    assert [number(value) for value in (12.25, 0.05, 99.95, -12.25, -0.04, 100 * (49 / 400))] == [
        "12.3", "0.1", "100.0", "-12.3", "0.0", "12.3",
    ]  # fmt: skip
    assert (number(0.5, 0), number(1.5, 0), number(2.5, 0), number(-0.2, 0, sign=True)) == ("1", "2", "3", "+0")
    assert number(12.35) == "12.3"  # below the half in binary, as toFixed sees it
    assert (number(None), number(float("nan")), number(1.0, 3, sign=True)) == ("n/a", "nan", "+1.000")
    found = analyse(make_predictions([0] * 8 + [1] * 8, [0] * 7 + [1] * 9))  # 12.5 %
    assert tables.taken_for(found, 0) == "1 13 %"
    even = tables.signed(Difference(-0.04, -0.04, 0.04))
    assert even == "+0.0 (+0.0 to +0.0)"


def test_what_only_training_knows(two):
    results = [{"worst_train": 81.25, "worst_ratio": 0.1234}, {"worst_train": None}]
    table = tables.accuracy_table(two, results)
    for title, values in (("worst class in training", ("81.3", "n/a")), ("WR", ("0.123", "n/a"))):
        assert tuple(row[table.header.index(title)] for row in table.rows) == values
    assert {len(row) for row in table.rows} == {len(table.header)}
    assert "WR" not in tables.accuracy_table(two).header
    assert "WR" not in tables.accuracy_table(two, [{}, {}]).header


def test_no_group_stands_out():
    labels = np.arange(100).repeat(31)
    ring = analyse(make_predictions(labels, (labels + np.arange(3100) % 31) % 100))
    text = tables.direction_text(ring)
    assert text.startswith("No small group stands out: ")
    assert text.count("many classes, of which the first 10 hold") == 2
    drain = tables.direction_text(analyse(make_predictions(labels, np.where(np.arange(3100) % 31, labels, 0))))
    assert drain.startswith("No small group stands out: ")
    assert drain.endswith("to “0” (100 % of it).")


def test_the_terminal_counts_in_words():
    found = make_predictions([0, 1, 2, 3], [0, 1, 0, 0], class_counts=[500, 50, 5, 4], class_names=list("abcd"))
    text = shown([analyse(replace(found, notes=("A note.",)))])
    assert "head (1 class)" in text
    assert "tail (2 classes)" in text
    assert "c and 1 more" in text
    assert "predictions: A note." in text
