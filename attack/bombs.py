"""Small files that become large, and numbers without end: a sentence within seconds, in a gigabyte of memory."""

import ctypes
import json
import pickle
import random
import resource
import shutil
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from training.runs import FLAGS, settings

from spectail.cli.main import main
from spectail.training.loop import train

from .cases import Child, Row, import_commands
from .pictures import make_photos

ROOM = 1 << 30
"""Bytes that a command may ask for, beyond what this process has."""
SECONDS = 20
DIGITS = 50_000
Words = tuple[object, ...]


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    draws = random.Random(seed)
    run, place = work / "run", work / "bombs"
    train(settings(run))
    photos = make_photos(work / "photos", draws)
    import_commands()
    for kind in (images, arrays, parquets, weights, numbers):
        place.mkdir()
        for name, words in kind(place, run, photos):
            row.add(name, tried(words, place / "log"))
            shutil.rmtree(place / "out", ignore_errors=True)
        shutil.rmtree(place)


def tried(words: Words, log: Path) -> str | None:
    start = time.monotonic()
    code = Child(lambda: with_little_memory(words, ROOM), log=log).wait(SECONDS)
    said = log.read_text(errors="replace")
    log.unlink()
    if code is None or time.monotonic() - start > SECONDS:
        return f"takes more than {SECONDS} s"
    if code not in (0, 1, 2) or "Traceback" in said or (code and not said):
        return f"exit code {code}: {said[-200:]}"
    return "takes all the memory there is" if "not enough memory" in said else None


def with_little_memory(words: Words, room: int) -> int:
    """A command that may ask for so many bytes more than this process has."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free already would not count
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, resource.RLIM_INFINITY))
    return main([str(word) for word in words])


# --- images


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    first = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    made = [(b"IHDR", first), *chunks, (b"IDAT", zlib.compress(bytes(3 * min(width, 99) + 1) * min(height, 99))), (b"IEND", b"")]  # fmt: skip
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in made]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(side: int) -> bytes:
    tags = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: side, 279: side}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


def images(place: Path, run: Path, photos: Path) -> Iterator[tuple[str, Words]]:
    text = b"key\0\0" + zlib.compress(bytes(100_000_000), 1)
    frame = b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xdc\xff\xdc\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"
    made = {
        "png": png(60_000, 60_000), "text.png": png(12, 12, (b"zTXt", text)), "profile.png": png(12, 12, (b"iCCP", text)),
        "gif": b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0x80, 0, 0) + bytes(6) + b"," + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0) + b"\x02\x00;",
        "bmp": b"BM" + struct.pack("<IIIIiiHHIIiiII", 90, 0, 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0),
        "tif": tiff(100_000), "ppm": b"P6 60000 60000 255\n" + bytes(99), "jpg": frame + b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00" + bytes(99),
    }  # fmt: skip
    for ending, data in made.items():
        folder = place / "photos"
        shutil.copytree(photos, folder)
        bomb = folder / "a" / f"bomb.{ending}"
        bomb.write_bytes(data)
        yield f"prepare, a bomb as {ending}", ("prepare", folder, "--output", place / "out")
        yield f"predict, a bomb as {ending}", ("predict", run, bomb)
        shutil.rmtree(folder)


# --- arrays and tables


def npy(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00v\x00" + text.encode().ljust(117) + b"\n"


def zip_bomb(path: Path, size: int, **members: bytes) -> None:
    """Members that begin as given and go on with zeros, ``size`` bytes each."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    with zipfile.ZipFile(path, "w") as archive:
        for name, begin in members.items():
            first = zlib.compressobj(9, zlib.DEFLATED, -15)
            stream = first.compress(begin) + first.flush(zlib.Z_FULL_FLUSH) + zeros * (size >> 20) + b"\x03\x00"
            info = zipfile.ZipInfo(f"{name}.npy")
            info.file_size = len(stream)
            archive.writestr(info, stream)
            info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, len(begin) + (size >> 20 << 20)


def archives(place: Path, labels: str, scores: str) -> Iterator[tuple[str, Path]]:
    """Archives of two arrays, each with a trap."""
    rows = 1 << 27
    zip_bomb(place / "zip.npz", 8 * rows, **{labels: npy((rows,)), scores: npy((rows // 8, 8))})
    yield "zip bomb", place / "zip.npz"
    zip_bomb(place / "lies.npz", 1 << 20, **{labels: npy((10**12,)), scores: npy((10**12, 8))})
    yield "terabytes", place / "lies.npz"
    with zipfile.ZipFile(place / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(f"{labels}.npy", npy((4,)) + bytes(32))
        archive.writestr(f"{scores}.npy", npy((4, 2)) + bytes(64))
    yield "LZMA", place / "lzma.npz"
    with zipfile.ZipFile(place / "deep.npz", "w") as archive:
        for name in (labels, scores):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 9000) + b"(" * 9000)
    yield "deep header", place / "deep.npz"


def arrays(place: Path, run: Path, photos: Path) -> Iterator[tuple[str, Words]]:
    known = run / "predictions.npz"
    for name, file in archives(place, "labels", "logits"):
        yield f"analyze, .npz, {name}", ("analyze", file)
        yield f"adjust, .npz, {name}", ("adjust", file, "--on", known, "--output", place / "out.npz")
    for name, file in archives(place, "y", "X"):
        yield f"features, .npz, {name}", ("prepare", f"features:{file}", "--output", place / "out")
    (place / "big.npy").write_bytes(npy((10**11, 2)))
    (place / "big_labels.npy").write_bytes(npy((10**11,), "<i8"))
    yield "analyze, .npy", ("analyze", place / "big.npy", "--scores", place / "big.npy")
    yield "analyze, --counts .npy", ("analyze", known, "--counts", place / "big.npy")
    yield "features, .npy", ("prepare", f"features:{place / 'big.npy'}", "--output", place / "out")


def varint(value: int) -> bytes:
    """A number as parquet's metadata have it."""
    value, found = 2 * value, bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def parquets(place: Path, run: Path, photos: Path) -> Iterator[tuple[str, Words]]:
    picture = (photos / "a" / "0.png").read_bytes()
    few = {"label": pa.array([0, 1] * 6_173, pa.int8()), "predicted": pa.array([0, 1] * 6_173, pa.int8()),
           "image": pa.array([picture] * 12_346), "features": pa.array([[0.5, 1.5]] * 12_346)}  # fmt: skip
    pq.write_table(pa.table(few), place / "lies.parquet")
    data = (place / "lies.parquet").read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8].replace(varint(12_346), varint(10**13))
    (place / "lies.parquet").write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    zeros = pa.array(np.zeros(4_000_000, np.int8))
    many = {"label": zeros, "predicted": zeros, "image": zeros.cast(pa.string()).cast(pa.binary()),
            "features": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4_000_000, np.float32)), 1)}  # fmt: skip
    with pq.ParquetWriter(place / "many.parquet", pa.table(many).schema) as writer:
        for _ in range(12):
            writer.write_table(pa.table(many))
    for name in ("lies", "many"):
        file = place / f"{name}.parquet"
        yield f"analyze, parquet, {name}", ("analyze", file)
        yield f"prepare, parquet, {name}", ("prepare", f"parquet:{file}", "--output", place / "out")
        yield f"features, parquet, {name}", ("prepare", f"features:{file}", "--output", place / "out")


# --- weights


class Zeros:
    """A pickle that asks for 64 GB."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[int]]:
        return bytearray, (1 << 36,)


def weights(place: Path, run: Path, photos: Path) -> Iterator[tuple[str, Words]]:
    header = {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    texts = {"long header": struct.pack("<Q", 1 << 60), "large tensor": json.dumps(header).encode(),
             "overflow": json.dumps(header).encode().replace(b"1000000000000", str(2**62).encode()),
             "deep": b'{"a":' + b"[" * 100_000, "long number": b'{"a":' + b"9" * DIGITS + b"}"}  # fmt: skip
    for name, text in texts.items():
        (place / f"{name}.safetensors").write_bytes(
            (b"" if name == "long header" else struct.pack("<Q", len(text))) + text
        )
    torch.save({"weight": torch.ones(1).expand(10**6, 10**6)}, place / "one number.pth")
    with zipfile.ZipFile(place / "asks.pth", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"weight": Zeros()}, 2))
        archive.writestr("x/version", "3")
    torch.save({"weight": torch.zeros(1 << 20)}, place / "whole.pth")
    with zipfile.ZipFile(place / "whole.pth") as whole, zipfile.ZipFile(place / "packed.pth", "w", 8) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    (place / "whole.pth").unlink()
    for file in sorted(place.glob("*.*")):
        usual = ("train", *FLAGS, "--model", "tiny", "--epochs", "1", "--no-report", "--output", place / "out")
        yield f"--init, {file.name}", (*usual, "--init", file)
        if file.suffix == ".safetensors":
            copy = place / "run"
            shutil.copytree(run, copy)
            (copy / "digests.json").unlink()
            shutil.copy(file, copy / "model.safetensors")
            yield f"evaluate, {file.name}", ("evaluate", copy, "--device", "cpu")
            shutil.rmtree(copy)


# --- numbers


def numbers(place: Path, run: Path, photos: Path) -> Iterator[tuple[str, Words]]:
    long = "9" * DIGITS
    usual = (*FLAGS, "--model", "tiny", "--epochs", "1", "--no-report", "--output", place / "out")
    values = {"digits": long, "hexadecimal": f"0x{'f' * DIGITS}", "sexagesimal": "1" + ":1" * DIGITS, "exponent": "1e999999999",
              "fraction": f"0.{long}", "date": "9" * 4 + "-99-99"}  # fmt: skip
    for name, value in values.items():
        for setting in ("seed: {}", "optim: {{lr: {}}}", "method: {}"):
            (place / "c.yaml").write_text(setting.format(value))
            yield f"--config, {setting}, {name}", ("train", "--config", place / "c.yaml", *usual)
        for flag in ("--seed", "--lr", "--imbalance"):
            yield f"{flag}, {name}", ("train", *usual, flag, value)
        for ending, text in {"csv": "label,predicted\n0,0\n{0},1\n1,{0}\n", "scores.csv": "label,logit_0,logit_1\n0,1,{0}\n1,{0},2\n"}.items():  # fmt: skip
            (place / f"numbers.{ending}").write_text(text.format(value))
            yield f"analyze, {ending}, {name}", ("analyze", place / f"numbers.{ending}")
        (place / "list.txt").write_text(f"{photos}/a/0.png 0\n{photos}/b/0.png {value}\n")
        yield f"list, {name}", ("prepare", f"list:{place / 'list.txt'}", "--root", photos, "--output", place / "out")
        (place / "counts.json").write_text(f"[{value}, 5, 5, 5, 5, 5]")
        yield f"--counts, {name}", ("analyze", run, "--counts", place / "counts.json")
        content: dict[str, Any] = {"class_names": list("abcdef"), "offsets": [0.0] * 5 + ["HERE"], "temperature": 1.0}
        (place / "adjustment.json").write_text(json.dumps(content).replace('"HERE"', value))
        yield f"--adjust, {name}", ("evaluate", run, "--adjust", place / "adjustment.json", "--device", "cpu")
