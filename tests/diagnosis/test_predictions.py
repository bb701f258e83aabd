"""Predictions from every kind of file and array, and every way in which such a file can be wrong."""

import csv
import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from spectail import ClassCounts
from spectail.diagnosis import make_predictions, read_predictions
from spectail.diagnosis import predictions as module

NAMES = ("otter", "cat", "dog")
COUNTS = [5, 500, 60]
LABELS = np.array([0, 1, 2, 1, 0, 2, 1])
LOGITS = np.array(
    [[3, 1, 0], [0, 2, 1], [1, 4, 2], [-1, 0, -3], [0, 1, 0.5], [0.25, -1, 0.75], [9, 2, 0]], dtype=np.float32
)
BEST = LOGITS.argmax(1)


def softmax(values):
    shares = np.exp(values - values.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def write_csv(path, header, columns, mark=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=mark)
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))
    return path


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def named(labels):
    return [NAMES[label] for label in labels]


def same(found, *, logits=True, names=NAMES, counts=None, name=None):
    assert found.labels.dtype == found.predicted.dtype == np.int64
    assert found.labels.tolist() == LABELS.tolist()
    assert found.predicted.tolist() == BEST.tolist()
    assert found.class_names == tuple(names)
    assert (found.class_counts is None) if counts is None else found.class_counts.tolist() == counts
    if logits:
        assert found.logits.dtype == np.float32
        np.testing.assert_allclose(softmax(found.logits), softmax(LOGITS), atol=1e-6)
    else:
        assert found.logits is None
    assert name is None or found.name == name


# ---- what is read


@pytest.mark.parametrize("key", ["logits", "scores", "probabilities", "predicted"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, key, save):
    values = {"logits": LOGITS, "scores": LOGITS.astype(np.float64), "predicted": BEST}.get(key, softmax(LOGITS))
    save(tmp_path / "a.npz", **{key: values}, labels=LABELS, class_names=np.array(NAMES), class_counts=np.array(COUNTS))
    same(read_predictions(tmp_path / "a.npz"), logits=key != "predicted", counts=COUNTS, name="a")


def test_the_folder_of_a_run_and_its_file(tmp_path):
    run = tmp_path / "car-seed0"
    run.mkdir()
    np.savez(run / "predictions.npz", logits=LOGITS, labels=LABELS, class_names=NAMES, class_counts=COUNTS)
    same(read_predictions(run), counts=COUNTS, name="car-seed0")
    same(read_predictions(run / "predictions.npz", name="mine"), counts=COUNTS, name="mine")
    (run / "predictions.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"without predictions\.npz"):
        read_predictions(run)


def test_npy(tmp_path):
    np.save(tmp_path / "labels.npy", LABELS)
    for name, values in (("logits", LOGITS), ("half", LOGITS.astype(np.float16)), ("predicted", BEST)):
        np.save(tmp_path / f"{name}.npy", values)
        found = read_predictions(tmp_path / "labels.npy", scores=tmp_path / f"{name}.npy", names=NAMES, counts=COUNTS)
        same(found, logits=name != "predicted", counts=COUNTS, name="labels")


@pytest.mark.parametrize(("label", "guess"), [("label", "predicted"), ("Target", "pred"), ("y_true", "y_pred"),
                                              ("true", "prediction")])  # fmt: skip
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_with_predicted_classes(tmp_path, label, guess, mark):
    path = write_csv(tmp_path / "a.csv", ["file", label, guess], [range(7), LABELS, BEST], mark)
    same(read_predictions(path, names=NAMES), logits=False)
    same(read_predictions(path), logits=False, names="012")
    path = write_csv(tmp_path / "b.csv", [guess, label], [named(BEST), named(LABELS)], mark)
    same(read_predictions(path, names=NAMES, counts=COUNTS), logits=False, counts=COUNTS)
    alone = read_predictions(path)
    assert alone.class_names == ("cat", "dog", "otter")
    assert [alone.class_names[label] for label in alone.labels] == named(LABELS)


def test_columns_of_any_name(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["gold", "label", "answer"], [named(LABELS), [9] * 7, named(BEST)])
    same(read_predictions(path, names=NAMES, label_column="gold", prediction_column="answer"), logits=False)


@pytest.mark.parametrize(
    ("header", "names", "options"),
    [
        (["logit_0", "logit_1", "logit_2"], "012", {}),
        (["scores[0]", "scores[1]", "scores[2]"], "012", {}),
        (["0", "1", "2"], "012", {}),
        (["prob otter", "prob cat", "prob dog"], NAMES, {}),
        (["otter", "cat", "dog"], NAMES, {}),
        (["z:otter", "z:cat", "z:dog"], NAMES, {"scores": "z:"}),
        (["a", "b", "c"], "abc", {"scores": ["a", "b", "c"]}),
        (["logit_0", "logit_1", "logit_2"], NAMES, {"names": NAMES}),
    ],
)
def test_csv_and_parquet_with_scores(tmp_path, header, names, options):
    values = softmax(LOGITS) if header[0].startswith("prob") else LOGITS
    columns = [LABELS, range(7), *values.T.tolist()]
    same(read_predictions(write_csv(tmp_path / "a.csv", ["label", "id", *header], columns), **options), names=names)
    table = dict(zip(["label", "id", *header], [LABELS, np.arange(7), *values.T], strict=True))
    same(read_predictions(write_parquet(tmp_path / "a.parquet", **table), **options), names=names)
    if names == NAMES:  # labels may be names then
        columns[0] = named(LABELS)
        same(read_predictions(write_csv(tmp_path / "b.csv", ["label", "id", *header], columns), **options), names=names)


def test_columns_of_scores_are_put_in_class_order(tmp_path):
    names = [str(label) for label in range(12)]
    draw = np.random.default_rng(0)
    scores, labels = draw.normal(size=(20, 12)), draw.integers(0, 12, 20)
    order = sorted(range(12), key=str)  # 0, 1, 10, 11, 2, ...
    path = write_csv(
        tmp_path / "a.csv", ["label", *(f"p{label}" for label in order)], [labels, *scores.T[order].tolist()]
    )
    assert read_predictions(path).predicted.tolist() == scores.argmax(1).tolist()
    assert read_predictions(path).class_names == tuple(names)
    given = write_csv(tmp_path / "b.csv", ["label", "dog", "cat", "otter"], [LABELS, *LOGITS.T[::-1].tolist()])
    same(read_predictions(given, names=NAMES))


def test_columns_numbered_from_one_name_the_labels(tmp_path):
    """Label 2 with columns 1, 2, 3 is the second class, whether or not label 3 occurs."""
    for labels in (LABELS + 1, np.where(LABELS == 2, 0, LABELS) + 1):
        path = write_csv(tmp_path / "a.csv", ["label", "1", "2", "3"], [labels, *LOGITS.T.tolist()])
        assert read_predictions(path).labels.tolist() == (labels - 1).tolist()
        path = write_parquet(tmp_path / "a.parquet", label=labels, **dict(zip("123", LOGITS.T, strict=True)))
        assert read_predictions(path).labels.tolist() == (labels - 1).tolist()


def test_parquet_with_lists_categories_and_names(tmp_path):
    lists = pa.array(LOGITS.tolist(), type=pa.list_(pa.float64()))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(LOGITS.ravel()), 3)
    for column in (lists, fixed):
        same(read_predictions(write_parquet(tmp_path / "a.parquet", label=LABELS, logits=column), names=NAMES))
    text = pa.array(named(LABELS)).dictionary_encode()
    path = write_parquet(tmp_path / "b.parquet", target=text, pred=named(BEST))
    same(read_predictions(path, names=NAMES), logits=False)


def test_lists_of_scores_beside_predicted_classes(tmp_path):
    lists = pa.array(LOGITS.tolist())
    path = write_parquet(tmp_path / "a.parquet", label=LABELS, pred=BEST, logits=lists, conf=LOGITS.max(1))
    same(read_predictions(path), names="012")
    same(read_predictions(path, names=NAMES))
    best = pa.array(np.sort(LOGITS, 1)[:, 1:].tolist())  # of two classes only: nobody knows which
    ragged = pa.array([[1.0], *LOGITS[1:].tolist()])
    for column, labels, guess in ((best, LABELS, BEST), (ragged, LABELS, BEST), (lists, named(LABELS), named(BEST))):
        found = read_predictions(write_parquet(tmp_path / "b.parquet", label=labels, pred=guess, scores=column))
        assert found.logits is None
        assert found.notes[0].startswith("Only the predicted classes are used: 'scores'")


def test_decimal_numbers(tmp_path):
    exact = pa.decimal128(8, 4)
    columns = {f"logit_{label}": pa.array(LOGITS[:, label]).cast(exact) for label in range(3)}
    same(read_predictions(write_parquet(tmp_path / "a.parquet", label=LABELS, **columns), names=NAMES))
    whole = pa.array(LABELS).cast(pa.decimal128(20, 0))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(LOGITS.ravel()).cast(exact), 3)
    same(read_predictions(write_parquet(tmp_path / "b.parquet", label=whole, logits=lists), names=NAMES))


def test_dates_are_names(tmp_path):
    days = np.array(["2024-02-01", "2023-12-24", "2024-01-01"], dtype="datetime64[D]")
    for unit in ("D", "ms"):
        labels, guess = days.astype(f"datetime64[{unit}]")[LABELS], days.astype(f"datetime64[{unit}]")[BEST]
        found = read_predictions(write_parquet(tmp_path / "a.parquet", label=labels, pred=guess))
        assert [name[:10] for name in found.class_names] == sorted(days.astype(str))
        assert found.class_names[found.labels[0]].startswith("2024-02-01")
        assert (found.labels == found.predicted).tolist() == (LABELS == BEST).tolist()


def test_numbers_in_text(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["label", "pred"], [[f"{label}.0" for label in LABELS], BEST])
    same(read_predictions(path, names=NAMES), logits=False)
    ids = [f"{100 + label}" for label in LABELS], [f"{100 + label}" for label in BEST]
    path = write_csv(tmp_path / "b.csv", ["label", "pred"], ids)
    same(read_predictions(path, names=["100", "101", "102"]), logits=False, names=["100", "101", "102"])
    digits = make_predictions(np.array([0, 1, 2]), np.array([0, 1, 1]), class_names=["2", "1", "0"])
    assert digits.labels.tolist() == [0, 1, 2]  # numbers that are numbers are indices


def test_names_that_a_table_could_mistake(tmp_path):
    """null, NA and true are classes here, not gaps."""
    names = ("NA", "null", "true")
    path = write_csv(tmp_path / "a.csv", ["label", "pred"], [[names[i] for i in LABELS], [names[i] for i in BEST]])
    same(read_predictions(path), logits=False, names=names)


def test_files_of_names_and_counts(tmp_path):
    np.savez(tmp_path / "a.npz", labels=LABELS, logits=LOGITS)
    (tmp_path / "names.txt").write_text("otter\ncat\ndog\n\n", encoding="utf-8-sig")
    (tmp_path / "names.json").write_text(json.dumps(NAMES))
    (tmp_path / "counts.txt").write_text("5\n500\n60\n")
    (tmp_path / "counts.json").write_text(json.dumps(COUNTS))
    (tmp_path / "mapping.json").write_text(json.dumps({"cat": 500, "dog": 60, "otter": 5}))
    np.save(tmp_path / "counts.npy", np.array(COUNTS))
    for names in ("names.txt", "names.json"):
        for counts in ("counts.txt", "counts.json", "mapping.json", "counts.npy"):
            found = read_predictions(tmp_path / "a.npz", names=tmp_path / names, counts=str(tmp_path / counts))
            same(found, counts=COUNTS)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("stray", ["timestamp", "Unnamed: 0", "__index_level_0__", "level_0", "Latency", "Date-Time"])
def test_a_column_of_something_else_is_no_class(stray, ending, tmp_path):
    for place in (1, 4):  # before or after the classes
        header, columns = ["label", *NAMES], [named(LABELS), *LOGITS.T.tolist()]
        header.insert(place, stray)
        columns.insert(place, list(range(100, 107)))
        if ending == "csv":
            path = write_csv(tmp_path / "a.csv", header, columns)
        else:
            path = write_parquet(tmp_path / "a.parquet", **dict(zip(header, columns, strict=True)))
        same(read_predictions(path))


def test_a_class_may_be_called_like_something_else(tmp_path):
    """The fruit, not the day: it is a label."""
    names = ("date", "time", "dog")
    path = write_csv(tmp_path / "a.csv", ["label", *names], [[names[i] for i in LABELS], *LOGITS.T.tolist()])
    same(read_predictions(path), names=names)


@pytest.mark.parametrize("labels", [named, list], ids=["names", "numbers"])
def test_an_unknown_column_among_bare_ones(labels, tmp_path):
    """Refused unless the rows are probabilities: then it can only be a class without test images."""
    header = ["label", "brightness", *NAMES]
    path = write_csv(tmp_path / "a.csv", header, [labels(LABELS), range(7), *LOGITS.T.tolist()])
    with pytest.raises(ValueError, match=r"column 'brightness' would count as a class.*--names.*--scores") as caught:
        read_predictions(path)
    assert "\n" not in str(caught.value)
    same(read_predictions(path, names=NAMES))
    rare = write_csv(tmp_path / "b.csv", ["label", *NAMES, "newt"],
                     [named(LABELS), *softmax(LOGITS).round(3).T.tolist(), [0.0] * 7])  # fmt: skip
    assert read_predictions(rare).class_names == (*NAMES, "newt")
    columns = [named(LABELS), ["x", "7", *"abcde"], *LOGITS.T.tolist()]
    same(read_predictions(write_csv(tmp_path / "c.csv", ["label", "scene", *NAMES], columns)))  # text is no score
    columns[1] = list("7abcdef")  # looks like numbers at first
    with pytest.raises(ValueError, match=r"column 'scene'.*invalid value 'a'.*taken for the scores.*--names"):
        read_predictions(write_csv(tmp_path / "d.csv", ["label", "scene", *NAMES], columns))


@pytest.mark.parametrize("header", [["p1", "p2"], ["prob_0", "prob_1"], ["score 1", "score 2"], ["class_1", "class_2"]])
def test_scores_of_the_best_classes_only(header, tmp_path):
    best = np.sort(softmax(LOGITS), 1)[:, ::-1]
    columns = [range(7), LABELS, BEST, best[:, 0].tolist(), best[:, 1].tolist()]
    path = write_csv(tmp_path / "a.csv", ["filename", "label", "pred", *header], columns)
    for options in ({}, {"names": NAMES}):
        found = read_predictions(path, **options)
        same(found, logits=False, names=options.get("names", "012"))
        assert found.notes[0].startswith(f"Only the predicted classes are used: '{header[0]}', '{header[1]}'")
    columns = [LABELS, BEST, *softmax(LOGITS).T.tolist()]
    path = write_csv(tmp_path / "b.csv", ["label", "pred", "p0", "p1", "p2"], columns)
    same(read_predictions(path), names="012")
    assert [note.rpartition(": ")[2] for note in read_predictions(path).notes] == ["they are used as probabilities."]


@pytest.mark.parametrize("header", [("True Label", "Predicted-Class"), ("true_class", "PRED"), (" Actual ", "pred"),
                                    ("GT", "y pred"), ("groundTruth", "prediction")])  # fmt: skip
def test_names_of_columns_are_compared_loosely(header, tmp_path):
    same(read_predictions(write_csv(tmp_path / "a.csv", header, [LABELS, BEST]), names=NAMES), logits=False)


def test_names_by_number(tmp_path):
    np.savez(tmp_path / "a.npz", labels=LABELS, logits=LOGITS)
    for place, content in enumerate(({"2": "dog", "0": "otter", "1": "cat"}, {"cat": 1, "dog": 2, "otter": 0})):
        (tmp_path / f"{place}.json").write_text(json.dumps(content))
        same(read_predictions(tmp_path / "a.npz", names=tmp_path / f"{place}.json"))


def test_scores_and_predicted_classes_together(tmp_path):
    ties = LOGITS.copy()
    ties[0] = 1.0
    predicted = ties.argmax(1)
    predicted[0] = 2  # any of the tied ones
    np.savez(tmp_path / "a.npz", labels=LABELS, logits=ties, predicted=predicted)
    assert read_predictions(tmp_path / "a.npz").predicted.tolist() == predicted.tolist()
    predicted[1] = 0
    np.savez(tmp_path / "a.npz", labels=LABELS, logits=ties, predicted=predicted)
    with pytest.raises(ValueError, match=r"row 1 is predicted as '0', but its largest score is that of '1'"):
        read_predictions(tmp_path / "a.npz")


# ---- notebooks


@pytest.mark.parametrize(
    "convert",
    [np.asarray, lambda values: np.asarray(values).tolist(), torch.as_tensor,
     lambda values: torch.as_tensor(values).bfloat16() if np.ndim(values) == 2 else torch.as_tensor(values),
     lambda values: torch.as_tensor(values).requires_grad_() if np.ndim(values) == 2 else values],
    ids=["numpy", "lists", "torch", "bfloat16", "with gradient"],
)  # fmt: skip
def test_arrays(convert):
    same(make_predictions(convert(LABELS), convert(LOGITS), class_names=NAMES, class_counts=COUNTS), counts=COUNTS)
    same(make_predictions(convert(LABELS), convert(BEST), class_names=NAMES), logits=False)


def test_names_and_counts_from_class_counts():
    counts = ClassCounts(COUNTS, names=NAMES)
    same(make_predictions(named(LABELS), LOGITS, class_counts=counts), counts=COUNTS)


def test_nothing_given_is_changed_or_copied():
    shares, logits = softmax(LOGITS).astype(np.float32), LOGITS.copy()
    found = make_predictions(LABELS, shares)
    np.testing.assert_array_equal(shares, softmax(LOGITS).astype(np.float32))
    np.testing.assert_allclose(found.logits, np.log(shares), atol=1e-6)
    assert np.shares_memory(make_predictions(LABELS, logits).logits, logits)


def test_probabilities_of_zero_stay_finite(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 6)  # two rows at a time
    found = make_predictions(LABELS, np.eye(3)[BEST])
    assert np.isfinite(found.logits).all()
    assert found.predicted.tolist() == BEST.tolist()
    almost = make_predictions(LABELS, np.vstack([np.eye(3)[BEST[:6]], [[0.5, 0.1, 0.1]]]))  # the last row is none
    assert almost.logits.min() == 0


def test_blocks_give_what_one_piece_gives(monkeypatch):
    draw = np.random.default_rng(0)
    labels, scores = draw.integers(0, 9, 100), draw.normal(size=(100, 9))
    whole = make_predictions(labels, scores)
    monkeypatch.setattr(module, "BLOCK", 50)
    parts = make_predictions(labels, scores)
    np.testing.assert_array_equal(whole.logits, parts.logits)
    assert parts.predicted.tolist() == scores.argmax(1).tolist()


def test_classes_of_one_name_are_told_apart():
    assert make_predictions([0, 1], [1, 2], class_names=["crane", "crane", "cat"]).class_names == (
        "crane (0)", "crane (1)", "cat",
    )  # fmt: skip
    with pytest.raises(ValueError, match="two classes are called 'crane'"):
        make_predictions(["crane", "cat"], [1, 2], class_names=["crane", "crane", "cat"])


def test_one_sample():
    found = make_predictions([1], [[0.0, 1.0, 3.0]])
    assert (found.labels.tolist(), found.predicted.tolist(), len(found), found.num_classes) == ([1], [2], 1, 3)


# ---- what is refused, in one sentence


def nan_at(row, label, value):
    scores = LOGITS.copy()
    scores[row, label] = value
    return scores


@pytest.mark.parametrize(
    ("labels", "values", "options", "words"),
    [
        ([0, 1, 3], LOGITS[:3], {}, r"labels must lie in \[0, 3\); row 2 is 3"),
        ([0, -1], LOGITS[:2], {}, r"labels must lie in \[0, 3\); row 1 is -1"),
        ([0, 1], [0, 3], {"class_names": NAMES}, r"predicted classes must lie in \[0, 3\); row 1 is 3"),
        ([0, -1], [0, 1], {}, r"labels must lie in \[0, 2\); row 1 is -1"),
        (LABELS, nan_at(2, 1, np.nan), {"class_names": NAMES}, r"row 2, class 1 \('cat'\) is nan. Compute it"),
        (LABELS, nan_at(6, 2, -np.inf), {}, r"row 6, class 2 \('2'\) is -inf. Give a class that is ruled out"),
        (LABELS, nan_at(6, 2, np.inf), {}, r"row 6, class 2 \('2'\) is inf. Scale the scores down"),
        ([1, None], [0, 1], {}, "row 1 of the labels is empty; fill it or drop the row"),
        (["1", "nan"], [0, 1], {}, "labels must be whole numbers; row 1 is 'nan'; fill it or drop the row"),
        (LABELS, nan_at(6, 2, 0).astype(np.float64) * 1e39, {}, r"row 0, class 0 \('0'\) is 3e\+39"),
        ([0, 0], [0, 0], {}, "two classes or more; got one"),
        ([0, 0], [[1.0], [2.0]], {}, "two classes or more; got one"),
        ([], [], {}, "no prediction"),
        (np.zeros(0, int), np.zeros((0, 3)), {}, "no prediction"),
        ([0, 1, 2], LOGITS[:2], {}, "as many rows of scores as labels; got 2 and 3"),
        ([0, 1, 2], [0, 1], {}, "as many predicted classes as labels; got 2 and 3"),
        ([0, 1], [0, 1], {"class_names": ["cat"]}, "two classes or more"),
        (LABELS, LOGITS, {"class_names": ["cat", "dog"]}, "there are 3 classes but 2 class names"),
        (LABELS, LOGITS, {"class_counts": [1, 2, 3, 4]}, "there are 3 classes but 4 class counts"),
        (LABELS, BEST, {"class_names": NAMES, "class_counts": [1, 2]}, "there are 3 classes but 2 class counts"),
        (LABELS, LOGITS, {"class_counts": [1, 2, 0.5]}, "class counts must be a flat list of whole numbers"),
        (LABELS, LOGITS, {"class_counts": [1, 2, -3]}, "class counts must be a flat list of whole numbers"),
        (LABELS, LOGITS, {"class_counts": [0, 0, 0]}, "class counts are all zero"),
        (LABELS, LOGITS, {"class_counts": ["1", "2", "three"]}, "class counts must be whole numbers .* got 'three'"),
        (["cat", "dgo"], [0, 1], {"class_names": NAMES}, "labels: there is no class 'dgo'; did you mean 'dog'\\?"),
        (["cat", "dog"], LOGITS[:2], {}, "labels: there is no class 'cat'"),
        ([0.5, 1], [0, 1], {}, "labels must be whole numbers or names; row 0 is 0.5"),
        ([0, np.nan], [0, 1], {}, "labels must be whole numbers or names; row 1 is nan"),
        ([[0, 1]], [0, 1], {}, r"labels must have shape \(N,\)"),
        ([0, 1], np.zeros((2, 3, 4)), {}, r"scores must have shape \(N, K\)"),
        ([0, 1], [[1.0, 2.0], [1.0]], {}, "rows of one length"),
        ([0, 1], [["a", "b"], ["c", "d"]], {}, "scores must be numbers"),
        ([0, 5_000_000_000], [0, 1], {}, "labels must be class indices .* got 5,000,000,000"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(labels, values, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        make_predictions(labels, values, **options)
    assert "\n" not in str(caught.value)


def bad_files(folder):
    """Files, options, and what their message must say."""

    def text(name, content):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    def npz(name, **arrays):
        np.savez(folder / name, **arrays)
        return folder / name

    good = npz("good.npz", labels=LABELS, logits=LOGITS)
    torn = folder / "torn.npz"
    torn.write_bytes(good.read_bytes()[:-200])
    flipped = bytearray(npz("flipped.npz", labels=LABELS, logits=LOGITS).read_bytes())
    with zipfile.ZipFile(good) as archive:
        start = archive.getinfo("logits.npy").header_offset
    flipped[start + 200] ^= 255
    (folder / "flipped.npz").write_bytes(flipped)
    write_parquet(folder / "good.parquet", label=LABELS, pred=BEST)
    torn_parquet = text("torn.parquet", (folder / "good.parquet").read_bytes()[:-40])
    table = write_csv(folder / "good.csv", ["label", "predicted"], [LABELS, BEST])
    objects = np.array([{"a": 1}] * 7, dtype=object)
    np.save(folder / "objects.npy", objects, allow_pickle=True)
    np.save(folder / "labels.npy", LABELS)
    short = npz("short.npz", labels=LABELS[:3], logits=LOGITS)
    broken = npz("broken.npz", labels=LABELS, probabilities=LOGITS)
    return {
        "no file": (folder / "none.npz", {}, "none.npz does not exist"),
        "no known ending": (text("a.xlsx", "x"), {}, "must end in .npz, .npy, .csv, .tsv, .parquet; got '.xlsx'"),
        "no ending": (text("plain", "x"), {}, "got 'no ending'"),
        "empty npz": (text("empty.npz", b""), {}, "no .npz file, or a damaged one"),
        "torn npz": (torn, {}, "no .npz file, or a damaged one"),
        "flipped npz": (folder / "flipped.npz", {}, "flipped.npz is damaged"),
        "no arrays": (npz("nothing.npz"), {}, "has no array 'labels'; its arrays are none"),
        "no labels": (npz("c.npz", logits=LOGITS), {}, "has no array 'labels'; its arrays are 'logits'"),
        "no scores": (npz("d.npz", labels=LABELS, extra=LABELS), {}, "no array 'logits', 'probabilities' or 'pred"),
        "pickled": (npz("e.npz", labels=LABELS, logits=objects), {}, "holds Python objects, which could run code"),
        "pickled npy": (folder / "objects.npy", {"scores": folder / "labels.npy"}, "holds Python objects"),
        "one npy": (folder / "labels.npy", {}, "name the .npy file of the scores as well"),
        "empty npy": (text("empty.npy", b""), {"scores": folder / "labels.npy"}, "no .npy file, or a damaged one"),
        "other npy gone": (folder / "labels.npy", {"scores": folder / "gone.npy"}, "gone.npy does not exist"),
        "torn npy": (text("torn.npy", (folder / "labels.npy").read_bytes()[:-9]), {"scores": folder / "labels.npy"},
                     "torn.npy is damaged"),
        "lengths": (short, {}, "short.npz: there must be as many rows of scores as labels; got 7 and 3"),
        "not probabilities": (broken, {}, "probabilities must be 0 or more and sum to 1 in each row; row 3"),
        "empty csv": (text("empty.csv", ""), {}, "empty.csv is empty"),
        "header only": (text("header.csv", "label,predicted\n"), {}, "no prediction"),
        "no text": (text("latin.csv", "label,pred\nÄ,Ä\n".encode("latin-1")), {}, "no UTF-8 text"),
        "no label column": (text("f.csv", "a,b\n1,2\n"), {}, "no column of labels .* 'a', 'b'. Name it with --la"),
        "no predicted column": (text("g.csv", "label,id\n1,2\n"), {}, "neither a column such as 'predicted' nor"),
        "wrong label column": (table, {"label_column": "lable"}, "no column 'lable' .*; did you mean 'label'\\?"),
        "wrong predicted column": (table, {"prediction_column": "prediced"}, "; did you mean 'predicted'\\?"),
        "wrong array": (good, {"label_column": "labls"}, "no array 'labls' .*; did you mean 'labels'\\?"),
        "wrong prefix": (table, {"scores": "logit_"}, "no column that begins with 'logit_'"),
        "wrong score column": (table, {"scores": ["x", "y"]}, "has no column 'x'"),
        "two columns": (text("h.csv", "label,label,pred\n1,1,1\n"), {}, "two columns 'label'"),
        "ragged": (text("i.csv", "label,pred\n1,1\n1\n"), {}, "Expected 2 columns, got 1"),
        "no number": (text("j.csv", "label,p_0,p_1\n0,1,0\n1,x,1\n"), {}, "column 'p_0'.* invalid value 'x'"),
        "a gap": (text("k.csv", "label,p_0,p_1\n0,1,0\n1,,1\n"), {}, "line 3 of column 'p_0' is empty"),
        "text for scores": (write_parquet(folder / "l.parquet", label=LABELS, cat=named(BEST), dog=named(BEST)), {},
                            "neither a column such as 'predicted' nor one column of scores per class"),
        "text for given scores": (folder / "l.parquet", {"scores": ["cat", "dog"]},
                                  "column 'cat' was taken for the scores of a class, but holds 'otter'. List the"),
        "empty label": (text("q.csv", "label,pred\ncat,cat\n,cat\n"), {}, "line 3 of column 'label' is empty; fill it"),
        "empty guess": (text("r.csv", 'label,pred\ncat,cat\ndog,""\n'), {}, "line 3 of column 'pred' is empty"),
        "nan label": (text("s.csv", "label,pred\n0,0\n1,1\nnan,1\n"), {}, "row 2 is 'nan'; fill it or drop the row"),
        "none label": (text("t.csv", "label,pred\n0,0\n1,None\n"), {}, "row 1 is 'None'; fill it or drop the row"),
        "nan score": (text("u.csv", "label,p_0,p_1\n0,1,0\n1,nan,1\n"), {}, "row 1, class 0 .* is nan. Compute it"),
        "no list": (write_parquet(folder / "v.parquet", label=[1, 0], logits=[[1.0, 2.0], None]), {},
                    "row 1 of column 'logits' is empty; fill it or drop the line"),
        "one score": (text("m.csv", "label,score\n0,0.1\n1,0.7\n"), {}, "the only column of scores; expected one per"),
        "label gap": (write_parquet(folder / "n.parquet", label=[1, None], pred=[1, 1]), {}, "row 1 of column 'label'"),
        "lists": (write_parquet(folder / "o.parquet", label=[1, 0], logits=[[1.0, 2.0], [1.0]]), {}, "differ in len"),
        "torn parquet": (torn_parquet, {}, "cannot be read as parquet"),
        "empty parquet": (text("empty.parquet", b""), {}, "cannot be read as parquet"),
        "unknown class": (text("p.csv", "label,pred\ncat,cat\nowl,cat\n"), {"names": NAMES}, "there is no class 'owl'"),
        "few names": (good, {"names": ["a", "b"]}, "there are 3 classes but 2 class names"),
        "names gone": (good, {"names": folder / "no.txt"}, "no.txt does not exist"),
        "names empty": (good, {"names": text("empty.txt", "\n")}, "empty.txt is empty"),
        "names no list": (good, {"names": text("n.json", '{"a": 1}')}, "list of class names, or map 0, 1, 2, .* 'a'"),
        "names no JSON": (good, {"names": text("n2.json", "[")}, "n2.json is no valid JSON"),
        "many counts": (good, {"counts": text("c.txt", "1\n2\n3\n4\n")}, "there are 3 classes but 4 class counts"),
        "counts no numbers": (good, {"counts": text("c2.txt", "1\nmany\n3\n")}, "class counts must .* got 'many'"),
        "counts by no names": (good, {"counts": text("c3.json", '{"cat": 1}')}, "no count for class '0'"),
        "a count missing": (good, {"counts": text("c4.json", '{"cat": 1, "ottr": 2}'), "names": NAMES},
                            "no count for class 'otter'; did you mean 'ottr'\\?"),
    }  # fmt: skip


CASES = """no file|no known ending|no ending|empty npz|torn npz|flipped npz|no arrays|no labels|no scores|pickled
pickled npy|one npy|empty npy|other npy gone|torn npy|lengths|not probabilities|empty csv|header only|no text
no label column|no predicted column|wrong label column|wrong predicted column|wrong array|wrong prefix
wrong score column|two columns|ragged|no number|a gap|text for scores|one score|label gap|lists|torn parquet
empty parquet|unknown class|few names|names gone|names empty|names no list|names no JSON|many counts
counts no numbers|counts by no names|a count missing|text for given scores|empty label|empty guess|nan label
none label|nan score|no list""".replace("\n", "|").split("|")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return bad_files(tmp_path_factory.mktemp("bad"))


def test_every_bad_file_is_tried(files):
    assert set(CASES) == files.keys()


@pytest.mark.parametrize("case", CASES)
def test_files_that_cannot_be_read(case, files):
    path, options, words = files[case]
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        read_predictions(path, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None  # said in words, not passed on


def test_scores_without_labels_where_none_are_needed(tmp_path):
    scores = np.array([[2.0, 1.0, -1.0], [0.0, 3.0, 1.0]])
    np.savez(tmp_path / "a.npz", logits=scores)
    (tmp_path / "b.csv").write_text("file,logit_0,logit_1,logit_2\nx,2,1,-1\ny,0,3,1\n")
    (tmp_path / "c.csv").write_text("predicted\n0\n1\n")
    for name in ("a.npz", "b.csv"):
        found = read_predictions(tmp_path / name, need_labels=False)
        assert not found.labelled
        np.testing.assert_array_equal(found.logits, scores)
        assert found.labels.tolist() == [0, 0]
        with pytest.raises(ValueError, match="labels"):
            read_predictions(tmp_path / name)
    assert read_predictions(tmp_path / "c.csv", need_labels=False).predicted.tolist() == [0, 1]
    np.savez(tmp_path / "d.npz", logits=scores, labels=[0, 1])
    assert read_predictions(tmp_path / "d.npz", need_labels=False).labelled
    (tmp_path / "e.csv").write_text("file\nx\n")
    with pytest.raises(ValueError, match="has neither a column such as 'predicted'"):
        read_predictions(tmp_path / "e.csv", need_labels=False)
    np.savez(tmp_path / "f.npz", other=scores)
    with pytest.raises(ValueError, match="has no array 'logits'"):
        read_predictions(tmp_path / "f.npz", need_labels=False)


def test_counts_by_class_name_need_no_list_of_names(tmp_path):
    (tmp_path / "a.csv").write_text("label,prediction\nzebra,zebra\nzebra,cat\ncat,cat\n")
    (tmp_path / "counts.json").write_text('{"zebra": 1000, "owl": 3, "cat": 5}')
    found = read_predictions(tmp_path / "a.csv", counts=tmp_path / "counts.json")
    assert found.class_names == ("cat", "owl", "zebra")  # a class without a test image is one too
    assert found.class_counts.tolist() == [5, 3, 1000]
    assert found.notes == ()
    (tmp_path / "counts.txt").write_text("1000\n5\n")
    with pytest.raises(ValueError, match="nothing says in which order the classes are"):
        read_predictions(tmp_path / "a.csv", counts=tmp_path / "counts.txt")
    (tmp_path / "counts.json").write_text('{"zebra": 1000, "cats": 5}')
    with pytest.raises(ValueError, match="there is no count for class 'cat'; did you mean 'cats'"):
        read_predictions(tmp_path / "a.csv", counts=tmp_path / "counts.json")


@pytest.mark.parametrize("lines", ["0,0\n0,1\n1,1\n", "0,1\n0,0\n1,1\n", "cat,cat\ndog,cat\n"])
def test_a_table_without_column_names_is_called_so(lines, tmp_path):
    (tmp_path / "a.csv").write_text(lines)
    with pytest.raises(ValueError, match="column names above it, such as label,prediction"):
        read_predictions(tmp_path / "a.csv")
