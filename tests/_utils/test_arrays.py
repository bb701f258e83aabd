"""Arrays in files that are right, wrong, or made to fill memory."""

import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attack import bombs

from spectail._utils.arrays import check_parquet, opened_npz, read_npy
from spectail.models.weights import read_weights


def read(path):
    with opened_npz(path) as archive:
        return {name: archive[name] for name in archive.names}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_comes_back(tmp_path, save):
    arrays = {"a": np.arange(12.0).reshape(3, 4).T, "b": np.array(["ä", "otter"]), "empty": np.zeros((0, 3)),
              "one": np.array(7), "records": np.zeros(3, dtype=[("x", "i4"), ("y", "f8")])}  # fmt: skip
    save(tmp_path / "x.npz", **arrays)
    found = read(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        np.save(tmp_path / "x.npy", array)
        np.testing.assert_array_equal(read_npy(tmp_path / "x.npy"), array)


def test_arrays_that_are_made_to_fill_memory(tmp_path):
    said = {
        "zip bomb": r"'labels' would take 1\.1 GB of memory, 1,0\d\d times its size in the file",
        "terabytes": "lies.npz is damaged",
        "LZMA": "in a way that NumPy does not write",
        "deep header": "deep.npz is damaged",
    }
    for name, path in bombs.archives(tmp_path, "labels", "logits"):
        with pytest.raises(ValueError, match=said.pop(name)):
            read(path)
    assert not said
    (tmp_path / "big.npy").write_bytes(bombs.npy((10**11, 2)))
    with pytest.raises(ValueError, match="damaged"):
        read_npy(tmp_path / "big.npy")


@pytest.mark.parametrize(
    ("shape", "kind"), [((10**30, 0), "<f8"), ((True,), "<f8"), ((10**9,), "<U0"), ((10**9,), "|V0")]
)
def test_headers_that_are_none_or_promise_much_for_nothing(tmp_path, shape, kind):
    (tmp_path / "x.npy").write_bytes(bombs.npy(shape, kind))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.write(tmp_path / "x.npy", "a.npy")
    for reader in (read_npy, read):
        with pytest.raises(ValueError, match=r"x\.np[yz] is damaged"):
            reader(tmp_path / f"x.{'npy' if reader is read_npy else 'npz'}")


def test_a_large_array_that_compresses_well_is_data(tmp_path):
    """Zeros, but not enough of them to hurt."""
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1 << 22))
    assert read(tmp_path / "x.npz")["a"].shape == (1 << 22,)


@pytest.mark.parametrize(("rows", "size", "fits"), [(1000, 8000, True), (10**13, 8000, False), (1000, 10**12, False)])
def test_columns_that_are_made_to_fill_memory(tmp_path, rows, size, fits):
    (tmp_path / "x.parquet").write_bytes(bytes(900))
    part = SimpleNamespace(
        path_in_schema="image.bytes", total_uncompressed_size=size, num_values=1000, total_compressed_size=10**12
    )
    group = SimpleNamespace(num_rows=rows, num_columns=1, column=lambda number: part)
    metadata = SimpleNamespace(num_rows=rows, num_row_groups=1, row_group=lambda number: group)
    if fits:
        check_parquet(tmp_path / "x.parquet", metadata, ["image"])
    else:
        with pytest.raises(ValueError, match="column 'image' would take"):
            check_parquet(tmp_path / "x.parquet", metadata, ["image"])


def test_weights_that_are_made_to_fill_memory(tmp_path):
    torch.save({"weight": torch.zeros(9), "x": bytearray(9)}, tmp_path / "asks.pth")
    with pytest.raises(ValueError, match="holds a bytearray"):
        read_weights(tmp_path / "asks.pth")
    torch.save({"weight": torch.zeros(9)}, tmp_path / "whole.pth")
    assert read_weights(tmp_path / "whole.pth")["weight"].shape == (9,)
    with zipfile.ZipFile(tmp_path / "whole.pth") as whole, zipfile.ZipFile(tmp_path / "packed.pth", "w", 8) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    with pytest.raises(ValueError, match="it is compressed"):
        read_weights(tmp_path / "packed.pth")
