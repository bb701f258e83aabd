"""load() as a whole: options, broken images, duplicates, held-out images, and the manifest that proves what it gave."""

import contextlib
import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
from data.builders import class_folders, encode, folder_of_three, noise, pixels_of, write_image

from spectail.data import DataConfig, Manifest, checks, load
from spectail.data.images import ArrayImages, FileImages


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache") / "spectail"
    monkeypatch.setenv("SPECTAIL_CACHE", str(folder))
    return folder


@pytest.fixture
def three(tmp_path):
    """A folder of ten ants, six bees and three cows, two of each for testing."""
    folder_of_three(tmp_path / "three")
    return tmp_path / "three"


def names_of(data):
    return [data.images.name(index) for index in range(len(data))]


# options


def test_a_config_and_keywords_mean_the_same(three):
    by_name = load(f"folder:{three}", imbalance=2, data_seed=3)
    by_config = load(DataConfig(f"folder:{three}", imbalance=2), data_seed=3)
    assert by_name.manifest.identity == by_config.manifest.identity
    assert by_name.counts.tolist() == [7, 4, 3]  # 7 * 2 ** (-i / 2): 7, 4.9, 3.5; from 8 the cows would need 4


def test_unknown_options_and_names(three):
    with pytest.raises(TypeError, match="nonsense"):
        load(f"folder:{three}", nonsense=1)
    with pytest.raises(ValueError, match="unknown data set 'cifar100': .* did you mean 'cifar100-lt'"):
        load("cifar100")
    with pytest.raises(ValueError, match="folder: needs a path: write folder:PATH"):
        load("folder:")
    with pytest.raises(ValueError, match="unknown data set 'qqqq': .*; choose from cifar10-lt, .* A path may be"):
        load("qqqq")


@pytest.mark.parametrize(
    ("dataset", "option", "value"),
    [
        ("folder:x", "root", "."),
        ("folder:x", "lists", "."),
        ("folder:x", "num_classes", 3),
        ("folder:x", "test_list", "a.txt"),
        ("folder:x", "remap_labels", True),
        ("folder:x", "image_column", "image"),
        ("folder:x", "label_column", "label"),
        ("list:x", "lists", "."),
        ("list:x", "image_column", "image"),
        ("parquet:x", "root", "."),
        ("parquet:x", "test_list", "a.txt"),
        ("parquet:x", "num_classes", 3),
        ("cifar10-lt", "test_fraction", 0.5),
        ("cifar100-lt", "remap_labels", True),
        ("tiny-imagenet-lt", "lists", "."),
        ("imagenet-lt", "test_fraction", 0.5),
        ("imagenet-lt-exp", "lists", "."),
        ("inat2018", "num_classes", 3),
    ],
)
def test_options_that_mean_nothing_are_refused(dataset, option, value):
    flag = f"--{option.replace('_', '-')}"
    with pytest.raises(ValueError, match=f"{flag} means nothing for {dataset}. Leave it out"):
        load(dataset, **{option: value})


@pytest.mark.parametrize("dataset", ["imagenet-lt", "inat2018"])
@pytest.mark.parametrize(
    "options", [{"imbalance": 10}, {"counts": (1, 2)}, {"profile": "step"}, {"order": "size"}, {"cap": True},
                {"max_per_class": 9}, {"selection": "first-n"}]
)  # fmt: skip
def test_sets_defined_by_lists_cannot_be_cut(dataset, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"defined by its lists and cannot be cut with --{name.replace('_', '-')}"):
        load(dataset, root=None, **options)


@pytest.mark.parametrize("options", [{"profile": "step"}, {"order": "label"}, {"cap": True}, {"selection": "first-n"},
                                     {"max_per_class": 5}])  # fmt: skip
def test_a_cut_needs_an_imbalance(three, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} needs --imbalance"):
        load(f"folder:{three}", **options)


@pytest.mark.parametrize("options", [{"imbalance": 2}, {"profile": "step"}, {"order": "label"}, {"cap": True}])
def test_counts_exclude_other_rules(three, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"--counts and --{name} exclude each other"):
        load(f"folder:{three}", counts=(1, 1, 1), **options)


def test_test_fraction_is_not_ignored_when_there_is_a_test_set(three):
    with pytest.raises(ValueError, match="test-fraction"):
        load(f"folder:{three}", test_fraction=0.5)


def test_a_validation_folder_is_not_replaced_silently(three):
    class_folders(three / "val", {"ant": 1, "bee": 1, "cow": 1}, seed=5)
    try:
        data = load(f"folder:{three}", val_per_class=2)
    except ValueError as error:
        message = str(error)
    else:
        message = "; ".join(data.manifest.notes)
    assert "val-per-class" in message or "folder val" in message


@pytest.mark.parametrize("groups", ["count", "oltr", "if100", "thirds"])
def test_groups(three, groups):
    found = load(f"folder:{three}", groups=groups).manifest.groups
    sizes = {"count": [0, 0, 3], "oltr": [0, 0, 3], "if100": [0, 0, 3], "thirds": [1, 1, 1]}[groups]
    assert (found["convention"], list(found["classes"].values())) == (groups, sizes)
    if groups == "thirds":
        assert found["images"] == {"head": 10, "medium": 6, "tail": 3}


def test_paths_may_be_text(tmp_path, three):
    lines = [f"three/train/{name}/{k:03d}.png {label}" for label, name in enumerate(("ant", "bee")) for k in range(4)]
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "one.txt").write_text("\n".join(lines))
    (tmp_path / "lists" / "two.txt").write_text("\n".join(lines))
    data = load(f"list:{tmp_path}/lists/one.txt", root=str(tmp_path), test_list=str(tmp_path / "lists" / "two.txt"))
    assert data.counts.tolist() == [4, 4]


def test_statistics_are_those_of_the_pixels(three):
    data = load(f"folder:{three}")
    pixels = np.stack(pixels_of(data.train)).reshape(-1, 3) / 255
    found = data.manifest.statistics
    assert np.allclose(found["mean"], pixels.mean(0), atol=1e-4)
    assert np.allclose(found["std"], pixels.std(0), atol=1e-4)
    assert (found["largest"], found["smallest"], found["imbalance_factor"]) == (10, 3, 3.3333)


# memory


@pytest.mark.parametrize(
    ("side", "in_memory", "kind"),
    [(64, "auto", ArrayImages), (65, "auto", FileImages), (8, "no", FileImages), (80, "yes", ArrayImages)],
)
def test_small_images_are_held_in_memory(tmp_path, side, in_memory, kind):
    train, test = folder_of_three(tmp_path, side)
    data = load(f"folder:{tmp_path}", in_memory=in_memory)
    assert type(data.train.images) is type(data.test.images) is kind
    assert np.array_equal(pixels_of(data.train), list(train.values()))
    assert np.array_equal(pixels_of(data.test), list(test.values()))


def test_unequal_sizes(three):
    write_image(three / "train/bee/000.png", noise(1, 9)[0])
    with pytest.raises(ValueError, match=r"needs images of one size; bee/000\.png is 9 x 9, others are 8 x 8"):
        load(f"folder:{three}", in_memory="yes")
    data = load(f"folder:{three}")
    assert isinstance(data.train.images, FileImages)
    assert pixels_of(data.train)[10].shape == (9, 9, 3)


# broken images


BROKEN = {
    "empty": b"",
    "text": b"this is no image",
    "truncated": encode(noise(1, 32)[0])[:600],
    "flipped": encode(noise(1, 32)[0])[:300] + b"\xff" * 50 + encode(noise(1, 32)[0])[350:],
    "html": b"<!DOCTYPE html><html>404</html>",
    "bm": b"BM and then nothing of a bitmap at all",
    "jpeg": encode(noise(1, 32)[0], "JPEG")[:200],
    "gif": encode(noise(1, 32)[0], "GIF")[:40],
    "webp": encode(noise(1, 32)[0], "WEBP")[:60],
    "tiff": encode(noise(1, 32)[0], "TIFF")[:50],
}


@pytest.mark.filterwarnings("ignore:Truncated File Read")  # of Pillow, about the TIFF
@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
@pytest.mark.parametrize("in_memory", ["auto", "no"])
def test_a_broken_image_is_named(three, content, in_memory):
    (three / "train/bee/003.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"^bee/003\.png .*\. Replace what is broken, or leave --strict out\.$"):
        load(f"folder:{three}", in_memory=in_memory, strict=True)
    data = load(f"folder:{three}", in_memory=in_memory)
    assert len(data.train) == 18
    (line,) = data.manifest.left_out()
    assert line.startswith("left out: bee/003.png ")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
@pytest.mark.filterwarnings("ignore")
def test_random_damage_never_escapes(form):
    """Whatever is wrong with the bytes, the error is one that names the image."""
    from spectail.data.decoding import BrokenImage, decode

    whole = np.frombuffer(encode(noise(1, 24)[0], form), dtype=np.uint8)
    generator = np.random.default_rng(0)
    for _ in range(300):
        data = whole[: generator.integers(1, len(whole) + 1)].copy()
        places = generator.integers(0, min(len(data), 200), generator.integers(0, 6))
        data[places] = generator.integers(0, 256, len(places))
        with contextlib.suppress(BrokenImage):
            assert decode(data.tobytes()).mode == "RGB"


@pytest.mark.parametrize("in_memory", ["auto", "no"])
def test_several_broken_images(three, in_memory):
    for name in ("ant/001", "bee/003", "bee/004", "cow/000"):
        (three / f"train/{name}.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"4 of 19 images cannot be read: ant/001.png .*; bee/003.png .*; \.\.\."):
        load(f"folder:{three}", in_memory=in_memory, strict=True)
    data = load(f"folder:{three}", in_memory=in_memory)
    assert data.counts.tolist() == [9, 4, 2]
    broken = data.manifest.checks["broken"]
    assert list(broken) == ["train"]
    assert [text.split()[0] for text in broken["train"]] == ["ant/001.png", "bee/003.png", "bee/004.png", "cow/000.png"]
    assert {"ant/001.png", "bee/003.png"}.isdisjoint(names_of(data.train))
    clean = class_folders(three.parent / "again", {"ant": 10, "bee": 6, "cow": 3})
    assert all(np.array_equal(image, clean[name]) for image, name in
               zip(pixels_of(data.train), names_of(data.train), strict=True))  # fmt: skip


@pytest.mark.parametrize("in_memory", ["auto", "no"])
@pytest.mark.parametrize("gone", ["ant", "bee", "cow"])
def test_a_class_of_broken_images_only_is_left_out(three, gone, in_memory):
    """As if its folders were not there, but for what is said."""
    for file in (three / "train" / gone).iterdir():
        file.write_bytes(b"broken")
    data = load(f"folder:{three}", in_memory=in_memory)
    images = {"ant": 10, "bee": 6, "cow": 3}
    assert data.manifest.checks["left_out"] == [
        f"class {gone!r}: none of its {images[gone]} training images can be read"
    ]
    for split in ("train", "test"):
        shutil.rmtree(three / split / gone)
    other = load(f"folder:{three}", in_memory=in_memory)
    assert data.manifest.identity == other.manifest.identity
    assert data.train.names == tuple(name for name in images if name != gone)
    assert names_of(data.test) == names_of(other.test)
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    assert [values.tolist() for values in data.contents.values()] == [
        values.tolist() for values in other.contents.values()
    ]


def test_one_class_that_can_be_read_is_not_enough(three):
    for name in ("bee", "cow"):
        for file in (three / "train" / name).iterdir():
            file.write_bytes(b"broken")
    with pytest.raises(ValueError, match="only the class 'ant' has images that can be read; a classifier needs two"):
        load(f"folder:{three}")


@pytest.mark.parametrize("in_memory", ["auto", "no"])
def test_where_most_is_broken_nothing_is_left_out(three, in_memory):
    for file in [*(three / "train/ant").iterdir(), *(three / "train/bee").iterdir()][1:]:
        file.write_bytes(b"broken")
    with pytest.raises(
        ValueError, match="^15 of 25 images cannot be read: ant/.*; .*; .*; .*Check --root and the files"
    ):
        load(f"folder:{three}", in_memory=in_memory)
    for file in three.rglob("*.png"):
        file.write_bytes(b"broken")
    for strict in (True, False):
        with pytest.raises(ValueError, match="(19 of 19|25 of 25) images cannot be read"):
            load(f"folder:{three}", in_memory=in_memory, strict=strict)


def test_a_test_set_that_cannot_be_read(three):
    for file in (three / "test").rglob("*.png"):
        file.write_bytes(b"broken")
    with pytest.raises(ValueError, match="all images of the test split cannot be read|6 of 6 images cannot be read"):
        load(f"folder:{three}")
    with pytest.raises(ValueError, match="all images of the test split cannot be read: ant/000.png"):
        load(f"folder:{three}", in_memory="no")


def test_what_is_left_out_is_shortened_after_five(three):
    for file in sorted((three / "train/ant").iterdir())[:7]:
        file.write_bytes(b"broken")
    lines = load(f"folder:{three}").manifest.left_out()
    assert len(lines) == 6
    assert [line.split()[2] for line in lines[:5]] == [f"ant/00{k}.png" for k in range(5)]
    assert lines[5] == "left out: 2 more images; manifest.json names them all"


def test_a_sample_with_a_broken_image_has_all_of_them_read(three, monkeypatch):
    monkeypatch.setattr(checks, "QUICK", 10)  # the test split is read whole
    monkeypatch.setattr(checks, "SAMPLE", 18)  # of 19: one of two broken ones is in it
    assert load(f"folder:{three}", in_memory="no").manifest.checks["read"] == "a sample"
    for name in ("ant/001", "bee/003"):
        (three / f"train/{name}.png").write_bytes(b"broken")
    data = load(f"folder:{three}", in_memory="no")
    assert data.counts.tolist() == [9, 5, 3]
    assert len(data.manifest.checks["broken"]["train"]) == 2


@pytest.mark.parametrize("in_memory", ["auto", "yes"])
def test_a_missing_file_is_a_broken_image(tmp_path, three, in_memory):
    labels = {"ant": 0, "bee": 1, "cow": 2}
    lines = [
        f"{file.relative_to(three).as_posix()} {labels[file.parent.name]}" for file in sorted(three.rglob("*.png"))
    ]
    (three / "all.txt").write_text("\n".join(lines))
    (three / "train/bee/003.png").unlink()
    with pytest.raises(ValueError, match=r"train/bee/003\.png does not exist"):
        load(f"list:{three / 'all.txt'}", in_memory=in_memory, strict=True)
    data = load(f"list:{three / 'all.txt'}", in_memory=in_memory)
    assert sum(data.counts.tolist()) + len(data.test) == 24
    assert isinstance(data.train.images, ArrayImages)  # small images, or asked for
    assert isinstance(data.test.images, ArrayImages)


def test_check_none_reads_nothing_and_full_reads_all(tmp_path):
    folder_of_three(tmp_path, 80)
    (tmp_path / "train/bee/003.png").write_bytes(b"broken")
    data = load(f"folder:{tmp_path}", check="none")
    assert data.manifest.checks == {"read": "none", "broken": {}, "left_out": [], "duplicates": None}
    with pytest.raises(ValueError, match=r"bee/003\.png"):
        load(f"folder:{tmp_path}", check="full", strict=True)


# duplicates


@pytest.mark.parametrize("side", [8, 80])
def test_duplicates_are_found(tmp_path, side):
    folder_of_three(tmp_path, side)
    shutil.copy(tmp_path / "train/ant/004.png", tmp_path / "test/ant/leak.png")
    shutil.copy(tmp_path / "train/cow/001.png", tmp_path / "test/bee/leak.png")
    shutil.copy(tmp_path / "train/ant/000.png", tmp_path / "train/bee/twin.png")
    data = load(f"folder:{tmp_path}")
    assert data.manifest.checks["duplicates"] == {
        "train and test": {
            "images": 2,
            "examples": ["ant/leak.png (train: ant/004.png)", "bee/leak.png (train: cow/001.png)"],
        },
        "train, under two labels": {"images": 1, "examples": ["ant/000.png and bee/twin.png"]},
    }


def test_images_under_many_labels_are_named_by_file(tmp_path):
    folder_of_three(tmp_path)
    for name in ("bee", "cow"):
        shutil.copy(tmp_path / "train/ant/000.png", tmp_path / f"train/{name}/twin.png")
    for k in range(5):
        shutil.copy(tmp_path / f"train/bee/00{k}.png", tmp_path / f"train/cow/copy{k}.png")
    shutil.copy(tmp_path / "train/ant/001.png", tmp_path / "train/ant/same.png")  # under one label: not counted
    found = load(f"folder:{tmp_path}").manifest.checks["duplicates"]["train, under two labels"]
    assert found["images"] == 7  # one image under three labels is two too many
    pairs = {"ant/000.png and bee/twin.png", "bee/twin.png and cow/twin.png",
             *(f"bee/00{k}.png and cow/copy{k}.png" for k in range(5))}  # fmt: skip
    assert len(found["examples"]) == 5
    assert set(found["examples"]) <= pairs


def test_no_duplicates(three):
    found = load(f"folder:{three}", val_per_class=1).manifest.checks["duplicates"]
    assert {where: entry["images"] for where, entry in found.items()} == {
        "train and test": 0, "train and val": 0, "train, under two labels": 0
    }  # fmt: skip


def test_duplicates_are_found_when_one_split_is_in_memory_and_one_is_not(three):
    shutil.copy(three / "train/ant/004.png", three / "test/ant/leak.png")
    write_image(three / "test/ant/other-size.png", noise(1, 12)[0])
    found = load(f"folder:{three}").manifest.checks["duplicates"]
    assert found["train and test"] == {"images": 1, "examples": ["ant/leak.png (train: ant/004.png)"]}


# held-out images


@pytest.mark.parametrize(
    ("options", "kept", "held"),
    [
        ({"val_per_class": 2}, [8, 4, 1], [2, 2, 2]),
        ({"val_fraction": 0.5}, [5, 3, 1], [5, 3, 2]),
        ({"val_fraction": 0.01}, [9, 5, 2], [1, 1, 1]),
        ({"val_fraction": 0.99}, [1, 1, 1], [9, 5, 2]),
        ({"val_per_class": 1, "counts": (4, 3, 2)}, [3, 2, 1], [1, 1, 1]),
    ],
)
def test_validation_is_held_out(three, options, kept, held):
    data = load(f"folder:{three}", **options)
    assert (data.counts.tolist(), data.val.counts.tolist()) == (kept, held)
    assert set(names_of(data.train)).isdisjoint(names_of(data.val))
    assert data.manifest.splits["val"].counts == held
    assert "the validation set was held out of the training set" in data.manifest.notes
    assert all(
        name.startswith(data.val.names[label]) for name, label in zip(names_of(data.val), data.val.labels, strict=True)
    )
    other = load(f"folder:{three}", **options, data_seed=1)
    assert data.manifest.identity != other.manifest.identity


def test_other_validation_data_of_the_same_cut(three):
    options = {"imbalance": 2, "val_per_class": 1}
    splits = [load(f"folder:{three}", **options, val_seed=seed) for seed in range(6)]
    whole = [sorted(names_of(data.train) + names_of(data.val)) for data in splits]
    assert all(names == whole[0] for names in whole)  # the cut stays
    assert len({tuple(names_of(data.val)) for data in splits}) > 1
    same = load(f"folder:{three}", **options)
    assert names_of(same.val) == names_of(splits[0].val)  # by default that of the data seed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_per_class": 3}, "3 images of each class leaves class 2 .*none to train on: it has 3"),
        ({"val_per_class": -1}, "must not be negative; got -1"),
        ({"val_fraction": 1.0}, r"must lie in \[0, 1\); got 1"),
        ({"val_fraction": -0.1}, r"must lie in \[0, 1\); got -0.1"),
        ({"val_per_class": 1, "val_fraction": 0.1}, "not both"),
        ({"data_seed": -1, "imbalance": 2}, r"seed must lie in \[0, 2\*\*32\); got -1"),
        ({"data_seed": -1, "val_per_class": 1}, "seed"),
        ({"val_seed": -1, "val_per_class": 1}, "seed"),
        ({"val_seed": 1}, "--val-seed means nothing without --val-fraction or --val-per-class"),
    ],
)
def test_impossible_held_out_sets(three, options, message):
    with pytest.raises(ValueError, match=message):
        load(f"folder:{three}", **options)


def test_the_test_set_is_held_out_before_the_cut(tmp_path):
    """A longer tail must not change the test set."""
    class_folders(tmp_path, {"ant": 20, "bee": 20})
    tests = [
        names_of(load(f"folder:{tmp_path}", **options).test) for options in ({}, {"imbalance": 4}, {"imbalance": 8})
    ]
    assert tests[0] == tests[1] == tests[2]
    assert len(tests[0]) == 8


# the manifest


def identity(dataset, **options):
    return load(dataset, **options).manifest.identity


def test_identity_goes_with_the_images_and_not_with_where_they_lie(tmp_path, three):
    shutil.copytree(three, tmp_path / "elsewhere" / "three")
    for in_memory in ("auto", "no"):
        first = identity(f"folder:{three}", in_memory=in_memory, imbalance=2)
        assert identity(f"folder:{tmp_path / 'elsewhere' / 'three'}", in_memory=in_memory, imbalance=2) == first
        assert identity(f"folder:{os.path.relpath(three)}", in_memory=in_memory, imbalance=2) == first


def test_identity_does_not_depend_on_memory(three):
    found = {in_memory: load(f"folder:{three}", in_memory=in_memory).manifest for in_memory in ("auto", "yes", "no")}
    assert found["auto"].differences(found["no"]) == []
    assert len({manifest.identity for manifest in found.values()}) == 1


def test_identity_changes_with_what_is_chosen(three):
    options = [{}, {"imbalance": 2}, {"imbalance": 3}, {"imbalance": 2, "data_seed": 1},
               {"imbalance": 2, "selection": "first-n"}, {"val_per_class": 1}, {"counts": (3, 3, 3)}]  # fmt: skip
    for in_memory in ("auto", "no"):
        found = [identity(f"folder:{three}", in_memory=in_memory, **entry) for entry in options]
        assert len(set(found)) == len(found)
        assert identity(f"folder:{three}", in_memory=in_memory, groups="thirds") == found[0]


@pytest.mark.parametrize("side", [8, 80])
def test_identity_changes_with_a_picture(tmp_path, side):
    folder_of_three(tmp_path, side)
    before = identity(f"folder:{tmp_path}")
    write_image(tmp_path / "train/bee/002.png", noise(1, side, seed=77)[0])
    assert identity(f"folder:{tmp_path}") != before


def test_folders_of_one_time_and_size_are_told_apart(tmp_path):
    """Archives unpack with equal times, and bitmaps have equal sizes: names, sizes and times alone prove nothing."""
    written = {}
    for seed, name in enumerate(("first", "second")):
        sizes = {"ant": 3, "bee": 2}
        written[name] = [class_folders(tmp_path / name / split, sizes, seed=10 * seed + k, form="BMP", suffix=".bmp")
                         for k, split in enumerate(("train", "test"))]  # fmt: skip
        for file in (tmp_path / name).rglob("*.bmp"):
            os.utime(file, (1e9, 1e9))
    for name, (train, test) in written.items():
        data = load(f"folder:{tmp_path / name}")
        assert np.array_equal(pixels_of(data.train), list(train.values()))
        assert np.array_equal(pixels_of(data.test), list(test.values()))


def test_a_manifest_comes_back_as_it_was(tmp_path, three):
    manifest = load(f"folder:{three}", imbalance=2, val_per_class=1).manifest
    manifest.save(tmp_path / "new" / "manifest.json")
    again = Manifest.load(tmp_path / "new" / "manifest.json")
    assert again == manifest
    assert again.identity == manifest.identity
    assert again.counts.tolist() == [6, 3, 2]
    assert str(tmp_path) not in (tmp_path / "new" / "manifest.json").read_text()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["manifest.json"]


def other(manifest, split="train", **changes):
    splits = manifest.splits | {split: dataclasses.replace(manifest.splits[split], **changes)}
    return dataclasses.replace(manifest, splits=splits)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: other(m, counts=[9, 6, 3], images=18), ["train: images per class (19 images in all, then 18)"]),
        (lambda m: other(m, "test", labels="0" * 64), ["test: the order of the images"]),
        (lambda m: other(m, content="0" * 64), ["train: which images were chosen"]),
        (lambda m: other(m, content=None, index="0" * 64), ["train: which images were chosen"]),
        (lambda m: other(m, content=None), []),
        (lambda m: other(m, index="0" * 64), []),  # the same pixels, stored elsewhere
        (lambda m: dataclasses.replace(m, classes=["ant", "cow", "bee"]), ["the class names or their order"]),
        (lambda m: dataclasses.replace(m, classes=["ant", "bee"]), ["3 classes, then 2"]),
        (lambda m: dataclasses.replace(m, splits={"train": m.splits["train"]}), ["test split is missing"]),
        (lambda m: dataclasses.replace(m, rule={}, notes=["x"], version="9", files={"a": "b"}), []),
    ],
)
def test_differences(three, change, words):
    manifest = load(f"folder:{three}").manifest
    assert manifest.differences(manifest) == []
    assert manifest.differences(change(manifest)) == words
    if words:
        with pytest.raises(ValueError, match="the data differs from what run 7 was made with") as error:
            manifest.require_same(change(manifest), "run 7")
        assert words[0] in str(error.value)
        assert manifest.identity in str(error.value)
    else:
        manifest.require_same(change(manifest), "run 7")


EDITS = {
    "class": lambda content: content["classes"].reverse(),
    "labels": lambda content: content["splits"]["train"].update(labels="0" * 64),
    "content": lambda content: content["splits"]["test"].update(content="0" * 64),
    "identity": lambda content: content.update(identity="0" * 16),
    "split": lambda content: content["splits"].pop("test"),
    "counts": lambda content: content["splits"]["train"].update(counts=[6, 10, 3]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_an_edited_manifest_is_refused(tmp_path, three, edit):
    path = tmp_path / "manifest.json"
    load(f"folder:{three}").manifest.save(path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"manifest\.json says identity .* it was edited"):
        Manifest.load(path)


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[]", "null", '"text"', '{"identity": "x", "splits": []}', "\ud800"]
)
def test_what_is_no_manifest_is_refused(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read as a manifest .* Run spectail prepare again"):
        Manifest.load(path)
    with pytest.raises(ValueError, match=r"none\.json cannot be read as a manifest"):
        Manifest.load(tmp_path / "none.json")
