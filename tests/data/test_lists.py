"""Lists of 'path label' in every dialect, checked against the pairs they were written from."""

import time

import numpy as np
import pytest
from data.builders import encode, noise, pixels_of, write_image

from spectail.data import load
from spectail.data.sets.lists import read_list


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def parsed(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    paths, labels = read_list(path)
    return list(paths), labels.tolist()


PAIRS = (["a/1.jpg", "a/2.jpg", "b c/3 4.jpg"], [0, 0, 1])


@pytest.mark.parametrize(
    "content",
    [
        "a/1.jpg 0\na/2.jpg 0\nb c/3 4.jpg 1\n",
        "a/1.jpg\t0\na/2.jpg\t0\nb c/3 4.jpg\t1\n",
        "a/1.jpg,0\na/2.jpg,0\nb c/3 4.jpg,1\n",
        "a/1.jpg, 0\na/2.jpg, 0\nb c/3 4.jpg, 1\n",
        "a/1.jpg 0\r\na/2.jpg 0\r\nb c/3 4.jpg 1\r\n",
        "a/1.jpg 0\na/2.jpg 0\nb c/3 4.jpg 1",
        "\ufeffa/1.jpg 0\na/2.jpg 0\nb c/3 4.jpg 1\n",
        "\ufeffpath,label\r\na/1.jpg,0\r\na/2.jpg,0\r\nb c/3 4.jpg,1\r\n",
        "path label\na/1.jpg 0\na/2.jpg 0\nb c/3 4.jpg 1\n",
        'file,class\n"a/1.jpg",0\n"a/2.jpg","0"\n"b c/3 4.jpg",1\n',
        "# made by hand\n\na/1.jpg 0\n   \n# more\na/2.jpg   0  \nb c/3 4.jpg 1\n\n",
        "# made by hand\npath,label\na/1.jpg,0\na/2.jpg,0\nb c/3 4.jpg,1\n",
        "a/1.jpg    0\na/2.jpg \t 0\nb c/3 4.jpg 1\n",
    ],
    ids=["space", "tab", "comma", "comma-space", "crlf", "no-newline", "bom", "bom-crlf-header", "header", "quotes",
         "comments", "comment-then-header", "many-spaces"],
)  # fmt: skip
def test_dialects(tmp_path, content):
    assert parsed(tmp_path, content) == PAIRS


@pytest.mark.parametrize(
    ("line", "path", "label"),
    [
        ("a,b.jpg 3", "a,b.jpg", 3),
        ("a,b.jpg\t3", "a,b.jpg", 3),
        ("a,b.jpg,3", "a,b.jpg", 3),
        ('"a, b.jpg",3', "a, b.jpg", 3),
        ("a 1 2 3.jpg 3", "a 1 2 3.jpg", 3),
        ("ünï/köd.jpg 3", "ünï/köd.jpg", 3),
        ("日本.jpg\t3", "日本.jpg", 3),
        ("a/#1.jpg 3", "a/#1.jpg", 3),
        ("plain 3", "plain", 3),
    ],
)
def test_paths(tmp_path, line, path, label):
    assert parsed(tmp_path, line + "\n") == ([path], [label])


@pytest.mark.parametrize(
    ("content", "pairs"),
    [
        ("a.jpg cat\nb.jpg dog\n", (["a.jpg", "b.jpg"], ["cat", "dog"])),
        ("a.jpg\tgolden retriever\nb c.jpg\tdog\n", (["a.jpg", "b c.jpg"], ["golden retriever", "dog"])),
        ("path,label\na.jpg,golden retriever\nb.jpg,dog\n", (["a.jpg", "b.jpg"], ["golden retriever", "dog"])),
        ('"a.jpg","golden retriever"\n"b c.jpg","dog"\n', (["a.jpg", "b c.jpg"], ["golden retriever", "dog"])),
        ("a.jpg орёл\nb.jpg кот\n", (["a.jpg", "b.jpg"], ["орёл", "кот"])),
        ("b.jpg кот\na.jpg орёл\n", (["b.jpg", "a.jpg"], ["кот", "орёл"])),
        ("\ufeffa.jpg 猿\nb.jpg 犬\n", (["a.jpg", "b.jpg"], ["猿", "犬"])),
    ],
    ids=["space", "tab-two-words", "comma-two-words", "quotes-two-words", "last-byte-bb", "second-line", "bom-chinese"],
)
def test_class_names(tmp_path, content, pairs):
    assert parsed(tmp_path, content) == pairs


def test_labels_are_int64(tmp_path):
    (tmp_path / "a.txt").write_text("a.jpg 1\nb.jpg 0\n")
    assert read_list(tmp_path / "a.txt")[1].dtype == np.int64


@pytest.mark.parametrize(
    ("content", "number"),
    [
        ("a.jpg 0\nonlyonefield\n", 2),
        ("# x\n\na.jpg 0\n\n7\n", 5),
        ("a.jpg 0\nb.jpg 1\n,3\n", 3),
        ("a.jpg 0\nb.jpg 99999999999999999999\n", 2),
        (b"a.jpg cat\nb.jpg \xe4\n", 2),
        (b"a.jpg 0\nb\x00.jpg 0\nb.jpg 1\nc.jpg 1\n", 2),
    ],
    ids=["one-field", "number-only", "no-path", "too-large", "name-not-utf8", "nul"],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, content, number):
    (tmp_path / "a.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"a\.txt line {number}\b"):
        load(f"list:{tmp_path / 'a.txt'}")


def test_a_path_that_is_not_utf8_is_named_or_looked_for(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a.jpg 0\n\xff\xfe.jpg 0\nb.jpg 1\nc.jpg 1\n")
    with pytest.raises(ValueError, match=r"a\.txt line 2|does not exist"):
        load(f"list:{tmp_path / 'a.txt'}")


def test_utf16_is_an_error_in_words(tmp_path):
    """What PowerShell's > writes."""
    (tmp_path / "a.txt").write_text("a.jpg 0\nb.jpg 0\nc.jpg 1\nd.jpg 1\n", encoding="utf-16")
    with pytest.raises(ValueError, match=r"a\.txt"):
        load(f"list:{tmp_path / 'a.txt'}")


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing\n", "path label\n"])
def test_empty_lists(tmp_path, content):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ValueError, match=r"a\.txt has no 'path label' line"):
        load(f"list:{tmp_path / 'a.txt'}")


def test_missing_list(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt does not exist"):
        load(f"list:{tmp_path / 'none.txt'}")


# Lists with images.


def pictures(root, count=12, seed=0):
    """``img/<k>.png``; returns the pixels."""
    return [write_image(root / "img" / f"{k}.png", array) for k, array in enumerate(noise(count, seed=seed))]


def lines(numbers, labels, prefix="img/"):
    return "".join(f"{prefix}{k}.png {label}\n" for k, label in zip(numbers, labels, strict=True))


TRAIN, TRAIN_LABELS = [4, 0, 2, 6, 1, 9], [1, 0, 1, 2, 0, 2]
TEST, TEST_LABELS = [3, 5, 7], [2, 0, 1]


def same(found, wanted):
    return len(found) == len(wanted) and all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def check(data, images):
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == (TRAIN_LABELS, TEST_LABELS)
    assert same(pixels_of(data.train), [images[k] for k in TRAIN])
    assert same(pixels_of(data.test), [images[k] for k in TEST])


@pytest.mark.parametrize("word", ["test", "val", "valid", "validation"])
def test_sibling_list(tmp_path, word):
    images = pictures(tmp_path)
    (tmp_path / "birds_train.txt").write_text(lines(TRAIN, TRAIN_LABELS))
    (tmp_path / f"birds_{word}.txt").write_text(lines(TEST, TEST_LABELS))
    data = load(f"list:{tmp_path / 'birds_train.txt'}")
    check(data, images)
    assert any(f"birds_{word}.txt" in note for note in data.manifest.notes)
    assert set(data.manifest.files) == {"birds_train.txt", f"birds_{word}.txt"}


def test_given_test_list_wins(tmp_path):
    images = pictures(tmp_path)
    (tmp_path / "train.txt").write_text(lines(TRAIN, TRAIN_LABELS))
    (tmp_path / "test.txt").write_text(lines([8], [0]))
    (tmp_path / "other.txt").write_text(lines(TEST, TEST_LABELS))
    check(load(f"list:{tmp_path / 'train.txt'}", test_list=tmp_path / "other.txt"), images)
    with pytest.raises(FileNotFoundError, match=r"--test-list .*none\.txt does not exist"):
        load(f"list:{tmp_path / 'train.txt'}", test_list=tmp_path / "none.txt")


def test_root_apart_from_the_list(tmp_path):
    images = pictures(tmp_path / "there")
    (tmp_path / "train.txt").write_text(lines(TRAIN, TRAIN_LABELS))
    (tmp_path / "test.txt").write_text(lines(TEST, TEST_LABELS))
    check(load(f"list:{tmp_path / 'train.txt'}", root=tmp_path / "there"), images)
    check(load(f"list:{tmp_path / 'train.txt'}", root=str(tmp_path / "there")), images)


def test_held_out_test_set(tmp_path):
    pictures(tmp_path)
    (tmp_path / "all.txt").write_text(lines(range(12), [0] * 8 + [1] * 4))
    data = load(f"list:{tmp_path / 'all.txt'}", test_fraction=0.25)
    assert (data.train.counts.tolist(), data.test.counts.tolist()) == ([6, 3], [2, 1])
    names = [part.images.name(i) for part in (data.train, data.test) for i in range(len(part))]
    assert sorted(names) == sorted(f"img/{k}.png" for k in range(12))


def test_missing_files_are_named(tmp_path):
    pictures(tmp_path)
    (tmp_path / "train.txt").write_text(lines([*TRAIN, 50], [*TRAIN_LABELS, 0]))
    with pytest.raises(ValueError, match=r"img/50\.png does not exist"):
        load(f"list:{tmp_path / 'train.txt'}", strict=True)
    (tmp_path / "train.txt").write_text(lines([*TRAIN, 50, 51, 52, 53], [*TRAIN_LABELS, 0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"of \d+ images cannot be read: img/5\d\.png does not exist"):
        load(f"list:{tmp_path / 'train.txt'}", strict=True)
    for options in ({}, {"in_memory": "no"}, {"in_memory": "no", "check": "none"}):
        data = load(f"list:{tmp_path / 'train.txt'}", **options)
        assert len(data.train) + len(data.test) == len(TRAIN)
        assert len(data.manifest.left_out()) == 4
        assert data.manifest.left_out()[0].endswith("does not exist below the root")


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "img/../../secret.png", "/etc/passwd", "img\\0.png", "..", "img/./../../x/0.png"],
)
@pytest.mark.parametrize("position", [0, 3])
def test_paths_that_leave_the_root(tmp_path, path, position):
    root = tmp_path / "root"
    pictures(root)
    (tmp_path / "secret.png").write_bytes(encode(noise(1)[0]))
    content = lines(TRAIN, TRAIN_LABELS).splitlines(keepends=True)
    content.insert(position, f"{path} 0\n")
    (root / "train.txt").write_text("".join(content))
    message = "has a backslash" if "\\" in path else "leads out of the root"
    with pytest.raises(ValueError, match=message) as error:
        load(f"list:{root / 'train.txt'}")
    assert repr(path) in str(error.value)


def test_a_neighbour_whose_name_begins_like_the_root_is_outside(tmp_path):
    pictures(tmp_path / "root")
    pictures(tmp_path / "root2")
    (tmp_path / "train.txt").write_text(lines(TRAIN, TRAIN_LABELS) + "../root2/img/0.png 0\n")
    with pytest.raises(ValueError, match="leads out of the root"):
        load(f"list:{tmp_path / 'train.txt'}", root=tmp_path / "root")


def test_the_line_of_a_backslash_counts_header_and_comments(tmp_path):
    pictures(tmp_path)
    (tmp_path / "train.txt").write_text("path label\n# note\n\nimg/0.png 0\nimg\\1.png 1\n")
    with pytest.raises(ValueError, match="line 5"):
        load(f"list:{tmp_path / 'train.txt'}")


def test_inside_paths_of_every_form(tmp_path):
    images = pictures(tmp_path / "root")
    root = tmp_path / "root"
    forms = [f"{root}/img/4.png", "img/../img/0.png", "./img/2.png", "img/6.png", f"{root}/img/1.png", "img//9.png"]
    (root / "train.txt").write_text("".join(f"{a} {b}\n" for a, b in zip(forms, TRAIN_LABELS, strict=True)))
    (root / "test.txt").write_text(lines(TEST, TEST_LABELS))
    check(load(f"list:{root / 'train.txt'}"), images)
    for options in ({"in_memory": "no"}, {"strict": True}):
        check(load(f"list:{root / 'train.txt'}", **options), images)


def test_gaps(tmp_path):
    images = pictures(tmp_path)
    wide = {0: 2, 1: 5, 2: 40}
    (tmp_path / "train.txt").write_text(lines(TRAIN, [wide[label] for label in TRAIN_LABELS]))
    (tmp_path / "test.txt").write_text(lines(TEST, [wide[label] for label in TEST_LABELS]))
    with pytest.raises(ValueError, match=r"0\.\.40 without gaps; 38 have no training image: 0, 1, 3, 4, 6, \.\.\."):
        load(f"list:{tmp_path / 'train.txt'}")
    data = load(f"list:{tmp_path / 'train.txt'}", remap_labels=True)
    check(data, images)
    assert data.train.names == ("2", "5", "40")


@pytest.mark.parametrize("far", [10**6, 10**15])
def test_labels_far_apart_are_gaps_too(tmp_path, far):
    """Database ids as labels: renumbering must not need memory for the numbers between."""
    images = pictures(tmp_path)
    wide = {0: 2, 1: 5, 2: far}
    (tmp_path / "train.txt").write_text(lines(TRAIN, [wide[label] for label in TRAIN_LABELS]))
    (tmp_path / "test.txt").write_text(lines(TEST, [wide[label] for label in TEST_LABELS]))
    check(load(f"list:{tmp_path / 'train.txt'}", remap_labels=True), images)
    with pytest.raises(ValueError, match="without gaps"):
        load(f"list:{tmp_path / 'train.txt'}")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("012012", "013", "class 3 occurs in test and not in train"),
        (["-1", "0", "1", "0", "1", "0"], "011", "labels must be 0 or more; found -1"),
        (["a", "b", "a", "b", "a", "b"], "aac", "class 'c' occurs in test and not in train"),
        ("010101", ["a", "b", "0"], "occurs in test and not in train"),
        (["a", "1", "1", "a", "a", "0"], "101", None),
    ],
)
def test_labels_of_train_and_test(tmp_path, train, test, message):
    pictures(tmp_path)
    (tmp_path / "train.txt").write_text(lines(TRAIN, train))
    (tmp_path / "test.txt").write_text(lines(TEST, test))
    if message is None:  # names in train, and those of them in test that look like numbers
        data = load(f"list:{tmp_path / 'train.txt'}")
        assert data.train.names == ("0", "1", "a")
        assert data.test.labels.tolist() == [1, 0, 1]
    else:
        with pytest.raises(ValueError, match=message):
            load(f"list:{tmp_path / 'train.txt'}")


def test_names_are_numbered_in_sorted_order(tmp_path):
    pictures(tmp_path)
    words = {0: "owl", 1: "ant", 2: "bee"}
    (tmp_path / "train.txt").write_text(lines(TRAIN, [words[label] for label in TRAIN_LABELS]))
    (tmp_path / "test.txt").write_text(lines(TEST, [words[label] for label in TEST_LABELS]))
    data = load(f"list:{tmp_path / 'train.txt'}")
    assert data.train.names == ("ant", "bee", "owl")
    assert data.train.labels.tolist() == [{0: 2, 1: 0, 2: 1}[label] for label in TRAIN_LABELS]


def test_one_class_is_refused_in_words(tmp_path):
    pictures(tmp_path)
    (tmp_path / "train.txt").write_text(lines(TRAIN, [0] * 6))
    with pytest.raises(ValueError, match="has one class, .* needs two or more"):
        load(f"list:{tmp_path / 'train.txt'}")


def test_the_size_of_inaturalist(tmp_path):
    labels = np.random.default_rng(0).integers(0, 8142, 437_513)
    labels[:8142] = np.arange(8142)
    content = "".join(
        f"train_val2018/Plantae/{label}/{number:032x}.jpg {label}\n" for number, label in enumerate(labels.tolist())
    )
    (tmp_path / "train.txt").write_text(content)
    start = time.perf_counter()
    paths, found = read_list(tmp_path / "train.txt")
    assert time.perf_counter() - start < 30  # the benchmark has the real limit; machines may be busy
    assert found.dtype == np.int64
    assert np.array_equal(found, labels)
    assert len(paths) == 437_513
    for number in (0, 1, 300_000, 437_512):
        assert paths[number] == f"train_val2018/Plantae/{labels[number]}/{number:032x}.jpg"


def test_one_slip_among_numbers_is_not_a_class_name(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{k}.png {k % 2}\n" for k in range(30)) + "x.png l2\n")
    with pytest.raises(ValueError, match="the labels are numbers except 'l2'"):
        load(f"list:{tmp_path / 'a.txt'}")


def test_a_folder_is_no_list(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder; expected a file"):
        load(f"list:{tmp_path}")


@pytest.mark.parametrize("header", ["path,label", "image,label", "file,class", "Image, Label", '"file","class_name"'])
@pytest.mark.parametrize("names", [["0", "1", "2"], ["ant", "great white shark", "zebra"]])
def test_a_csv_file_with_a_header(tmp_path, header, names):
    images = pictures(tmp_path)
    for name, rows, labels in (("train.csv", TRAIN, TRAIN_LABELS), ("test.csv", TEST, TEST_LABELS)):
        lines_below = [f"img/{row}.png,{names[label]}" for row, label in zip(rows, labels, strict=True)]
        (tmp_path / name).write_text("\n".join([header, *lines_below]))
    data = load(str(tmp_path / "train.csv"))
    assert data.train.names == tuple(names)
    check(data, images)
