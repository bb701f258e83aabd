"""A path does where a data set is asked for: what lies there says what it is."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.builders import class_folders, noise, write_parquet

from spectail.cli.train import parse
from spectail.data import load
from spectail.data.paths import full_name

LABELS = [0, 1, 2] * 4


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Data sets of every kind under the names that people give them."""
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "photos", {"ant": 6, "bee": 4, "cow": 3})
    files = sorted(file.relative_to(tmp_path).as_posix() for file in (tmp_path / "photos").rglob("*.png"))
    for name, gap in (("all.csv", ","), ("all.txt", " "), ("all.TSV", "\t")):
        (tmp_path / name).write_text("".join(f"{file}{gap}{file.split('/')[1]}\n" for file in files))
    write_parquet(tmp_path / "images.parquet", noise(12), LABELS)
    write_parquet(tmp_path / "shards" / "train-0.parquet", noise(12), LABELS)
    vectors = np.random.default_rng(0).normal(size=(12, 3))
    column = pa.array(list(vectors), pa.list_(pa.float64()))
    pq.write_table(pa.table({"embedding": column, "label": LABELS}), tmp_path / "vectors.parquet")
    (tmp_path / "embeddings").mkdir()
    pq.write_table(pa.table({"embedding": column, "label": LABELS}), tmp_path / "embeddings" / "train.parquet")
    np.savez(tmp_path / "x.npz", X=vectors, y=LABELS)
    np.save(tmp_path / "v.npy", vectors)
    np.save(tmp_path / "v_labels.npy", LABELS)
    return tmp_path


KINDS = {"photos": "folder", "photos/": "folder", "./photos": "folder", "all.csv": "list", "all.txt": "list",
         "all.TSV": "list", "images.parquet": "parquet", "shards": "parquet", "vectors.parquet": "features",
         "embeddings": "features", "x.npz": "features", "v.npy": "features"}  # fmt: skip


@pytest.mark.parametrize("path", KINDS)
def test_a_path_is_its_full_name(path, here):
    assert full_name(path) == f"{KINDS[path]}:{path}"
    assert full_name(str(here / path)).startswith(f"{KINDS[path]}:/")
    assert full_name(f"{KINDS[path]}:{path}") == f"{KINDS[path]}:{path}"
    assert load(path).manifest.identity == load(f"{KINDS[path]}:{path}").manifest.identity


def test_a_name_of_the_catalogue_comes_first(here):
    class_folders(here / "glyphs-lt", {"ant": 3, "bee": 2})
    assert full_name("glyphs-lt") == "glyphs-lt"
    assert load("./glyphs-lt").train.names == ("ant", "bee")


@pytest.mark.parametrize("words", ["photos", "--dataset photos", "--dataset=photos", "folder:photos",
                                   "--epochs 3 photos", "--method ce --car photos"])  # fmt: skip
def test_training_takes_the_path_as_it_stands(words):
    config, _ = parse(words.split())
    assert config.data.dataset == "folder:photos"
    assert config.output.name.startswith("photos-small-cnn-ce")
    assert config.transform == "imagenet-fast"


def test_training_refuses_two_data_sets():
    for arguments in (["photos", "--dataset", "x.npz"], ["--dataset=x.npz", "--epochs", "2", "photos"]):
        with pytest.raises(ValueError, match="'photos' and --dataset both name the data set; give one"):
            parse(arguments)


BAD = {
    "fotos": r"unknown data set 'fotos': there is no such name and no such path; did you mean 'photos'\? A path may",
    "sub/fotos": "no such path; choose from cifar10-lt, ",
    "cifar100": "did you mean 'cifar100-lt'",
    "photo.zip": r"photo\.zip is no data set that can be read: it ends in '\.zip'\. A path may be a folder",
    "plain": "plain is no data set that can be read: it ends in 'nothing'",
    "damaged.parquet": "damaged.parquet cannot be read as parquet",
    "": "unknown data set ''",
    "foldr:photos": "did you mean .*'folder:PATH'",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_data_set_gets_one_sentence(here, name):
    for file in ("photo.zip", "plain", "damaged.parquet"):
        (here / file).write_text("something else")
    with pytest.raises(ValueError, match=BAD[name]) as caught:
        load(name)
    assert "\n" not in str(caught.value)
