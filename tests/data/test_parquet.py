"""Parquet files in the layouts that hubs and people write. Images are PNG of known noise, so pixels can be compared."""

import os

import numpy as np
import pyarrow as pa
import pytest
from data.builders import encode, first_of_each, noise, pixels_of, write_parquet

from spectail.data import load
from spectail.data.images import PackedImages

LABELS = [0, 1, 0, 2, 1, 0, 2, 1, 0, 2, 0, 1]
TEST = [2, 0, 1]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache") / "spectail"
    monkeypatch.setenv("SPECTAIL_CACHE", str(folder))
    return folder


def hub(root, side=8, **kwargs):
    """A training and a test file; returns their pixels."""
    train, test = noise(len(LABELS), side), noise(len(TEST), side, seed=1)
    options = {"names": ("ant", "bee", "cow")} | kwargs
    write_parquet(root / "train-00000-of-00001.parquet", train, LABELS, **options)
    write_parquet(root / "test-00000-of-00001.parquet", test, TEST, **options)
    return train, test


def same(found, wanted):
    return len(found) == len(wanted) and all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("layout", ["struct", "plain"])
@pytest.mark.parametrize("row_group_size", [None, 1, 5])
def test_layouts(tmp_path, layout, row_group_size):
    train, test = hub(tmp_path / "hub", layout=layout, row_group_size=row_group_size)
    data = load(f"parquet:{tmp_path / 'hub'}")
    assert data.train.names == ("ant", "bee", "cow")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == (LABELS, TEST)
    assert data.train.labels.dtype == np.int64
    assert same(pixels_of(data.train), train)
    assert same(pixels_of(data.test), test)


def test_names_stay_numbers_without_metadata(tmp_path):
    hub(tmp_path / "hub", names=None)
    assert load(f"parquet:{tmp_path / 'hub'}").train.names == ("0", "1", "2")


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()])
def test_integer_types(tmp_path, kind):
    write_parquet(tmp_path / "a.parquet", noise(12), pa.array(LABELS, kind))
    data = load(f"parquet:{tmp_path / 'a.parquet'}")
    assert sorted([*data.train.labels, *data.test.labels]) == sorted(LABELS)


def test_string_labels_are_numbered_in_sorted_order(tmp_path):
    words = ["owl", "ant", "émeu"]
    write_parquet(tmp_path / "train.parquet", noise(12), [words[label] for label in LABELS])
    write_parquet(tmp_path / "test.parquet", noise(3, seed=1), ["ant", "owl", "émeu"])
    data = load(f"parquet:{tmp_path}")
    assert data.train.names == ("ant", "owl", "émeu")
    assert data.train.labels.tolist() == [{0: 1, 1: 0, 2: 2}[label] for label in LABELS]
    assert data.test.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train-0.parquet", "train-1.parquet", "test-0.parquet"], {"train": [0, 1], "test": [2]}),
        (["data/train-0.parquet", "data/validation-0.parquet"], {"train": [0], "test": [1]}),
        (["train/0.parquet", "test/0.parquet", "val/0.parquet"], {"train": [0], "test": [1], "val": [2]}),
        (["TRAIN.parquet", "Test.parquet"], {"train": [0], "test": [1]}),
        (["mydata_train_0.parquet", "mydata_test_0.parquet"], {"train": [0], "test": [1]}),
    ],
)
def test_shards(tmp_path, files, splits):
    pictures = {}
    for number, name in enumerate(files):
        pictures[number] = noise(12, seed=number)
        write_parquet(tmp_path / name, pictures[number], LABELS)
    data = load(f"parquet:{tmp_path}")
    for split in ("train", "test", "val"):
        if split in splits:
            wanted = np.concatenate([pictures[number] for number in splits[split]])
            assert same(pixels_of(getattr(data, split)), wanted)
            assert getattr(data, split).labels.tolist() == LABELS * len(splits[split])
        else:
            assert getattr(data, split) is None
    assert len(data.manifest.files) == len({name.split("/")[-1] for name in files})


def test_validation_as_test_set_is_noted(tmp_path):
    write_parquet(tmp_path / "train.parquet", noise(12), LABELS)
    write_parquet(tmp_path / "validation.parquet", noise(12, seed=1), LABELS)
    assert any("validation" in note and "test set" in note for note in load(f"parquet:{tmp_path}").manifest.notes)


def test_one_file_holds_its_test_set_out(tmp_path):
    labels = [0] * 20 + [1] * 10
    pictures = noise(30)
    write_parquet(tmp_path / "all.parquet", pictures, labels)
    data = load(f"parquet:{tmp_path / 'all.parquet'}", test_fraction=0.3)
    assert (data.train.counts.tolist(), data.test.counts.tolist()) == ([14, 7], [6, 3])
    where = {encode(picture): label for picture, label in zip(pictures, labels, strict=True)}
    found = [(encode(np.asarray(image)), label) for part in (data.train, data.test) for image, label in part]
    assert dict(found) == where  # every image once, with its own label
    assert len(found) == 30
    assert any("30%" in note for note in data.manifest.notes)


def test_unnamed_shards_are_the_training_set(tmp_path):
    for part in range(2):
        write_parquet(tmp_path / f"part-{part}.parquet", noise(12, seed=part), LABELS)
    data = load(f"parquet:{tmp_path}")
    assert len(data.train) + len(data.test) == 24


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no parquet file"),
        (["test.parquet"], "has only test files"),
        (["train.parquet", "more.parquet"], r"files that name no split, such as more\.parquet"),
    ],
)
def test_bad_folders(tmp_path, files, message):
    for number, name in enumerate(files):
        write_parquet(tmp_path / name, noise(12, seed=number), LABELS)
    with pytest.raises((ValueError, OSError), match=message):
        load(f"parquet:{tmp_path}")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet does not exist; expected a parquet file"):
        load(f"parquet:{tmp_path / 'nothing.parquet'}")


def test_unknown_column_names(tmp_path):
    path = tmp_path / "a.parquet"
    left, right = noise(12), noise(12, seed=5)
    other = {"right": pa.array([encode(picture) for picture in right]), "species": pa.array(LABELS)}
    write_parquet(path, left, [7] * 12, image="left", label="place", layout="plain", extra=other)
    with pytest.raises(ValueError, match=r"which column is the image\? Candidates: left, right; .*--image-column"):
        load(f"parquet:{path}")
    with pytest.raises(ValueError, match=r"which column is the label\? Candidates: place, species; .*--label-column"):
        load(f"parquet:{path}", image_column="left")
    with pytest.raises(ValueError, match=r"no image column 'species' \(it is of type int64\); columns .*: left, right"):
        load(f"parquet:{path}", image_column="species", label_column="species")
    with pytest.raises(ValueError, match="no label column 'nothing'; columns that could be one: place, species"):
        load(f"parquet:{path}", image_column="left", label_column="nothing")
    data = load(f"parquet:{path}", image_column="left", label_column="species", test_fraction=0.5)
    assert {encode(image) for image in pixels_of(data.train)} < {encode(image) for image in left}
    again = load(f"parquet:{path}", image_column="right", label_column="species", test_fraction=0.5)
    assert {encode(image) for image in pixels_of(again.train)} < {encode(image) for image in right}


def test_the_only_fitting_column_is_taken(tmp_path):
    train, _ = hub(tmp_path / "hub", image="blob", label="kind")
    assert same(pixels_of(load(f"parquet:{tmp_path / 'hub'}").train), train)


def test_shards_must_agree_on_columns(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", noise(12), LABELS)
    write_parquet(tmp_path / "train-1.parquet", noise(12), LABELS, label="labels")
    with pytest.raises(ValueError, match=r"train-1\.parquet lacks the column 'image' or 'label'"):
        load(f"parquet:{tmp_path}")


@pytest.mark.parametrize("side", [8, 80])
def test_null_images(tmp_path, side):
    pictures = list(noise(12, side))
    pictures[3] = None
    write_parquet(tmp_path / "train.parquet", pictures, LABELS, row_group_size=5)
    write_parquet(tmp_path / "test.parquet", noise(3, side, seed=1), TEST)
    with pytest.raises(ValueError, match=r"train\.parquet row 3 "):
        load(f"parquet:{tmp_path}", strict=True)
    data = load(f"parquet:{tmp_path}")
    assert data.train.labels.tolist() == LABELS[:3] + LABELS[4:]
    assert same(pixels_of(data.train), pictures[:3] + pictures[4:])
    assert len(data.manifest.checks["broken"]["train"]) == 1


def test_paths_without_bytes(tmp_path):
    write_parquet(tmp_path / "a.parquet", [None] * 12, LABELS)
    with pytest.raises(ValueError, match="no image bytes"):
        load(f"parquet:{tmp_path / 'a.parquet'}")


def test_null_labels(tmp_path):
    write_parquet(tmp_path / "a.parquet", noise(12), pa.array([*LABELS[:-2], None, None]))
    with pytest.raises(ValueError, match=r"a\.parquet: 2 rows have no label"):
        load(f"parquet:{tmp_path / 'a.parquet'}")


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
def test_truncated_file(tmp_path, keep):
    path = tmp_path / "a.parquet"
    write_parquet(path, noise(12), LABELS)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if keep < 1 else keep])
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read as parquet .* Fetch it again"):
        load(f"parquet:{path}")


def test_damaged_pages_are_an_error_in_words(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, noise(12), LABELS)
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56  # the first page header; the footer is whole
    path.write_bytes(bytes(data))
    with pytest.raises((ValueError, OSError), match=r"a\.parquet"):
        load(f"parquet:{path}")


def test_gaps_in_the_labels(tmp_path):
    gaps = [{0: 0, 1: 3, 2: 7}[label] for label in LABELS]
    write_parquet(tmp_path / "train.parquet", noise(12), gaps)
    write_parquet(tmp_path / "test.parquet", noise(3, seed=1), [7, 0, 3])
    with pytest.raises(ValueError, match=r"without gaps; 5 have no training image: 1, 2, 4, 5, 6\. .*--remap-labels"):
        load(f"parquet:{tmp_path}")
    data = load(f"parquet:{tmp_path}", remap_labels=True)
    assert data.train.names == ("0", "3", "7")
    assert data.train.labels.tolist() == LABELS
    assert data.test.labels.tolist() == [2, 0, 1]


def test_named_classes_without_images(tmp_path):
    hub(tmp_path / "hub", names=("ant", "bee", "cow", "dog"))
    with pytest.raises(ValueError, match="without gaps; 1 have no training image: 3"):
        load(f"parquet:{tmp_path / 'hub'}")
    assert load(f"parquet:{tmp_path / 'hub'}", remap_labels=True).train.names == ("ant", "bee", "cow")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 1, 1, 0], [0, 1, 2, 3], "class 2 occurs in test and not in train, and 1 more"),
        (["a", "b", "b"], ["a", "c"], "class 'c' occurs in test and not in train"),
        ([-1, 0, 1], [0], "labels must be 0 or more; found -1"),
    ],
)
def test_labels_that_do_not_fit(tmp_path, train, test, message):
    write_parquet(tmp_path / "train.parquet", noise(len(train)), train)
    write_parquet(tmp_path / "test.parquet", noise(len(test), seed=1), test)
    with pytest.raises(ValueError, match=message):
        load(f"parquet:{tmp_path}")


def test_more_labels_than_names(tmp_path):
    hub(tmp_path / "hub", names=("ant", "bee"))
    with pytest.raises(ValueError, match="label 2 has no name: there are 2 class names"):
        load(f"parquet:{tmp_path / 'hub'}")


def test_numbers_in_train_and_words_in_test(tmp_path):
    write_parquet(tmp_path / "train.parquet", noise(3), [0, 1, 1])
    write_parquet(tmp_path / "test.parquet", noise(2, seed=1), ["a", "b"])
    with pytest.raises(ValueError, match="test"):
        load(f"parquet:{tmp_path}")


@pytest.mark.parametrize("side", [8, 80])
@pytest.mark.parametrize("row_group_size", [None, 4])
def test_selection_keeps_the_order(tmp_path, side, row_group_size):
    train, _ = hub(tmp_path / "hub", side, row_group_size=row_group_size)
    data = load(f"parquet:{tmp_path / 'hub'}", counts=(3, 1, 2), selection="first-n")
    wanted = first_of_each(LABELS, (3, 1, 2))
    assert data.train.labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert same(pixels_of(data.train), train[wanted])
    seeded = load(f"parquet:{tmp_path / 'hub'}", counts=(5, 4, 3), data_seed=4)
    generator = np.random.RandomState(4)
    for label in range(3):
        members = np.flatnonzero(np.array(LABELS) == label)
        generator.shuffle(members)
        assert same([image for image, at in zip(pixels_of(seeded.train), seeded.train.labels, strict=True)
                     if at == label], train[members])  # fmt: skip


# Large images: encoded, one after the other, in a memory-mapped file of the cache.


def test_large_images_are_packed(tmp_path, cache):
    train, test = hub(tmp_path / "hub", 80, row_group_size=5)
    data = load(f"parquet:{tmp_path / 'hub'}")
    assert isinstance(data.train.images, PackedImages)
    for index in (7, 0, 11, 3, 3):
        assert np.array_equal(np.asarray(data.train[index][0]), train[index])
    assert same(pixels_of(data.test), test)
    assert len(list(cache.rglob("images.bin"))) == 2  # one for each split


def test_the_packed_file_is_used_again(tmp_path, cache):
    train, _ = hub(tmp_path / "hub", 80)
    load(f"parquet:{tmp_path / 'hub'}")
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("images.bin")}
    data = load(f"parquet:{tmp_path / 'hub'}")
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("images.bin")} == before
    assert same(pixels_of(data.train), train)


def damage(name, how):
    def do(cache):
        for file in cache.rglob(name):
            whole = file.read_bytes()
            if how == "remove":
                file.unlink()
            elif how == "flip":
                file.write_bytes(whole[:-100] + bytes(255 - value for value in whole[-100:]))
            else:
                file.write_bytes(whole[: int(len(whole) * how)])

    return do


@pytest.mark.parametrize(
    ("name", "how"),
    [*[(name, how) for name in ("images.bin", "index.npy") for how in (0, 0.5, 0.99, "remove")], ("index.npy", "flip")],
)
def test_a_damaged_cache_is_built_again(tmp_path, cache, name, how):
    train, test = hub(tmp_path / "hub", 80)
    load(f"parquet:{tmp_path / 'hub'}")
    damage(name, how)(cache)
    data = load(f"parquet:{tmp_path / 'hub'}")
    assert same(pixels_of(data.train), train)
    assert same(pixels_of(data.test), test)


@pytest.mark.parametrize("how", [0, 0.1, 0.99, "remove", "flip"])
@pytest.mark.parametrize("name", ["*.npy", "*.crc"])
def test_a_damaged_cache_of_small_images_is_built_again(tmp_path, cache, name, how):
    train, _ = hub(tmp_path / "hub", 8)
    load(f"parquet:{tmp_path / 'hub'}")
    damage(name, how)(cache)
    assert same(pixels_of(load(f"parquet:{tmp_path / 'hub'}").train), train)


@pytest.mark.parametrize("side", [8, 80])
def test_a_changed_file_is_read_again(tmp_path, side):
    hub(tmp_path / "hub", side)
    load(f"parquet:{tmp_path / 'hub'}")
    other = noise(12, side, seed=8)
    write_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet", other, LABELS)
    assert same(pixels_of(load(f"parquet:{tmp_path / 'hub'}").train), other)


@pytest.mark.parametrize("side", [8, 80])
def test_the_column_is_part_of_what_is_cached(tmp_path, side):
    left, right = noise(12, side), noise(12, side, seed=5)
    other = {"right": pa.array([encode(picture) for picture in right])}
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}.parquet", left, LABELS, image="left", layout="plain", extra=other)
    assert same(pixels_of(load(f"parquet:{tmp_path}", image_column="left").train), left)
    assert same(pixels_of(load(f"parquet:{tmp_path}", image_column="right").train), right)


@pytest.mark.parametrize("side", [8, 80])
def test_two_files_of_one_size_and_time_are_two_files(tmp_path, side):
    """Archives unpack with equal times, and files without compression have equal sizes."""
    pictures = {}
    for number, name in enumerate(("first", "second")):
        pictures[name] = noise(12, side, seed=number)
        for split in ("train", "test"):
            path = tmp_path / name / f"{split}.parquet"
            write_parquet(path, [encode(picture, "BMP") for picture in pictures[name]], LABELS)
            os.utime(path, (1e9, 1e9))
    assert same(pixels_of(load(f"parquet:{tmp_path / 'first'}").train), pictures["first"])
    assert same(pixels_of(load(f"parquet:{tmp_path / 'second'}").train), pictures["second"])


def test_a_cache_that_cannot_be_written(tmp_path, cache):
    cache.write_text("a file where the folder should be")
    train, _ = hub(tmp_path / "hub", 8)
    assert same(pixels_of(load(f"parquet:{tmp_path / 'hub'}").train), train)


@pytest.mark.parametrize("kind", ["bool", "dictionary", "float"])
def test_other_types_of_labels(tmp_path, kind):
    values = {"bool": [k % 2 == 1 for k in range(12)], "float": [float(k % 2) for k in range(12)],
              "dictionary": ["owl" if k % 2 else "ant" for k in range(12)]}[kind]  # fmt: skip
    column = pa.array(values).dictionary_encode() if kind == "dictionary" else pa.array(values)
    write_parquet(tmp_path / "a.parquet", noise(12), column)
    if kind == "float":
        with pytest.raises(ValueError, match=r"no label column 'label' \(it is of type double\)"):
            load(f"parquet:{tmp_path / 'a.parquet'}", label_column="label")
    else:
        data = load(f"parquet:{tmp_path / 'a.parquet'}")
        assert data.train.names == (("ant", "owl") if kind == "dictionary" else ("0", "1"))
        assert sorted([*data.train.labels, *data.test.labels]) == [0] * 6 + [1] * 6
