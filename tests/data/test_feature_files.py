"""`features:FILE`: every format gives the same data, what is wrong gets one sentence, and nothing is unpickled."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from spectail.data import FeatureSet, load

NAMES = ["cow", "ant", "bee"]


def vectors(rows=20, width=4, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def marks(rows=20):
    """Ten, six and four of three classes, mixed."""
    return np.random.default_rng(1).permutation(np.repeat([0, 1, 2], [rows // 2, rows * 3 // 10, rows // 5]))


@pytest.fixture
def file(tmp_path):
    def write(name="x.npz", **arrays):
        np.savez(tmp_path / name, **arrays)
        return f"features:{tmp_path / name}"

    return write


def whole(data):
    """All rows with the names of their classes, in stored order."""
    rows = [(int(row), tuple(features.tolist()), split.names[label]) for split in data.splits.values()
            for row, features, label in zip(split.rows, split.features, split.labels, strict=True)]  # fmt: skip
    return sorted(rows)


def wanted(names):
    return [(i, tuple(row.tolist()), names[mark]) for i, (row, mark) in enumerate(zip(vectors(), marks(), strict=True))]


@pytest.mark.parametrize(
    "names", [("X", "y"), ("features", "labels"), ("X_train", "y_train"), ("Embeddings", "Targets")]
)
def test_npz_under_its_usual_names(file, names):
    data = load(file(**dict(zip(names, (vectors(), marks()), strict=True))))
    assert whole(data) == wanted(["0", "1", "2"])
    assert isinstance(data.train, FeatureSet)
    assert data.train.features.dtype == torch.float32
    assert len(data.test) == 4  # 2 + 1 + 1: a fifth of each class is held out
    assert data.width == data.manifest.statistics["features"] == 4
    assert data.manifest.notes == ["the test set is 20% of each class, held out: the data has none"]


def test_all_formats_give_the_same_data(file, tmp_path):
    npz = load(file(X=vectors(), y=marks()))
    np.save(tmp_path / "x.npy", vectors())
    np.save(tmp_path / "x_labels.npy", marks())
    tables = {
        "list": pa.array(list(vectors()), pa.list_(pa.float32())),
        "large": pa.array(list(vectors()), pa.large_list(pa.float32())),
        "fixed": pa.array(list(vectors()), pa.list_(pa.float32(), 4)),
        "double": pa.array(list(vectors().astype(float)), pa.list_(pa.float64())),
    }
    for name, column in tables.items():
        table = pa.table({"id": pa.array(range(20)), "embedding": column, "label": pa.array(marks())})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=7)
    for name in ["x.npy", *(f"{name}.parquet" for name in tables)]:
        assert load(f"features:{tmp_path / name}").manifest.identity == npz.manifest.identity, name


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int16, bool])
def test_numbers_of_any_type_become_single_precision(file, kind):
    values = (vectors() * 3).astype(kind)
    data = load(file(X=values, y=marks()))
    np.testing.assert_array_equal(data.train.features, values[data.train.rows].astype(np.float32))


@pytest.mark.parametrize("kind", [str, bytes])
def test_labels_may_be_names(file, kind):
    names = np.array(NAMES)[marks()]
    stored = np.char.encode(names) if kind is bytes else names
    data = load(file(X=vectors(), y=stored))
    assert data.train.names == ("ant", "bee", "cow")
    assert whole(data) == wanted(NAMES)


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.float64])
def test_labels_may_be_numbers_of_any_type(file, kind):
    assert whole(load(file(X=vectors(), y=marks().astype(kind)))) == wanted(["0", "1", "2"])


def test_class_names_go_with_numbers(file):
    data = load(file(X=vectors(), y=marks(), class_names=np.array(NAMES)))
    assert data.train.names == tuple(NAMES)
    assert whole(data) == wanted(NAMES)
    with pytest.raises(ValueError, match="label 2 has no name: there are 2 class names"):
        load(file(X=vectors(), y=marks(), class_names=np.array(NAMES[:2])))


def test_splits_of_the_file_are_used(file, tmp_path):
    data = load(file(X=vectors(), y=marks(), X_test=vectors(6, seed=5), y_test=[0, 1, 2, 0, 1, 2],
                     X_val=vectors(3, seed=6), y_val=[2, 1, 0]))  # fmt: skip
    assert [len(split) for split in data.splits.values()] == [20, 6, 3]
    np.testing.assert_array_equal(data.test.features, vectors(6, seed=5))
    np.testing.assert_array_equal(data.val.labels, [2, 1, 0])
    with pytest.raises(ValueError, match="--test-fraction means nothing"):
        load(file(X=vectors(), y=marks(), X_test=vectors(3), y_test=[0, 1, 2]), test_fraction=0.5)
    for split, rows in (("train", 20), ("test", 6)):
        np.save(tmp_path / f"{split}_a.npy", vectors(rows))
        np.save(tmp_path / f"{split}_a_labels.npy", marks(20)[:rows])
    assert [len(split) for split in load(f"features:{tmp_path / 'train_a.npy'}").splits.values()] == [20, 6]


def test_a_validation_split_alone_is_the_test_set(file):
    data = load(file(X=vectors(), y=marks(), X_val=vectors(3, seed=6), y_val=[2, 1, 0]))
    assert data.val is None
    assert data.manifest.notes == ["the validation rows are used as test set: there are no test rows"]


def test_the_long_tail_and_validation_work_as_for_images(file):
    data = load(file(X=vectors(200), y=marks(200)), imbalance=4, val_per_class=2)
    assert data.counts.tolist() == [78, 38, 18]  # 80, 48 and 32 after the test set; 80, 40, 20 by the rule; less 2
    assert len(data.val) == 6
    assert not set(data.train.rows) & (set(data.val.rows) | set(data.test.rows))


def test_the_identity_covers_every_number_and_label(file):
    identity = load(file(X=vectors(), y=marks())).manifest.identity
    assert load(file("other-name.npz", features=vectors(), labels=marks())).manifest.identity == identity
    changed = vectors()
    changed[3, 2] = np.nextafter(changed[3, 2], np.float32(9))
    assert load(file(X=changed, y=marks())).manifest.identity != identity
    swapped = marks()
    first = {label: int(np.flatnonzero(swapped == label)[0]) for label in (0, 1)}
    swapped[first[0]], swapped[first[1]] = 1, 0
    assert load(file(X=vectors(), y=swapped)).manifest.identity != identity
    assert load(file(X=vectors()[:, :3], y=marks())).manifest.identity != identity


def test_equal_rows_are_found(file):
    values = vectors()
    values[7] = values[3]
    labels = marks()
    labels[3], labels[7] = 0, 1
    checks = load(file(X=values, y=labels, X_test=values[5:8], y_test=[0, 1, 2])).manifest.checks
    assert checks["read"] == "all rows"
    assert checks["duplicates"]["train and test"]["examples"] == [
        "row 0 (train: row 5)",
        "row 1 (train: row 6)",
        "row 2 (train: row 3)",
    ]
    assert checks["duplicates"]["train, under two labels"] == {"images": 1, "examples": ["row 3 and row 7"]}


def test_gaps_in_the_numbers(file):
    there = file(X=vectors(), y=marks() * 5)
    with pytest.raises(ValueError, match=r"labels must be 0\.\.10 without gaps.*--remap-labels"):
        load(there)
    assert load(there, remap_labels=True).train.names == ("0", "5", "10")


BAD = {
    "nan": ({"X": np.where(np.arange(80).reshape(20, 4) == 14, np.nan, vectors())},
            r"not finite: nan in row 3, column 2\. Fill them in"),
    "inf": ({"X": np.sign(vectors()) * np.float32(np.inf)}, "inf in row 0, column 0, and more in 19 other rows"),
    "too large": ({"X": vectors().astype(float) * 1e60}, "not finite: .*e.* in row 0"),
    "one class": ({"y": np.full(20, 7)}, "has one class, '7'; a classifier needs two or more"),
    "one name": ({"y": np.full(20, "a")}, "has one class, 'a'"),
    "fewer labels": ({"y": marks()[:19]}, "the training split has 20 rows of features and 19 labels"),
    "one dimension": ({"X": vectors()[:, 0]}, r"must have features \(N, D\).*got shape \(20,\).*X\.reshape\(-1, 1\)"),
    "images": ({"X": np.zeros((20, 8, 8))}, r"got shape \(20, 8, 8\)\. Flatten"),
    "no features": ({"X": np.zeros((20, 0))}, r"got shape \(20, 0\)"),
    "no rows": ({"X": np.zeros((0, 4)), "y": np.zeros(0, int)}, "the training split is empty"),
    "text": ({"X": vectors().astype(str)}, "must have numbers as features; got values of type <U"),
    "complex": ({"X": vectors().astype(complex)}, "must have numbers as features; got values of type complex"),
    "one-hot": ({"y": np.eye(3)[marks()]}, r"one label for each row, of shape \(N,\); got \(20, 3\)"),
    "half": ({"y": marks() + 0.5}, r"whole numbers or names as labels; got \d\.5"),
    "lost": ({"y": np.where(marks() == 0, np.nan, marks())}, "whole numbers or names as labels; got nan"),
    "dates": ({"y": marks().astype("datetime64[D]")}, "names as labels; got values of type datetime64"),
    "negative": ({"y": marks() - 1}, "labels must be 0 or more; found -1"),
    "huge": ({"y": np.full(20, 2**64 - 1, np.uint64) - marks().astype(np.uint64)}, "must have labels 0, 1, 2"),
    "objects": ({"y": np.array(["a", 1] * 10, object)}, "damaged, or holds Python objects, which could run code"),
    "object features": ({"X": vectors().astype(object)}, "damaged, or holds Python objects"),
    "both names": ({"features": vectors()}, "'X' and 'features', which mean the same; keep one"),
    "half a test split": ({"X_test": vectors()}, "no labels of the test split: an array 'y' or 'labels', with '_test'"),
    "narrow test split": ({"X_test": vectors(3, 5), "y_test": [0, 1, 2]},
                          "the test split has 5 features in a row, the training split 4"),
    "new class in test": ({"X_test": vectors(3), "y_test": [0, 1, 3]}, "class 3 occurs in test and not in train"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_bad_arrays_get_one_sentence(file, fault):
    arrays, sentence = BAD[fault]
    with pytest.raises(ValueError, match=sentence) as caught:
        load(file(**{"X": vectors(), "y": marks()} | arrays))
    assert "\n" not in str(caught.value)


def test_bad_files_get_one_sentence(file, tmp_path):
    cases = {
        "nothing.npz": "does not exist; expected a .npz, .npy or .parquet file",
        "text.npz": "no .npz file, or a damaged one",
        "text.npy": "no .npy file, or a damaged one",
        "text.json": "ends in '.json'; expected a .npz",
        "text.parquet": "cannot be read as parquet",
        "lonely.npy": "needs its labels in lonely_labels.npy beside it",
    }
    for name in cases:
        if name.startswith("text"):
            (tmp_path / name).write_text("hello, this is text")
    np.save(tmp_path / "lonely.npy", vectors())
    (tmp_path / "text_labels.npy").write_bytes((tmp_path / "lonely.npy").read_bytes())
    for name, sentence in cases.items():
        with pytest.raises((ValueError, OSError), match=sentence):
            load(f"features:{tmp_path / name}")
    with pytest.raises(ValueError, match="no features of the train split.*arrays are a"):
        load(file(a=vectors()))
    there = file(X=vectors(), y=marks())
    content = bytearray((tmp_path / "x.npz").read_bytes())
    at = content.find(vectors().tobytes())
    content[at : at + 4] = b"oops"
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ValueError, match="x.npz is damaged .*; write it again"):
        load(there)


def table(**columns):
    usual = {"features": pa.array(list(vectors()), pa.list_(pa.float32())), "label": pa.array(marks())}
    return pa.table(usual | columns)


def test_columns_of_a_parquet_file(tmp_path):
    path = tmp_path / "x.parquet"
    lists = pa.array(list(vectors(seed=9)), pa.list_(pa.float32()))
    names = pa.array([NAMES[mark] for mark in marks()]).dictionary_encode()
    pq.write_table(table(other=lists, kind=names), path)
    data = load(f"features:{path}", feature_column="other", label_column="kind")
    np.testing.assert_array_equal(data.train.features, vectors(seed=9)[data.train.rows])
    assert data.train.names == ("ant", "bee", "cow")
    with pytest.raises(ValueError, match="no feature column 'label'.*columns that could be one: features, other"):
        load(f"features:{path}", feature_column="label")
    with pytest.raises(ValueError, match="--image-column means nothing"):
        load(f"features:{path}", image_column="features")
    unequal = pa.array([row[: 3 + (i > 5)] for i, row in enumerate(vectors())], pa.list_(pa.float32()))
    pq.write_table(table(features=unequal), path)
    with pytest.raises(ValueError, match="some with 3 and some with 4 numbers"):
        load(f"features:{path}")
    for gap in (None, [1.0, None, 2.0, 3.0]):
        pq.write_table(table(features=pa.array([*list(vectors())[:19], gap], pa.list_(pa.float32()))), path)
        with pytest.raises(ValueError, match="column 'features' has empty entries"):
            load(f"features:{path}")


def test_a_column_means_nothing_for_arrays(file):
    with pytest.raises(ValueError, match="--label-column names a column of a parquet file, and x.npz is none"):
        load(file(X=vectors(), y=marks()), label_column="y")


def test_a_folder_of_shards(tmp_path):
    pq.write_table(table().slice(0, 12), tmp_path / "train-0.parquet")
    pq.write_table(table().slice(12), tmp_path / "train-1.parquet")
    pq.write_table(table().slice(0, 5), tmp_path / "test.parquet")
    data = load(f"features:{tmp_path}")
    np.testing.assert_array_equal(data.train.features, vectors())
    assert len(data.test) == 5
