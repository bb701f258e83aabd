"""Image folders, and the benchmarks that come as trees of files: what is read is compared with what was written."""

import json
import os
import shutil

import numpy as np
import pytest
from data.builders import class_folders, noise, pixels_of, split_folders, write_image
from PIL import Image

from spectail.data import DataConfig, load
from spectail.data.sets import imagenet_lt, inat2018, tiny_imagenet


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def same(found, wanted):
    wanted = list(wanted)
    return len(found) == len(wanted) and all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def names_of(data):
    return [data.images.name(index) for index in range(len(data))]


# folder:PATH


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Training", "TEST"), ("train", "testing")])
def test_train_and_test(tmp_path, train, test):
    wanted = class_folders(tmp_path / train, {"ant": 3, "bee": 2})
    tested = class_folders(tmp_path / test, {"ant": 1, "bee": 2}, seed=1)
    data = load(f"folder:{tmp_path}")
    assert data.train.names == ("ant", "bee")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 1])
    assert same(pixels_of(data.train), wanted.values())
    assert same(pixels_of(data.test), tested.values())
    assert names_of(data.train) == list(wanted)
    assert data.val is None


@pytest.mark.parametrize("word", ["val", "valid", "validation"])
def test_val_serves_as_test_and_says_so(tmp_path, word):
    class_folders(tmp_path / "train", {"ant": 3, "bee": 2})
    tested = class_folders(tmp_path / word, {"ant": 1, "bee": 2}, seed=1)
    data = load(f"folder:{tmp_path}")
    assert same(pixels_of(data.test), tested.values())
    assert data.val is None
    assert f"the folder {word} is used as test set: there is no test folder" in data.manifest.notes


def test_train_val_test(tmp_path):
    for seed, split in enumerate(("train", "val", "test")):
        class_folders(tmp_path / split, {"ant": 3 + seed, "bee": 2}, seed=seed)
    data = load(f"folder:{tmp_path}")
    assert [part.counts.tolist() for part in (data.train, data.val, data.test)] == [[3, 2], [4, 2], [5, 2]]


def test_only_classes(tmp_path):
    written = class_folders(tmp_path, {"ant": 10, "bee": 5, "cow": 2, "dog": 1})
    data = load(f"folder:{tmp_path}", test_fraction=0.2)
    assert (data.train.counts.tolist(), data.test.counts.tolist()) == ([8, 4, 1, 1], [2, 1, 1, 0])
    assert sorted(names_of(data.train) + names_of(data.test)) == sorted(written)
    again = load(f"folder:{tmp_path}", test_fraction=0.2)
    other = load(f"folder:{tmp_path}", test_fraction=0.2, data_seed=1)
    assert names_of(again.test) == names_of(data.test)
    assert names_of(other.test) != names_of(data.test)


def test_a_class_may_be_called_train(tmp_path):
    """As in CIFAR-100 and COCO."""
    written = class_folders(tmp_path, {"bus": 4, "car": 4, "train": 4})
    data = load(f"folder:{tmp_path}")
    assert data.train.names == ("bus", "car", "train")
    assert len(data.train) + len(data.test) == len(written)


def test_files_that_count_and_files_that_do_not(tmp_path):
    array = noise(1)[0]
    for name in ("b/x.PNG", "b/deep/er/y.png", "b/Z.png", "a/1.png", "a/10.png", "a/2.png"):
        write_image(tmp_path / "train" / name, array)
        write_image(tmp_path / "test" / name, array)
    write_image(tmp_path / "train/a/photo.JPEG", array, "JPEG")
    for name in ("a/.hidden.png", "a/._1.png", "a/.cache/1.png", ".git/1.png", "b/Thumbs.db", "b/notes.txt", "x.png"):
        (tmp_path / "train" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_bytes(b"no image")
    data = load(f"folder:{tmp_path}", in_memory="no")
    wanted = ["a/1.png", "a/10.png", "a/2.png", "a/photo.JPEG", "b/Z.png", "b/deep/er/y.png", "b/x.PNG"]
    assert names_of(data.train) == wanted  # sorted as text within a class
    assert data.train.names == ("a", "b")


def test_numbers_sort_as_numbers(tmp_path):
    split_folders(tmp_path, {"10": 1, "9": 2, "100": 3, "0": 4}, {"10": 1, "9": 2, "100": 3, "0": 4})
    data = load(f"folder:{tmp_path}")
    assert data.train.names == ("0", "9", "10", "100")
    assert data.train.counts.tolist() == data.test.counts.tolist() == [4, 2, 1, 3]
    class_folders(tmp_path / "train", {"x": 1})
    assert load(f"folder:{tmp_path}").train.names == ("0", "10", "100", "9", "x")


def test_names_that_are_not_utf8(tmp_path):
    """A zip from another system leaves such names."""
    split_folders(tmp_path, {"ant": 3, "bee": 2}, {"ant": 1, "bee": 1})
    old = tmp_path / "train" / "ant" / "000.png"
    os.rename(old, os.fsencode(old.parent) + b"/\xe4.png")
    for in_memory in ("yes", "no"):
        assert load(f"folder:{tmp_path}", in_memory=in_memory).train.counts.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: (root / "train" / "empty").mkdir(), r"class folder .*train/empty has no image"),
        (lambda root: class_folders(root / "test", {"dog": 1}), "class 'dog' is in .*test and not in the training"),
        (lambda root: class_folders(root / "val", {"dog": 1}), "class 'dog' is in .*val and not in the training"),
        (lambda root: shutil.rmtree(root / "train" / "bee"), "class 'bee' is in .*test and not in the training folder"),
        (lambda root: [shutil.rmtree(root / "train" / name) for name in ("ant", "bee")], "train has no class folder"),
        (shutil.rmtree, "does not exist; expected one folder per class"),
    ],
)
def test_bad_folders(tmp_path, make, message):
    split_folders(tmp_path / "data", {"ant": 3, "bee": 2}, {"ant": 1, "bee": 1})
    make(tmp_path / "data")
    with pytest.raises((ValueError, OSError), match=message):
        load(f"folder:{tmp_path / 'data'}", strict=True)


@pytest.mark.parametrize("layout", ["", "train/"])
def test_what_people_leave_in_folders_does_not_matter(tmp_path, layout):
    """Stray files are passed over; class folders without an image are left out and named."""
    root = tmp_path / "photos"
    class_folders(root / layout, {"ant": 6, "bee": 5})
    if layout:
        class_folders(root / "test", {"ant": 1, "bee": 1})
    clean = load(f"folder:{root}")
    assert clean.manifest.checks["left_out"] == []
    for place in (root, root / layout, root / layout / "ant"):
        for name in ("README.txt", ".DS_Store", "Thumbs.db", "._000.png"):
            (place / name).write_text("no image")
    (root / layout / "new arrivals").mkdir()
    (root / layout / "notes").mkdir()
    (root / layout / "notes" / "todo.txt").write_text("sort them")
    (root / layout / ".git").mkdir()
    if layout:
        (root / "test" / "new arrivals").mkdir()
    data = load(f"folder:{root}")
    assert data.manifest.identity == clean.manifest.identity
    told = [f"left out: class {name!r}: its folder has no image" for name in ("new arrivals", "notes")]
    assert data.manifest.left_out() == told
    with pytest.raises(ValueError, match="class folder .*new arrivals has no image .*Add images or remove the folder"):
        load(f"folder:{root}", strict=True)


def test_folders_without_any_image(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="class folder .*ant has no image"):
        load(f"folder:{tmp_path}")


def test_a_class_without_test_images_is_fine(tmp_path):
    split_folders(tmp_path, {"ant": 3, "bee": 2}, {"ant": 1})
    assert load(f"folder:{tmp_path}").test.counts.tolist() == [1, 0]


def test_one_class_is_refused_in_words(tmp_path):
    split_folders(tmp_path, {"ant": 3}, {"ant": 1})
    with pytest.raises(ValueError, match=r"two classes|one class|1 class"):
        load(f"folder:{tmp_path}")


# cutting a folder


def test_imbalance_on_a_balanced_folder(tmp_path):
    split_folders(tmp_path, dict.fromkeys("abcd", 16), dict.fromkeys("abcd", 2))
    data = load(f"folder:{tmp_path}", imbalance=8)
    assert data.counts.tolist() == [16, 8, 4, 2]  # 16 * 8 ** (-i / 3)
    assert data.test.counts.tolist() == [2] * 4
    rule = {"profile": "exponential", "imbalance": 8, "largest": 16, "order": "size", "selection": "ldam", "seed": 0}
    assert data.manifest.rule == rule


def test_imbalance_goes_by_size(tmp_path):
    sizes = {"a": 3, "b": 20, "c": 9, "d": 5}
    split_folders(tmp_path, sizes, dict.fromkeys(sizes, 1))
    data = load(f"folder:{tmp_path}", imbalance=8)
    assert data.counts.tolist() == [2, 19, 9, 4]  # 19 * 8 ** (-i / 3): 19, 9.5, 4.75, 2.4; from 20 the second needs 10
    data = load(f"folder:{tmp_path}", imbalance=8, max_per_class=16)
    assert data.counts.tolist() == [2, 16, 8, 4]


def test_order_by_label(tmp_path):
    sizes = {"a": 8, "b": 20, "c": 9, "d": 5}
    split_folders(tmp_path, sizes, dict.fromkeys(sizes, 1))
    assert load(f"folder:{tmp_path}", imbalance=8, order="label").counts.tolist() == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"imbalance": 100}, r"leaves class \d \('\w'\) with no image: the largest class has only 16\. .*factor of 16"),
        ({"imbalance": 0.5}, r"1 or more; got 0\.5\. Did you mean 2\?"),
        ({"imbalance": float("nan")}, "1 or more; got nan"),
        ({"imbalance": 4, "max_per_class": 50}, r"needs 50 images of class 0 \('a'\), which has 16\. .*--cap"),
        ({"imbalance": 4, "max_per_class": 0}, "must be 1 or more; got 0"),
        ({"imbalance": 4, "max_per_class": -1}, "must be 1 or more; got -1"),
        ({"counts": (1, 2, 3)}, r"--counts must give 4 numbers, one per class; got 3"),
        ({"counts": (1, 2, 3, 17)}, r"17 images of class 3 \('d'\), which has 16"),
        ({"counts": (1, 2, 3, 0)}, r"0 images of class 3 \('d'\); every class needs at least 1"),
    ],
)
def test_impossible_cuts(tmp_path, options, message):
    split_folders(tmp_path, dict.fromkeys("abcd", 16), dict.fromkeys("abcd", 2))
    with pytest.raises(ValueError, match=message):
        load(f"folder:{tmp_path}", **options)


def test_cap(tmp_path):
    split_folders(tmp_path, dict.fromkeys("abcd", 16), dict.fromkeys("abcd", 2))
    data = load(f"folder:{tmp_path}", imbalance=4, max_per_class=40, cap=True)
    assert data.counts.tolist() == [16, 16, 15, 10]  # 40, 25.2, 15.9, 10
    assert (data.manifest.rule["capped"], data.manifest.rule["largest"]) == ([0, 1], 40)


def test_profiles_and_counts(tmp_path):
    split_folders(tmp_path, dict.fromkeys("abcd", 16), dict.fromkeys("abcd", 2))
    assert load(f"folder:{tmp_path}", imbalance=4, profile="step").counts.tolist() == [16, 16, 4, 4]
    assert load(f"folder:{tmp_path}", counts=(1, 9, 16, 2)).counts.tolist() == [1, 9, 16, 2]


def test_grey_palette_and_alpha(tmp_path):
    split_folders(tmp_path, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    folder = tmp_path / "train" / "a"
    Image.new("L", (8, 8), 77).save(folder / "grey.png")
    Image.new("RGBA", (8, 8), (10, 20, 30, 0)).save(folder / "clear.png")
    Image.new("RGBA", (8, 8), (10, 20, 30, 255)).save(folder / "solid.png")
    Image.new("LA", (8, 8), (50, 0)).save(folder / "clear-grey.png")
    Image.new("1", (8, 8), 1).save(folder / "white.png")
    Image.new("CMYK", (8, 8), (0, 0, 0, 0)).save(folder / "white.jpg")
    Image.new("P", (8, 8), 0).save(folder / "palette.gif")
    Image.fromarray(np.full((8, 8), 65535, dtype=np.uint16)).save(folder / "deep.png")
    data = load(f"folder:{tmp_path}")
    found = dict(zip(names_of(data.train), [image[0, 0].tolist() for image in pixels_of(data.train)], strict=True))
    wanted = {"grey.png": 77, "clear.png": 255, "clear-grey.png": 255, "white.png": 255, "deep.png": 255}
    for name, value in wanted.items():
        assert found[f"a/{name}"] == [value] * 3, name
    assert found["a/solid.png"] == [10, 20, 30]
    assert min(found["a/white.jpg"]) > 250


# Tiny-ImageNet


WNIDS = ["n02", "n10", "n01"]  # the order of wnids.txt, which is not the order of the labels


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_imagenet, "CLASSES", 3)
    monkeypatch.setattr(tiny_imagenet, "PER_CLASS", 12)
    monkeypatch.setattr(tiny_imagenet, "TEST_PER_CLASS", 2)
    root = tmp_path / "tiny-imagenet-200"
    for wnid, pictures in zip(WNIDS, noise(36, 64).reshape(3, 12, 64, 64, 3), strict=True):
        for k, array in enumerate(pictures):
            write_image(root / f"train/{wnid}/images/{wnid}_{k}.JPEG", array)
        (root / f"train/{wnid}/{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t9\t9\n")
    lines = []
    for k, array in enumerate(noise(6, 64, seed=1)):
        write_image(root / f"val/images/val_{k}.JPEG", array)
        lines.append(f"val_{k}.JPEG\t{WNIDS[k % 3]}\t0\t32\t44\t62\n")
        write_image(root / f"test/images/test_{k}.JPEG", array)
    (root / "val/val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (root / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tshark\nn10\tmouse, computer\n")
    return root


RULE = {"imbalance": 4, "max_per_class": 12}  # 12, 6, 3
VAL_LABELS = [1, 2, 0, 1, 2, 0]  # n02, n10, n01 among n01, n02, n10


def move(root, below=""):
    for k in range(6):
        place = root / "val" / WNIDS[k % 3] / below
        place.mkdir(parents=True, exist_ok=True)
        (root / f"val/images/val_{k}.JPEG").rename(place / f"val_{k}.JPEG")


@pytest.mark.parametrize("where", ["root", "above"])
def test_tiny_imagenet(tiny, where):
    data = load("tiny-imagenet-lt", root=tiny if where == "root" else tiny.parent, selection="first-n", **RULE)
    assert data.train.names == ("goldfish", "shark", "mouse")
    assert data.counts.tolist() == [12, 6, 3]
    text_order = ["0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"]
    assert names_of(data.train)[:12] == [f"n01/images/n01_{k}.JPEG" for k in text_order]
    assert names_of(data.train)[18:] == [f"n10/images/n10_{k}.JPEG" for k in ("0", "1", "10")]
    assert data.test.labels.tolist() == VAL_LABELS
    assert same(pixels_of(data.test), noise(6, 64, seed=1))


@pytest.mark.parametrize("below", ["", "images"])
def test_tiny_imagenet_with_moved_validation_images(tiny, below):
    before = load("tiny-imagenet-lt", root=tiny, **RULE)
    move(tiny, below)
    after = load("tiny-imagenet-lt", root=tiny, **RULE)
    assert after.manifest.identity == before.manifest.identity
    (tiny / "val/images").rmdir()
    assert load("tiny-imagenet-lt", root=tiny, **RULE).manifest.identity == before.manifest.identity


@pytest.mark.parametrize("below", ["", "images"])
@pytest.mark.parametrize("left", [True, False], ids=["empty images folder left", "removed"])
def test_tiny_imagenet_sorted_without_annotations(tiny, below, left):
    move(tiny, below)
    (tiny / "val/val_annotations.txt").unlink()
    if not left:
        (tiny / "val/images").rmdir()
    data = load("tiny-imagenet-lt", root=tiny, **RULE)
    assert data.test.counts.tolist() == [2, 2, 2]
    pictures = {array.tobytes(): label for array, label in zip(noise(6, 64, seed=1), VAL_LABELS, strict=True)}
    assert [pictures[image.tobytes()] for image in pixels_of(data.test)] == data.test.labels.tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: ((root / "val/n01").mkdir(), shutil.move(root / "val/images/val_2.JPEG", root / "val/n01")),
         "half moved: of 6 annotated images 5 are in val/images, 1 in class folders"),
        (lambda root: (root / "val/val_annotations.txt").unlink(), r"val has no val_annotations\.txt"),
        (lambda root: shutil.rmtree(root / "val"), r"val has no val_annotations\.txt"),
        (lambda root: (root / "train/n10/images/n10_5.JPEG").unlink(), r"\('n10'\) with 11 images"),
        (lambda root: shutil.rmtree(root / "train/n10"), "found 2 classes"),
        (lambda root: shutil.rmtree(root / "train"), "has no folder 'train'"),
        (lambda root: (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t9\t9\n"), "class 'n77'"),
        (lambda root: (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t9\t9\n"), "found 1 in all"),
        (lambda root: (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t9\t9\nval_1"),
         "val_annotations"),
        (lambda root: (root / "val/val_annotations.txt").write_text(""), "val should hold 50|annotations"),
    ],
)  # fmt: skip
def test_bad_tiny_imagenet(tiny, make, message):
    make(tiny)
    with pytest.raises((ValueError, OSError), match=message):
        load("tiny-imagenet-lt", root=tiny, **RULE)


def test_tiny_imagenet_names(tiny):
    (tiny / "words.txt").write_text("n01\tmouse\nn02\tshark\nn10\tmouse, computer\n")
    data = load("tiny-imagenet-lt", root=tiny, **RULE)
    assert data.train.names == ("mouse (n01)", "shark (n02)", "mouse (n10)")
    (tiny / "words.txt").unlink()
    assert load("tiny-imagenet-lt", root=tiny, **RULE).train.names == ("n01", "n02", "n10")


# ImageNet-LT


@pytest.fixture(scope="module")
def official():
    """Lines of lists with the published sizes: 385, 479 and 136 classes, 1,280 to 5 images, 115,846 in all."""
    sizes = [1280] + [233] * 173 + [232] * 211 + [50] * 479 + [10] * 135 + [5]
    assert (len(sizes), sum(sizes)) == (1000, 115_846)
    sizes = np.random.default_rng(0).permutation(sizes)
    wnids = [f"n{1000 + 7 * label:08d}" for label in range(1000)]
    train = [f"train/{w}/{w}_{k}.JPEG {c}" for c, w in enumerate(wnids) for k in range(sizes[c])]
    val = [f"train/{w}/{w}_{k}.JPEG {c}" for c, w in enumerate(wnids) for k in range(2000, 2020)]
    test = [f"val/{w}/ILSVRC2012_val_{c * 50 + k:08d}.JPEG {c}" for c, w in enumerate(wnids) for k in range(50)]
    return {"train": train, "val": val, "test": test, "sizes": sizes.tolist(), "wnids": tuple(wnids)}


def write_lists(folder, lists, end="\n", last="\n"):
    folder.mkdir(exist_ok=True)
    for split in ("train", "val", "test"):
        (folder / f"ImageNet_LT_{split}.txt").write_bytes((end.join(lists[split]) + last).encode())


@pytest.mark.parametrize(("end", "last"), [("\n", "\n"), ("\r\n", "")])
def test_imagenet_lt(tmp_path, official, end, last):
    write_lists(tmp_path / "lists", official, end, last)
    source = imagenet_lt.open_source(DataConfig("imagenet-lt", root=tmp_path, lists=tmp_path / "lists"))
    assert source.train.names == official["wnids"]
    assert source.train.counts.tolist() == official["sizes"]
    assert (len(source.val), len(source.test)) == (20_000, 50_000)
    assert names_of(source.test)[-1] == official["test"][-1].split()[0]
    assert any("differ from the official ones" in note for note in source.notes)  # these lists were made up
    with pytest.raises(
        ValueError, match=r"115,846 of 115,846 images cannot be read: train/n00001000/.* does not exist"
    ):
        load("imagenet-lt", root=tmp_path, lists=tmp_path / "lists", check="none")


@pytest.mark.parametrize("list_form", ["flat", "wnid"])
@pytest.mark.parametrize("tree_form", ["flat", "wnid"])
def test_imagenet_lt_validation_folders(tmp_path, official, list_form, tree_form):
    flat = [f"val/{line.split('/')[2]}" for line in official["test"]]
    write_lists(tmp_path, official | {"test": flat if list_form == "flat" else official["test"]})
    tree = [line.split()[0] for line in (flat if tree_form == "flat" else official["test"])]
    (tmp_path / tree[0]).parent.mkdir(parents=True)
    (tmp_path / tree[0]).touch()
    source = imagenet_lt.open_source(DataConfig("imagenet-lt", root=tmp_path))
    assert names_of(source.test) == tree
    assert source.test.counts.tolist() == [50] * 1000


def change(lists, split, at, line):
    return {split: [*lists[split][:at], *line, *lists[split][at + 1 :]]}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda x: change(x, "train", 5, []), r"train\.txt should have 115,846 lines, found 115,845"),
        (lambda x: change(x, "test", 5, []), r"test\.txt should have 50,000 lines, found 49,999"),
        (
            lambda x: {"train": [f"train/x/{k}.JPEG {k % 1000}" for k in range(115_846)]},
            "found 1,000 classes of 116 to",
        ),
        (lambda x: change(x, "val", 5, [x["train"][0]]), "is in both the train and the val list"),
        (lambda x: change(x, "val", 5, ["../x.JPEG 0"]), "leads out of the root"),
        (
            lambda x: change(x, "val", 5, [x["val"][5].replace(" 0", " 1")]),
            "ImageNet_LT_val",
        ),  # 19 and 21 instead of 20 and 20
        (lambda x: change(x, "test", 49_999, [x["test"][49_999].replace(" 999", " 1000")]), r"ImageNet_LT_test"),
        (lambda x: change(x, "test", 5, [x["test"][5].replace(" 0", " zero")]), "zero|number"),
    ],
)
def test_bad_imagenet_lt(tmp_path, official, edit, message):
    write_lists(tmp_path, official | edit(official))
    with pytest.raises(ValueError, match=message):
        load("imagenet-lt", root=tmp_path)


def test_imagenet_lt_without_lists(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lacks ImageNet_LT_train\.txt, .*--lists.*imagenet-lt-exp"):
        load("imagenet-lt", root=tmp_path)


def test_imagenet_lt_exp(tmp_path):
    sizes = {"n01": 10, "n02": 4, "n03": 10, "n04": 10}
    class_folders(tmp_path / "train", sizes, form="JPEG", suffix=".JPEG")
    class_folders(tmp_path / "val", dict.fromkeys(sizes, 2), seed=1, form="JPEG", suffix=".JPEG")
    data = load("imagenet-lt-exp", root=tmp_path, imbalance=8, max_per_class=16)
    assert data.counts.tolist() == [10, 4, 4, 2]  # 16, 8, 4, 2 where there are as many
    assert data.manifest.rule["capped"] == [0, 1]
    assert data.test.counts.tolist() == [2] * 4
    shutil.rmtree(tmp_path / "val")
    with pytest.raises(FileNotFoundError, match="has no folder 'val'"):
        load("imagenet-lt-exp", root=tmp_path)


# iNaturalist 2018


def inat_json(pairs, order):
    images = [{"id": 100 + k, "file_name": path, "width": 8, "height": 8} for k, (path, _) in enumerate(pairs)]
    marks = [{"id": k, "image_id": 100 + k, "category_id": label} for k, (_, label) in enumerate(pairs)]
    return json.dumps({"images": images, "annotations": [marks[k] for k in order], "categories": []})


@pytest.fixture
def inat(tmp_path, monkeypatch):
    for name, value in {"CLASSES": 3, "TRAIN": 7, "VAL": 6}.items():
        monkeypatch.setattr(inat2018, name, value)
    pairs = [
        (f"train_val2018/Aves/{label}/{k}.png", label) for k, label in enumerate([2, 0, 1, 0, 0, 1, 2] + [0, 1, 2] * 2)
    ]
    for (path, _), array in zip(pairs, noise(13), strict=True):
        write_image(tmp_path / path, array)
    return tmp_path, pairs[:7], pairs[7:]


@pytest.mark.parametrize("form", ["lists", "json"])
@pytest.mark.parametrize("apart", [True, False])
def test_inat2018(inat, form, apart):
    root, train, val = inat
    folder = root / "lists" if apart else root
    folder.mkdir(exist_ok=True)
    for split, pairs in (("train", train), ("val", val)):
        if form == "lists":
            (folder / f"iNaturalist18_{split}.txt").write_text("".join(f"{path} {label}\n" for path, label in pairs))
        else:
            order = np.random.default_rng(3).permutation(len(pairs))
            (folder / f"{split}2018.json").write_text(inat_json(pairs, order))
    data = load("inat2018", root=root, **({"lists": folder} if apart else {}))
    assert list(zip(names_of(data.train), data.train.labels.tolist(), strict=True)) == train
    assert list(zip(names_of(data.test), data.test.labels.tolist(), strict=True)) == val
    assert same(pixels_of(data.train), noise(13)[:7])
    assert data.train.names == ("0", "1", "2")
    entries = [{"id": k, "name": name} for k, name in enumerate(("Parus", "Corvus", "Bubo"))]
    (folder / "categories.json").write_text(json.dumps(entries[::-1]))
    assert load("inat2018", root=root, lists=folder).train.names == ("Parus", "Corvus", "Bubo")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train2018.json", "{", r"train2018\.json should hold images and annotations"),
        ("train2018.json", "[]", r"train2018\.json should hold images and annotations"),
        ("train2018.json", '{"images": [], "annotations": []}', r"train2018\.json"),
        ("train2018.json", '{"images": [{"id": 1, "file_name": "x.png"}], "annotations": []}', "x.png has no annot"),
        ("val2018.json", inat_json([("a", 0), ("b", 1)], [1, 0]), "should name 6 images of 3 classes; found 2 of 2"),
        ("iNaturalist18_train.txt", "a.png 0\n" * 6 + "b.png 1\n", "should name 7 images of 3 classes; found 7 of 2"),
        ("iNaturalist18_train.txt", "a.png 0\nb.png bird\n", r"iNaturalist18_train\.txt"),
        ("iNaturalist18_train.txt", None, "has neither"),
    ],
)  # fmt: skip
def test_bad_inat2018(inat, name, content, message):
    root, train, val = inat
    for split, pairs in (("train", train), ("val", val)):
        (root / f"iNaturalist18_{split}.txt").write_text("".join(f"{path} {label}\n" for path, label in pairs))
        (root / f"{split}2018.json").write_text(inat_json(pairs, range(len(pairs))))
    if name.endswith("json") or content is None:
        (root / "iNaturalist18_train.txt").unlink()
    if content is None:
        (root / "val2018.json").unlink()
    else:
        (root / name).write_text(content)
    with pytest.raises((ValueError, OSError), match=message):
        load("inat2018", root=root)
