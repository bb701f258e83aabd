"""Advice finds what was planted, keeps silent on clean data, and survives small and odd data sets."""

import csv
import json
import math

import numpy as np
import pytest

from spectail.diagnosis.advice import Advice, ClassPair, Duplicate, LabelIssue, MoreImages
from spectail.fit.advice import Split, advise
from spectail.fit.class_pairs import find_pairs, log_at_least
from spectail.fit.label_issues import find_label_issues
from spectail.fit.more_images import find_more_images


def blobs(sizes, *, width=3.5, seed=0):
    """Calibrated logits of classes that overlap: the exact posterior of points around the corners of a simplex.

    With unit noise, points at ``width`` along axes of their own have logits ``width * x_k`` plus the log prior.
    """
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    points = draw.normal(size=(len(labels), len(sizes)))
    points[np.arange(len(labels)), labels] += width
    return width * points + np.log(np.array(sizes) / sum(sizes)), labels


SIZES = [400, 300, 200, 150, 100, 60, 40, 25, 15, 8, 5, 4]
NAMES = [f"class {label}" for label in range(len(SIZES))]


def flipped(labels, classes, share=0.05, seed=1):
    draw, given = np.random.default_rng(seed), labels.copy()
    places = draw.permutation(len(labels))[: round(share * len(labels))]
    given[places] = (given[places] + draw.integers(1, classes, len(places))) % classes
    return given, places


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("width", [2.5, 4.0])
def test_planted_flips_are_found(shift, width):
    """Where classes overlap (an eighth of the points is nearer to another one) as where they hardly do."""
    logits, labels = blobs(SIZES, width=width)
    given, places = flipped(labels, len(SIZES))
    counts = np.bincount(given, minlength=len(SIZES))
    advice = advise(logits - shift * np.log(counts / counts.sum()), given, NAMES, counts)
    listed = [issue.position for issue in advice.label_issues]
    assert np.isin(listed[:50], places).mean() >= 0.8
    assert len(listed) >= len(places) * (0.2 if width < 3 else 0.5)
    assert 2.5 < advice.wrong_share < 7.5
    best = advice.label_issues[0]
    assert best.given == NAMES[given[best.position]]
    assert np.mean([one.suggested == NAMES[labels[one.position]] for one in advice.label_issues[:20]]) >= 0.8
    assert [one.confidence for one in advice.label_issues] == sorted(
        (one.confidence for one in advice.label_issues), reverse=True
    )
    # a stated probability is one
    assert abs(np.isin(listed, places).mean() - np.mean([one.confidence for one in advice.label_issues])) < 0.2


@pytest.mark.parametrize("width", [1.5, 2.5, 4.0])
def test_clean_data_raise_no_alarm(width):
    logits, labels = blobs(SIZES, width=width)
    advice = advise(logits, labels, NAMES, SIZES)
    assert (logits.argmax(1) != labels).mean() > (
        0.1 if width < 3 else 0.001
    )  # there are mistakes to mistake for issues
    assert len(advice.label_issues) <= 0.005 * len(labels)
    assert not advice.pairs


def test_a_small_class_that_was_not_learned_is_not_called_mislabelled():
    """All images of a class of five are surely taken for others, in a data set that does have wrong labels."""
    logits, labels = blobs([*SIZES, 5], width=4.0)
    given, _ = flipped(labels, len(SIZES))
    own = np.flatnonzero(labels == len(SIZES))
    given[own] = len(SIZES)
    logits[own, len(SIZES)] -= 40
    suspects = find_label_issues(logits, given)
    assert len(suspects.places) > 20
    assert not set(suspects.places.tolist()) & set(own.tolist())


@pytest.mark.parametrize(("width", "every"), [(0.3, 2), (1.5, 5)])
def test_heads_that_are_sure_and_wrong_judge_no_label(width, every):
    """A part of the images is judged with far too much confidence by features that tell little of the class."""
    logits, labels = blobs([200] * 6, width=width)
    logits[::every] *= 15 / width
    assert (logits.argmax(1) != labels).mean() > 0.35
    weak = advise(logits, labels, NAMES[:6], [200] * 6)
    assert weak.wrong_share is None
    assert not weak.label_issues
    assert any("cannot be judged" in note for note in weak.notes)


def test_classes_that_are_one_are_found():
    """Two classes share a centre; a third pair is mixed up by chance only."""
    logits, labels = blobs(SIZES, width=3.0)
    twin = np.isin(labels, (4, 5))
    mean = logits[twin][:, [4, 5]].max(1)
    draw = np.random.default_rng(3).integers(0, 2, twin.sum()).astype(bool)
    logits[twin, 4], logits[twin, 5] = mean + draw, mean + ~draw
    pairs = advise(logits, labels, NAMES, SIZES).pairs
    assert [(pair.first, pair.second) for pair in pairs] == [("class 4", "class 5")]
    (pair,) = pairs
    predicted = logits.argmax(1)
    taken = int(((labels == 4) & (predicted == 5)).sum() + ((labels == 5) & (predicted == 4)).sum())
    assert (pair.taken, pair.images) == (taken, 160)
    assert pair.low < 100 * taken / 160 < pair.high
    assert pair.expected < taken / 3
    assert str(pair) == f"'class 4' and 'class 5' ({taken} of 160 images of the two are taken for the other)"


def test_a_large_class_that_everything_falls_on_is_no_twin():
    """Mistakes that the size of a class explains: every rare class is now and then taken for the frequent one."""
    labels = np.repeat(np.arange(10), [500, *[40] * 9])
    predicted = labels.copy()
    predicted[(labels > 0) & (np.arange(len(labels)) % 4 == 0)] = 0
    assert find_pairs(predicted, labels, tuple(map(str, range(10)))) == ()


@pytest.mark.parametrize(("number", "mean"), [(1, 0.3), (4, 2.0), (30, 3.0), (2, 5.0)])
def test_tail_of_poisson(number, mean):
    above = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(number, number + 60))
    wanted = 0.0 if number <= mean else math.log(above)
    assert log_at_least(number, mean) == pytest.approx(wanted, rel=1e-6)


def test_the_learning_curve_is_that_of_the_classes():
    """Accuracies drawn from a known curve: the expected gain of a class is the curve's own."""
    counts = np.unique(np.geomspace(6, 600, 60).astype(int))
    share = 1 / (1 + np.exp(2.0 - 0.7 * np.log(counts)))
    hits = np.random.default_rng(0).binomial(counts, share)
    entries, reason = find_more_images(hits, counts, counts, tuple(map(str, counts)))
    assert reason is None
    more = 1 / (1 + np.exp(2.0 - 0.7 * np.log(2 * counts)))
    wanted = {str(n): 100 * (b - a) for n, a, b in zip(counts, share, more, strict=True)}
    close = [entry.low <= wanted[entry.name] <= entry.high for entry in entries]
    assert len(entries) == math.ceil(len(counts) / 3)
    assert np.mean(close) > 0.8
    assert [entry.gain / entry.images for entry in entries] == sorted(
        (entry.gain / entry.images for entry in entries), reverse=True
    )
    assert entries[0].images < 20


def test_a_class_that_is_never_recognised_is_listed_and_a_perfect_one_is_not():
    counts = np.unique(np.geomspace(6, 600, 60).astype(int))
    hits = np.round(counts / (1 + np.exp(2.0 - 0.7 * np.log(counts)))).astype(int)
    hits[0], hits[1] = 0, counts[1]
    entries, _ = find_more_images(hits, counts, counts, tuple(map(str, counts)))
    listed = {entry.name: entry for entry in entries}
    assert str(counts[0]) in listed
    assert str(counts[1]) not in listed
    assert all(0 <= entry.low <= entry.gain <= entry.high for entry in entries)


def test_no_curve_no_gain():
    counts = np.array([5, 10, 20, 40, 80, 160, 320, 640, 1000, 7])
    flat, reason = find_more_images(counts // 2, counts, counts, tuple("abcdefghij"))
    assert flat == ()
    assert "not expected to help" in reason
    alike, reason = find_more_images(np.full(10, 5), np.full(10, 9), np.full(10, 9), tuple("abcdefghij"))
    assert alike == ()
    assert "cannot be estimated" in reason


def test_duplicates_by_name():
    labels = np.array([0, 0, 1, 1, 0, 1])
    contents = np.array([7, 7, 8, 9, 9, 5], dtype=np.uint64)
    paths = [f"{place}.jpg" for place in range(6)]
    test = Split(np.array([8, 1], dtype=np.uint64), ["x.jpg", "y.jpg"], np.array([1, 0]))
    found = advise(np.zeros((6, 2)), labels, ("mug", "cup"), [3, 3], paths, contents, others={"test": test}).duplicates
    assert found == (
        Duplicate("two labels", ("3.jpg", "4.jpg"), (3, 4), ("cup", "mug"), ("train", "train")),
        Duplicate("two splits", ("2.jpg", "x.jpg"), (2, 0), ("cup", "cup"), ("train", "test")),
        Duplicate("same label", ("0.jpg", "1.jpg"), (0, 1), ("mug", "mug"), ("train", "train")),
    )
    assert advise(np.zeros((6, 2)), labels, ("mug", "cup"), [3, 3]).duplicates == ()


def test_images_that_were_not_held_out_are_skipped():
    logits, labels = blobs([40, 30, 20, 1, 1], width=5.0)
    labels[:2] = 1
    logits[-2:] = np.nan
    logits[10] = np.nan
    advice = advise(logits, labels, "abcde", np.bincount(labels))
    assert advice.judged == len(labels) - 3
    assert [issue.position for issue in advice.label_issues] in ([0, 1], [1, 0])
    nothing = advise(np.full((2, 2), np.nan), np.array([0, 1]), "ab", [1, 1])
    assert nothing.judged == 0
    assert nothing.notes


def test_two_classes():
    logits, labels = blobs([150, 50], width=4.0)
    labels[:3] = 1
    advice = advise(logits, labels, ("yes", "no"), np.bincount(labels))
    assert {issue.position for issue in advice.label_issues} >= {0, 1, 2}
    assert len(advice.label_issues) <= 5
    assert advice.pairs == ()
    assert all(issue.file is None for issue in advice.label_issues)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logits": np.zeros((3, 2))}, "one column per class"),
        ({"paths": ["a"]}, "one of paths per image"),
        ({"contents": [1]}, "one of contents per image"),
        ({"labels": np.array([0, 3, 1])}, "classes from 0 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    given = {"logits": np.zeros((3, 3)), "labels": np.array([0, 1, 2]), "class_names": "abc", "class_counts": [1, 1, 1]}
    with pytest.raises(ValueError, match=words):
        advise(**given | change)


ADVICE = Advice(
    100,
    (LabelIssue(3, "=cmd()|x.jpg", "@mug", "-cup", 0.9), LabelIssue(4, None, "mug", "cup", 0.8)),
    (ClassPair("+a", "b", 31, 120, 18.9, 34.3, 2.0),),
    (MoreImages("tab\there", 5, 40.0, 13.0, 9.0, 17.0),),
    (Duplicate("two labels", ("one\udcff.jpg", None), (1, 2), ("mug", None), ("train", "test")),),
    4.5,
    ("A note.",),
)


def test_saved_and_read_again(tmp_path):
    ADVICE.save(tmp_path)
    read = Advice.load(tmp_path)
    assert read.label_issues == ADVICE.label_issues
    assert (read.pairs, read.more_images, read.notes) == (ADVICE.pairs, ADVICE.more_images, ADVICE.notes)
    assert (read.duplicates[0].positions, read.duplicates[0].splits) == ((1, 2), ("train", "test"))
    assert read.duplicates[0].files[0].startswith("one")
    assert Advice.load(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"judged": 1}', '{"label_issues": [{"no": 1}]}'])
def test_a_damaged_record_is_refused_in_words(text, tmp_path):
    (tmp_path / "advice.json").write_text(text)
    with pytest.raises(ValueError, match=r"advice\.json is damaged"):
        Advice.load(tmp_path)


def test_a_spreadsheet_carries_nothing_out(tmp_path):
    ADVICE.write_csv(tmp_path / "advice.csv")
    with (tmp_path / "advice.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["kind", "file", "position", "class", "suggestion", "confidence", "note"]
    assert [row[0] for row in rows] == ["check label"] * 2 + ["merge or look closer", "collect more"] + [
        "duplicate"
    ] * 2
    assert rows[0][:6] == ["check label", "'=cmd()|x.jpg", "3", "'@mug", "'-cup", "0.9"]
    assert rows[2][3] == "'+a"
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_the_files_are_whole_or_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ADVICE.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
