"""Generated input for every command: prediction files, flags, configurations, folders, lists. Some of it is right, and
then the answer is known: what is accepted must be that."""

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from training.runs import FLAGS, settings

from spectail.cli.adjust import Adjust
from spectail.cli.analyze import Analyze
from spectail.cli.arguments import flags_of
from spectail.cli.compare import Compare
from spectail.cli.evaluate import Evaluate
from spectail.cli.export import Export
from spectail.cli.predict import Predict
from spectail.cli.prepare import Prepare
from spectail.cli.report import Report
from spectail.cli.train import Train
from spectail.training.config_io import to_dict
from spectail.training.loop import train

from .cases import Answer, Row, command, leftovers
from .pictures import folders, lists, make_photos

NASTY = ["", " ", "0", "-1", "1", "2", "0.5", "-0.5", "nan", "inf", "-inf", "1e308", "1e-320", "9" * 20, "-" + "9" * 20, "2147483648", "0x10",
         "1_000", "true", "None", "null", "[]", "{}", "a b", "ä", "💥", "\x1b[2J", "a\nb", "../..", "/", "/dev/null", "/dev/zero", ".", "~",
         "x" * 5000, "%s%n", "$(id)", "'", '"', "--", "-", "--help=1", "=1+1", "glyphs-lt", "ce", "car", "evil:Evil", "os:system", "\ud800"]  # fmt: skip
WORK = {"--epochs", "--accumulation", "--batch-size", "--max-per-class", "--num-classes", "--stage2-epochs", "--workers",
        "--warmup-epochs", "--model", "--transform", "--jobs", "--seeds", "--methods"}  # fmt: skip
"""Flags that may ask for an hour of work, which is no fault."""


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    draws = random.Random(seed)
    run = work / "run"
    train(settings(run))
    photos = make_photos(work / "photos", draws)
    kinds = [(6, predictions), (6, flags), (2, configurations), (2, lists), (1, folders), (1, words)]
    bag = [kind for weight, kind in kinds for _ in range(weight)]
    place = work / "place"
    for number in range(amount):
        kind = bag[number % len(bag)]
        place.mkdir()
        name, answer, fault = kind(place, run, photos, draws)
        left = leftovers(place)
        row.add(
            f"{kind.__name__} {number}: {name}"[:200], fault or answer.fault or (f"leaves {left}" if left else None)
        )
        shutil.rmtree(place)
    row.add("the run that was read is as it was", None if command("report", run).code == 0 else "it is not")


# --- prediction files


def predictions(place: Path, run: Path, photos: Path, draws: random.Random) -> tuple[str, Answer, str | None]:
    """A file of predictions with one fault or none. Without a fault the accuracy is known."""
    rng = np.random.default_rng(draws.randrange(2**32))
    size, classes = draws.choice([1, 2, 3, 17, 60]), draws.choice([2, 3, 5, 12])
    labels = rng.integers(0, classes, size)
    logits = rng.normal(size=(size, classes))
    names = [f"class {label}" for label in range(classes)]
    accuracy = 100 * float((logits.argmax(1) == labels).mean())
    kind = draws.choice(["npz", "csv", "parquet", "npy"])
    fault = draws.choice([None, None, *FAULTS])
    words: list[Any] = []
    path = place / f"file.{kind}"
    columns: dict[str, Any] = {"labels": labels, "logits": logits}
    if draws.random() < 0.3:
        columns = {"labels": np.array(names)[labels], "predicted": np.array(names)[logits.argmax(1)]}
    if kind == "npy":
        columns = {"labels": labels, "logits": logits}
    if fault is not None and kind != "npy":
        columns = FAULTS[fault](columns, rng)
    write(path, kind, columns, place, words)
    if fault in ("cut", "flipped", "garbage", "encrypted") or (fault is not None and kind == "npy"):
        content = path.read_bytes()
        at = draws.randrange(max(len(content), 1))
        path.write_bytes(
            {"cut": content[:at], "garbage": draws.randbytes(draws.randrange(300))}.get(fault or "", flip(content, at))
        )
    if draws.random() < 0.3:
        words += extras(place, classes, names, draws)
    output = place / f"out.{draws.choice(['html', 'json', 'csv', 'md', 'tex', 'doc'])}"
    if draws.random() < 0.4:
        words += ["--output", output]
    answer = command("analyze", path, "--json", *words)
    name = f"{kind} {fault} {words}"
    if (
        answer.code == 0
        and fault is None
        and len(set(words)) == len(words)
        and "--counts" not in words
        and "--names" not in words
    ):
        found = json.loads(answer.out)["analyses"][0]["metrics"]["overall"]
        if abs(found - accuracy) > 1e-6:
            return name, answer, f"silently wrong: {found} for {accuracy}"
    if answer.code and output.exists():
        return name, answer, "half-written: refused, and an output is there"
    return name, answer, None


def write(path: Path, kind: str, columns: dict[str, Any], place: Path, words: list[Any]) -> None:
    if kind == "npz":
        np.savez(path, **{key: np.asarray(value) for key, value in columns.items()})
    elif kind == "npy":
        np.save(path, columns["labels"])
        np.save(place / "scores.npy", columns["logits"])
        words += ["--scores", place / "scores.npy"]
    else:
        table: dict[str, list[Any]] = {}
        for key, value in columns.items():
            array = np.asarray(value)
            if key == "logits" and array.ndim == 2:
                table |= {f"logit_{label}": array[:, label].tolist() for label in range(array.shape[1])}
            else:
                table[key] = array.tolist()
        if kind == "csv":
            with path.open("w", newline="", errors="surrogateescape") as file:
                writer = csv.writer(file)
                writer.writerow(table)
                writer.writerows(zip(*table.values(), strict=False))
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                pq.write_table(pa.table(table), path)
            except (pa.ArrowException, TypeError, ValueError):  # no such table can be written
                path.write_bytes(b"PAR1" + bytes(20) + b"PAR1")


def change(key: str, make: Any) -> Any:
    def apply(columns: dict[str, Any], rng: Any) -> dict[str, Any]:
        wanted = key if key in columns else next(iter(columns))
        return columns | {wanted: make(np.asarray(columns[wanted]), rng)}

    return apply


def one(value: Any) -> Any:
    def make(array: Any, rng: Any) -> Any:
        found = array.astype(object).copy()
        found.flat[int(rng.integers(max(found.size, 1)))] = value
        try:
            return found.astype(array.dtype) if not isinstance(value, str) else found.astype(str)
        except (TypeError, ValueError, OverflowError):
            return found.astype(str)

    return make


FAULTS: dict[str, Any] = {
    "label too large": change("labels", one(999_999)), "label negative": change("labels", one(-3)),
    "label 0.5": change("labels", one(0.5)), "label empty": change("labels", one("")), "label nan": change("labels", one("nan")),
    "label huge": change("labels", one(10**18)), "label name": change("labels", one("otter")),
    "score nan": change("logits", one(float("nan"))), "score inf": change("logits", one(float("inf"))),
    "score text": change("logits", one("high")), "scores short": change("logits", lambda array, rng: array[:-1]),
    "scores flat": change("logits", lambda array, rng: array.ravel()), "scores cube": change("logits", lambda array, rng: array[None]),
    "scores complex": change("logits", lambda array, rng: array.astype(complex) if array.dtype.kind == "f" else array),
    "no labels": lambda columns, rng: {key: value for key, value in columns.items() if key != "labels"},
    "no scores": lambda columns, rng: {"labels": columns["labels"]}, "nothing": lambda columns, rng: {"x": [1]},
    "labels as rows": change("labels", lambda array, rng: array[:, None]), "labels as records": change("labels", lambda array, rng: np.zeros(len(array), dtype=[("a", int)])),
    "labels of void": change("labels", lambda array, rng: np.zeros(len(array), dtype="V4")),
    "labels as dates": change("labels", lambda array, rng: np.full(len(array), np.datetime64("2020-01-01", "s"))),
    "labels as times": change("labels", lambda array, rng: np.full(len(array), np.timedelta64(5, "s"))),
    "labels as bytes": change("labels", lambda array, rng: array.astype("S8")),
    "lists as predictions": lambda columns, rng: {"labels": columns["labels"], "predicted": rng.normal(size=(len(columns["labels"]), 3))},
    "other classes": lambda columns, rng: {"labels": [str(text) for text in range(len(columns["labels"]))], "predicted": ["cat"] * len(columns["labels"])},
    "capitals": lambda columns, rng: {"labels": ["Cat", "dog"] * 3, "predicted": ["cat", "dog"] * 3},
    "probabilities": change("logits", lambda array, rng: np.exp(array) / np.exp(array).sum(1, keepdims=True) if array.dtype.kind == "f" else array),
    "escapes": lambda columns, rng: {"labels": ["\x1b]0;x", "=1+1"] * 2, "predicted": ["\x1b]0;x", "=1+1"] * 2},
    "none": lambda columns, rng: {"labels": np.zeros(0), "logits": np.zeros((0, 3))},
    "one class": lambda columns, rng: {"labels": [0, 0], "predicted": [0, 0]},
    "cut": lambda columns, rng: columns, "flipped": lambda columns, rng: columns, "garbage": lambda columns, rng: columns,
}  # fmt: skip


def extras(place: Path, classes: int, names: list[str], draws: random.Random) -> list[Any]:
    """--names and --counts, right and wrong."""
    content = draws.choice(
        [json.dumps(names), json.dumps(dict.fromkeys(names, 5)), json.dumps({str(label): 5 for label in range(classes)}), "null", "[", "[" * 5000, "{}",
         "5", '"x"', json.dumps([5] * classes), json.dumps([1e30] * classes), json.dumps([-1] * classes), json.dumps([0.5] * classes), "", "\x00", "NaN"]
    )  # fmt: skip
    path = place / draws.choice(["extra.json", "extra.txt", "extra.npy"])
    path.write_text(content)
    return [draws.choice(["--names", "--counts"]), path]


# --- flags


def flags(place: Path, run: Path, photos: Path, draws: random.Random) -> tuple[str, Answer, str | None]:
    """One or two flags with values that nobody should give."""
    kinds = {"train": Train, "analyze": Analyze, "evaluate": Evaluate, "report": Report, "export": Export, "predict": Predict,
             "prepare": Prepare, "compare": Compare, "adjust": Adjust}  # fmt: skip
    name = draws.choice(["train", "train", *kinds])
    kind = kinds[name]
    known = [
        flag
        for one in flags_of(kind, Train() if kind is Train else None)
        for flag in one.name.split(", ")
        if flag.startswith("--")
    ]
    usual: dict[str, list[Any]] = {
        "train": [*FLAGS, "--epochs", "1", "--model", "tiny", "--output", place / "new", "--no-report"],
        "compare": [*FLAGS, "--epochs", "1", "--methods", "ce", "--output", place / "new", "--no-report", "--seeds", "0"],
        "analyze": [run], "evaluate": [run, "--device", "cpu"], "report": [run, "--output", place / "page.html"],
        "export": [run, "--output", place / "model.pt2"], "predict": [run, photos / "a" / "0.png"],
        "prepare": [photos, "--output", place / "prepared"], "adjust": [run / "predictions.npz", "--on", run / "predictions.npz", "--output", place / "a.npz"],
    }  # fmt: skip
    if name == "compare":
        known = ["--methods", "--seeds", "--output", "--engine", "--jobs", "--threads", "--address"]
    if name in ("export", "compare") and draws.random() < 0.8:
        name, known = "train", [flag for one in flags_of(Train, Train()) for flag in one.name.split(", ")]
    chosen = draws.sample(known, draws.choice([1, 1, 2]))
    given: list[Any] = []
    for flag in chosen:
        pool = [
            value
            for value in NASTY
            if flag not in WORK or value in ("", "0", "-1", "nan", "x" * 5000, "1", "ä", "\x1b[2J", "2147483648")
        ]
        if flag in (
            "--model",
            "--epochs",
            "--stage2-epochs",
            "--jobs",
            "--workers",
            "--max-per-class",
            "--num-classes",
        ):
            pool = ["", "0", "-1", "nan", "ä", "x" * 500]
        if flag in ("--output", "--folder"):
            pool = [
                "/dev/null",
                "/dev/zero",
                "",
                run / "config.yaml",
                run / "results.json",
                run / "manifest.json",
                run,
                place,
                place / "a/b/c.html",
                place / "x",
                "\x00",
            ]
        given += [flag] + ([draws.choice(pool)] if draws.random() < 0.9 else [])
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file() and not path.name.startswith(".")}
    answer = command(name, *usual[name], *given, folder=place)
    after = {path: path.read_bytes() for path in run.iterdir() if path.is_file() and not path.name.startswith(".")}
    changed = [
        path.name for path, content in before.items() if after.get(path) != content and path.name != "report.html"
    ]
    for path in after.keys() - before.keys():
        path.unlink()
    return f"{name} {given}", answer, f"changes {changed}" if changed else None


def words(place: Path, run: Path, photos: Path, draws: random.Random) -> tuple[str, Answer, str | None]:
    """Words in any order."""
    commands = ["train", "fit", "compare", "evaluate", "report", "analyze", "adjust", "experiment", "prepare", "predict",
                "export", "list", "doctor", "help", "--version", "nonsense"]  # fmt: skip
    first = draws.choice(commands)
    rest = [
        draws.choice([*NASTY, "--json", "--output", "--help", "--quiet", "list", "table", "status", run / "nothing"])
        for _ in range(draws.randrange(4))
    ]
    if first in ("train", "fit", "compare"):  # without a mistake they would train for minutes
        rest += ["--no-such-flag"]
    if first == "prepare":
        rest = ["--no-such-flag", *rest]
    if first == "doctor":
        rest = ["x", *rest]
    answer = command(first, *rest, folder=place)
    return f"{first} {rest}", answer, None


# --- configurations


def configurations(place: Path, run: Path, photos: Path, draws: random.Random) -> tuple[str, Answer, str | None]:
    """A YAML file with one setting that is wrong, or one that is no YAML at all."""
    content: Any = to_dict(settings(place / "new", optim__epochs=1))
    values: list[Any] = [
        None,
        [],
        {},
        "",
        "x",
        -1,
        0,
        1.5,
        float("nan"),
        True,
        [1, [2]],
        {"a": {"b": 1}},
        "9" * 30,
        10**30,
        "evil:Evil",
        "\x1b[2J",
    ]
    where, name = content, draws.choice(list(content))
    while isinstance(where[name], dict) and where[name] and draws.random() < 0.8:
        where, name = where[name], draws.choice(list(where[name]))
    if name not in ("epochs", "model", "workers", "dataset"):
        where[name if draws.random() < 0.9 else f"{name}s"] = draws.choice(values)
    text = yaml.safe_dump(content)
    way = draws.choice(["", "", "", "cut", "garbage", "twice", "bomb", "deep", "latin", "tag"])
    data = text.encode()
    if way == "cut":
        data = data[: draws.randrange(len(data))]
    elif way == "garbage":
        data = draws.randbytes(draws.randrange(1, 200))
    elif way == "twice":
        data += b"seed: 3\n"
    elif way == "bomb":
        lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"] + [
            f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)
        ]
        data = "\n".join([*lines, f"{draws.choice(['seed', 'method', 'data', 'trackers'])}: *a8"]).encode()
    elif way == "deep":
        data = b"seed: " + b"[" * 3000 + b"]" * 3000
    elif way == "latin":
        data = "transform: \xe4\xf6".encode("latin-1")
    elif way == "tag":
        data = b"seed: !!python/object/apply:os.system ['touch PWNED']"
    path = place / "c.yaml"
    path.write_bytes(data)
    small = (
        FLAGS if way else ()
    )  # what is left of the file may leave everything to the defaults, which train for minutes
    words = ("--output", place / "new", "--device", "cpu", "--workers", "0", "--no-report", *small)
    answer = command("train", "--config", path, *words, folder=place)
    pwned = (place / "PWNED").exists()
    return f"{way} {name}", answer, "runs code" if pwned else None


def flip(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[place] ^= 4
    return bytes(changed)
