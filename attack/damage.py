"""Damage: every file of a run, a checkpoint, a store and the cache is cut, flipped, emptied, replaced or removed.

Noticed means a sentence that names the file, a note, or what is made again; harmless, that the answer is as before.
"""

import json
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from training.runs import FLAGS, Stop, StopAt, assert_same, settings

from spectail.training.loop import train

from .cases import Answer, Row, command, leftovers

READERS = {
    "evaluate": lambda run: ("evaluate", run, "--device", "cpu", "--json"),
    "report": lambda run: ("report", run, "--output", run.parent / "page.html"),
    "analyze": lambda run: ("analyze", run, "--json"),
    "resume": lambda run: (
        "train",
        *FLAGS,
        "--model",
        "tiny",
        "--lr",
        "0.01",
        "--output",
        run,
        "--resume",
        "--json",
        "--no-report",
    ),
}
READ_BY = {
    "config.yaml": ("evaluate", "report", "resume"),
    "manifest.json": ("evaluate", "report"),
    "metrics.jsonl": ("report",),
    "results.json": ("report", "resume"),
    "predictions.npz": ("analyze", "report"),
    "model.safetensors": ("evaluate",),
    "digests.json": ("evaluate", "report", "resume", "analyze"),
}


def ways(content: bytes, draws: random.Random) -> Iterator[tuple[str, bytes | None]]:
    """Ways to damage a file; None removes it."""
    place = draws.randrange(max(len(content), 1))
    flipped = bytearray(content)
    flipped[place] ^= 1 << draws.randrange(8)
    yield f"flipped at {place}", bytes(flipped)
    yield "cut", content[: draws.randrange(max(len(content), 1))]
    yield "last byte lost", content[:-1]
    yield "emptied", b""
    yield "removed", None
    for text in (b"null", b"{}", b"[1]", bytes(64), b"\xff\xfe oops"):
        yield f"replaced by {text[:8]!r}", text
    yield "doubled", content + content


def attack(row: Row, work: Path, seed: int, rounds: int) -> None:
    draws = random.Random(seed)
    config = settings(work / "whole")
    train(config)
    for _ in range(rounds):
        finished_run(row, work, config.output, draws)
        stopped_run(row, work, draws)
        cache(row, work, draws)
        store(row, work, draws)


def finished_run(row: Row, work: Path, whole: Path, draws: random.Random) -> None:
    run = work / "run"
    answers = {}
    for reader, words in READERS.items():
        shutil.copytree(whole, run)
        answers[reader] = figures(command(*words(run)))
        shutil.rmtree(run)
    for name, readers in READ_BY.items():
        for way, content in ways((whole / name).read_bytes(), draws):
            for reader in readers:
                shutil.copytree(whole, run)
                write(run / name, content)
                answer = command(*READERS[reader](run))
                row.add(f"{name} {way}, {reader}", judged(answer, answers[reader], name))
                shutil.rmtree(run)


def figures(answer: Answer) -> object:
    """What a command says, without times."""
    try:
        content = json.loads(answer.out)
    except ValueError:
        return answer.code
    if isinstance(content, dict):
        content.pop("seconds", None)
    return content


def judged(answer: Answer, usual: object, name: str) -> str | None:
    if answer.fault is not None:
        return answer.fault
    if answer.code:
        named = name in answer.err or "digests.json" in answer.err or "holds no finished run" in answer.err
        return None if named else f"does not name {name}: {answer.err.strip()[:200]}"
    if figures(answer) != usual:
        return "silent: other figures"
    whole = name in ("digests.json", "results.json")  # what is read is right, or was made again from a checkpoint
    return None if whole or "note:" in answer.err else "silent"


def stopped_run(row: Row, work: Path, draws: random.Random) -> None:
    """A run that was stopped: what is left of it is damaged, and it goes on to the same end, or says why not."""
    changes = {"method": "car", "checkpoint_every": 1, "model__model": "tiny-dropout"}
    train(settings(work / "to-the-end", **changes))
    stopped = work / "stopped"
    try:
        train(settings(stopped, **changes), reporter=StopAt(steps=7))
    except Stop:
        pass
    newest = sorted((stopped / "checkpoints").iterdir())[-1]
    targets = [newest / "state.pt", newest / "rank-0.pt", newest / "digests.json", stopped / "metrics.jsonl",
               stopped / "config.yaml", stopped / "manifest.json", stopped / "digests.json"]  # fmt: skip
    for target in targets:
        for way, content in ways(target.read_bytes(), draws):
            copy = work / "again"
            shutil.copytree(stopped, copy)
            write(copy / target.relative_to(stopped), content)
            fault = None
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                torch.manual_seed(draws.randrange(1000))
                try:
                    train(settings(copy, **changes), resume=True)
                    assert_same(work / "to-the-end", copy)
                except ValueError as error:
                    named = target.name in str(error) or "digests.json" in str(error) or str(copy) in str(error)
                    fault = None if named else f"does not name it: {error}"
                except AssertionError as error:
                    fault = f"silent: another end ({str(error)[:100]})"
                except Exception as error:
                    fault = f"raises {type(error).__name__}: {error}"
            left = leftovers(copy)
            row.add(f"{target.relative_to(stopped)} {way}, resumed", fault or (f"leaves {left}" if left else None))
            shutil.rmtree(copy)
    for folder in ("to-the-end", "stopped"):
        shutil.rmtree(work / folder)


def cache(row: Row, work: Path, draws: random.Random) -> None:
    """Features and pixels that are kept: damaged, they are made again."""
    before = os.environ["SPECTAIL_CACHE"]
    os.environ["SPECTAIL_CACHE"] = str(work / "own-cache")
    changes = {"probe": True, "method": "car"}
    train(settings(work / "probe", **changes))
    for path in sorted((work / "own-cache").rglob("*")):
        if not path.is_file():
            continue
        whole = path.read_bytes()
        for way, content in ways(whole, draws):
            write(path, content)
            fault = None
            try:
                train(settings(work / "probe-again", **changes))
                assert_same(work / "probe", work / "probe-again")
            except AssertionError:
                fault = "silent: other results"
            except Exception as error:
                fault = f"raises {type(error).__name__}: {error}"
            row.add(f"cache {path.suffix} {way}", fault)
            shutil.rmtree(work / "probe-again", ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(whole)
    shutil.rmtree(work / "probe")
    shutil.rmtree(work / "own-cache")
    os.environ["SPECTAIL_CACHE"] = before


def store(row: Row, work: Path, draws: random.Random) -> None:
    """The index of results: damaged, it says so, or shows the results it had."""
    from spectail.experiments.index import Index, Record

    path = work / "runs.sqlite"
    with Index(path, write=True) as index:
        for number in range(40):
            index.put(Record(f"{number:04}", {"name": f"n{number}", "code": "1"}, "done", results={"overall": number}))
        usual = [(record.key, record.results) for record in index.records()]
    whole = path.read_bytes()
    for way, content in ways(whole, draws):
        if content is None:
            continue
        write(path, content)
        fault = None
        try:
            with Index(path) as index:
                found = [(record.key, record.results) for record in index.records()]
            fault = None if found == usual else "silent: other records"
        except (ValueError, OSError):
            pass
        except Exception as error:
            fault = f"raises {type(error).__name__}: {error}"
        row.add(f"store {way}", fault)
    for cell in ("[1]", "{", "null", '{"a": ', "x", '"text"'):
        path.write_bytes(whole)
        import sqlite3

        connection = sqlite3.connect(path)
        connection.execute("UPDATE cells SET results = ? WHERE key = '0007'", (cell,))
        connection.commit()
        connection.close()
        fault = "silent: nobody says that a record is damaged"
        try:
            with Index(path) as index:
                found = [(record.key, record.results) for record in index.records()]
            fault = None if len(found) >= 39 and cell in ("null",) else fault
        except (ValueError, OSError) as error:
            fault = None if "0007" in str(error) or str(path) in str(error) else f"does not name it: {error}"
        except Exception as error:
            fault = f"raises {type(error).__name__}: {error}"
        row.add(f"store, a cell of {cell}", fault)
    path.unlink()


def write(path: Path, content: bytes | None) -> None:
    path.unlink() if content is None else path.write_bytes(content)
