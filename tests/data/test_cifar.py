"""CIFAR from fake official archives, whose pixels and labels are known because they were made here."""

import hashlib
import http.server
import os
import pickle
import threading

import numpy as np
import pytest
from data.builders import FakeCifar, encode, first_of_each, noise, pixels_of, python2_pickle, write_parquet

from spectail.data import load
from spectail.data.sets import cifar

RULE = {"imbalance": 2, "max_per_class": 10}  # int(10 * 0.5 ** (i / 2)): 10, 7, 5
COUNTS = [10, 7, 5]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache") / "spectail"
    monkeypatch.setenv("SPECTAIL_CACHE", str(folder))
    return folder


@pytest.fixture
def ten(monkeypatch):
    fake = FakeCifar()
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10-lt", fake.entry())
    return fake


def check(data, fake):
    """First-n data against the arrays that went into the archive."""
    wanted = first_of_each(fake.labels["train"], COUNTS)
    assert data.train.names == fake.names
    assert data.train.labels.tolist() == fake.labels["train"][wanted].tolist()
    assert np.array_equal(data.train.pixels, fake.images["train"][wanted])
    assert data.test.labels.tolist() == fake.labels["test"].tolist()
    assert np.array_equal(pixels_of(data.test), fake.images["test"])


@pytest.mark.parametrize("place", ["archive", "unpacked", "folder itself"])
def test_every_place_of_the_official_files(tmp_path, ten, place):
    root = tmp_path / "root"
    if place == "archive":
        ten.write_archive(root)
    else:
        ten.write_folder(root / "cifar-10-batches-py" if place == "unpacked" else root)
    data = load("cifar10-lt", root=root, selection="first-n", **RULE)
    check(data, ten)
    assert data.manifest.files == {"cifar-10-python.tar.gz": f"md5:{ten.entry().known.tgz_md5}"}


def test_channels_and_rows_are_where_they_belong(tmp_path, monkeypatch):
    fake = FakeCifar()
    for split in fake.images:
        fake.images[split][:] = 0
        fake.images[split][:, 0, 5, 0] = 200  # red, first row, sixth column
        fake.images[split][:, 31, 2, 2] = 100  # blue, last row, third column
    rows = np.zeros((6, 3072), dtype=np.uint8)
    rows[:, 5], rows[:, 2 * 1024 + 31 * 32 + 2] = 200, 100
    for batch in range(5):
        fake.members[f"data_batch_{batch + 1}"] = python2_pickle(
            {
                b"data": rows,
                b"labels": fake.labels["train"][batch * 6 : batch * 6 + 6].tolist(),
                b"filenames": [b"x.png"] * 6,
            }
        )
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10-lt", fake.entry())
    fake.write_archive(tmp_path)
    data = load("cifar10-lt", root=tmp_path, imbalance=1, max_per_class=10)
    assert data.train[0][0].getpixel((5, 0)) == (200, 0, 0)  # Pillow counts (column, row)
    assert data.train[0][0].getpixel((2, 31)) == (0, 0, 100)
    assert int(data.train.pixels.astype(int).sum()) == 30 * 300


def test_batches_are_joined_in_order(tmp_path, ten):
    ten.write_archive(tmp_path)
    source = cifar.open_source(load_config(tmp_path))
    assert np.array_equal(source.train.pixels, ten.images["train"])
    assert [source.train.images.name(i) for i in (0, 29)] == ["train_0.png", "train_29.png"]


def load_config(root, name="cifar10-lt"):
    from spectail.data import DataConfig

    return DataConfig(name, root=root)


def test_seeded_selection_is_the_shared_one(tmp_path, ten):
    """NumPy's legacy generator, seeded once, shuffles each whole class in ascending order."""
    ten.write_archive(tmp_path)
    data = load("cifar10-lt", root=tmp_path, **RULE)
    generator = np.random.RandomState(0)
    wanted, text = [], ""
    for label, count in enumerate(COUNTS):
        members = np.flatnonzero(ten.labels["train"] == label)
        ranks = np.arange(len(members))
        generator.shuffle(ranks)
        wanted += members[ranks[:count]].tolist()
        text += ",".join(map(str, ranks[:count])) + ";"
    assert np.array_equal(data.train.pixels, ten.images["train"][wanted])
    assert data.manifest.ranks == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_cifar100_uses_fine_labels(tmp_path, monkeypatch):
    fake = FakeCifar("cifar100-lt", names=("apple", "baby", "bear", "train"), train=6, test=2)
    monkeypatch.setitem(cifar.ARCHIVES, "cifar100-lt", fake.entry())
    fake.write_archive(tmp_path)
    data = load("cifar100-lt", root=tmp_path, imbalance=6, max_per_class=6, selection="first-n")
    wanted = first_of_each(fake.labels["train"], [6, 3, 1, 1])  # int(6 * 6 ** (-i / 3)): 6, 3.3, 1.8, 1
    assert np.array_equal(data.train.pixels, fake.images["train"][wanted])
    assert data.train.names == fake.names


def test_parquet_files_are_the_same_data(tmp_path, ten):
    ten.write_archive(tmp_path / "archive")
    ten.write_parquet(tmp_path / "hub", row_group_size=7)
    for options in ({}, {"selection": "first-n"}, {"data_seed": 3}, {"val_per_class": 1}):
        first = load("cifar10-lt", root=tmp_path / "archive", **RULE, **options).manifest
        second = load("cifar10-lt", root=tmp_path / "hub", **RULE, **options).manifest
        assert first.differences(second) == []
        assert (first.identity, first.ranks) == (second.identity, second.ranks)


def test_a_folder_of_pictures_is_not_cifar(tmp_path, ten, monkeypatch):
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10-lt", ten.entry(url="http://127.0.0.1:9/cifar-10-python.tar.gz"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(encode(noise(1)[0]))
    with pytest.raises(FileNotFoundError, match=r"cifar-10-python\.tar\.gz is not in .* could not be downloaded"):
        load("cifar10-lt", root=tmp_path, **RULE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine; gives its folder and address."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "web"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(folder), **kwargs)

        def log_message(self, *args):
            pass

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{web.server_address[1]}/cifar-10-python.tar.gz"
    web.shutdown()
    web.server_close()
    thread.join()


@pytest.mark.parametrize("with_root", [True, False])
def test_download(tmp_path, cache, ten, server, monkeypatch, with_root):
    folder, url = server
    ten.write_archive(folder)
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10-lt", ten.entry(url=url))
    root = tmp_path / "root"
    root.mkdir()
    options = {"root": root} if with_root else {}
    check(load("cifar10-lt", selection="first-n", **RULE, **options), ten)
    place = root if with_root else cache / "downloads"
    assert [path.name for path in place.iterdir()] == ["cifar-10-python.tar.gz"]
    (folder / "cifar-10-python.tar.gz").unlink()
    check(load("cifar10-lt", selection="first-n", **RULE, **options), ten)  # from the copy


def test_a_wrong_download_is_thrown_away(tmp_path, cache, ten, server, monkeypatch):
    folder, url = server
    ten.write_archive(folder)
    whole = (folder / "cifar-10-python.tar.gz").read_bytes()
    (folder / "cifar-10-python.tar.gz").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10-lt", ten.entry(url=url))
    with pytest.raises(ValueError, match=f"expected {ten.entry().known.tgz_md5}; it was thrown away"):
        load("cifar10-lt", **RULE)
    assert list((cache / "downloads").iterdir()) == []


def test_a_missing_page_says_what_to_fetch(cache, ten, server, monkeypatch):
    _, url = server
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10-lt", ten.entry(url=url))
    with pytest.raises(FileNotFoundError, match=f"Fetch {url} on a machine that is online"):
        load("cifar10-lt", **RULE)
    assert list((cache / "downloads").iterdir()) == []


class Evil:
    """Loading its pickle makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_the_evil_pickle_works(tmp_path):
    pickle.loads(pickle.dumps(Evil(tmp_path / "proof"), protocol=2))
    assert (tmp_path / "proof").is_dir()


@pytest.mark.parametrize("place", ["archive", "unpacked"])
def test_a_wrong_checksum_is_refused_before_unpickling(tmp_path, ten, monkeypatch, place):
    monkeypatch.setattr(cifar, "_load", lambda data: pytest.fail("a file with a wrong checksum was opened"))
    entry = ten.entry()
    ten.members["data_batch_3"] = pickle.dumps(Evil(tmp_path / "proof"), protocol=2)
    if place == "archive":
        ten.write_archive(tmp_path / "root")
    else:
        ten.write_folder(tmp_path / "root" / "cifar-10-batches-py")
    name = "cifar-10-python.tar.gz" if place == "archive" else "data_batch_3"
    expected = entry.known.tgz_md5 if place == "archive" else entry.members["data_batch_3"]
    with pytest.raises(ValueError, match=f"{name} has MD5 .*, expected {expected}: .* it is not opened"):
        load("cifar10-lt", root=tmp_path / "root", **RULE)
    assert not (tmp_path / "proof").exists()


def test_wrong_number_of_images(tmp_path, ten, monkeypatch):
    monkeypatch.setitem(cifar.ARCHIVES, "cifar10-lt", ten.entry(per_class=(10, 5)))
    ten.write_archive(tmp_path)
    with pytest.raises(ValueError, match=r"expects 5 test images in each class; class 0 \('airplane'\) has 4"):
        load("cifar10-lt", root=tmp_path, **RULE)


def test_incomplete_parquet_is_refused(tmp_path, ten):
    ten.write_parquet(tmp_path)
    labels = ten.labels["train"][1:].tolist()
    write_parquet(
        tmp_path / "train-00000-of-00001.parquet", ten.images["train"][1:], labels, image="img", names=ten.names
    )
    lost = int(ten.labels["train"][0])
    with pytest.raises(ValueError, match=rf"expects 10 train images in each class; class {lost} .* has 9"):
        load("cifar10-lt", root=tmp_path, **RULE)


def test_missing_root(tmp_path, ten):
    with pytest.raises(FileNotFoundError, match=r"--root .*nowhere does not exist; cifar10-lt expects a folder with"):
        load("cifar10-lt", root=tmp_path / "nowhere")
    ten.write_archive(tmp_path)
    with pytest.raises(FileNotFoundError, match="is a file; cifar10-lt expects a folder with cifar-10-python"):
        load("cifar10-lt", root=tmp_path / "cifar-10-python.tar.gz")
