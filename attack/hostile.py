"""Files, names and paths of somebody who means harm: no code of theirs may run, no file outside be touched."""

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import yaml
from training.runs import FLAGS, Stop, StopAt, settings

from spectail.training.loop import train

from .cases import Row, command
from .pictures import make_photos

NAMES = ("=HYPERLINK(\"http://x\")", "@SUM(1+1)", "-2+3", "+1-1|cmd", "\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "<img src=x onerror=x()>",
         "</script><script>x()", "$(touch PWNED)", "`touch PWNED`", "a|b", "\\input{/etc/passwd}", "[x](javascript:x)", "\u202egnp.exe", "{{7*7}}", "%s%n",
         "'; DROP TABLE cells; --", "a\nb", "\t=1", "NUL", "con", "..", "a/b", "${jndi:x}")  # fmt: skip


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    mark = work / "PWNED"
    run = work / "run"
    train(settings(run))
    usual = ("train", *FLAGS, "--model", "tiny", "--epochs", "1", "--no-report", "--output", work / "new")

    def case(name: str, *words: object, harmless: bool = False) -> None:
        before = snapshot(work)
        answer = command(*words, folder=work)
        fault = answer.fault or ("runs code" if mark.exists() else None)
        changed = [path for path, digest in before.items() if digest != snapshot(work).get(path)]
        if changed:
            fault = fault or f"changes {changed[0]}"
        row.add(name, fault)
        mark.unlink(missing_ok=True)
        shutil.rmtree(work / "new", ignore_errors=True)

    pickles(case, work, run, usual, mark)
    configurations(case, work, run, usual, mark)
    paths(case, work, run, usual)
    checkpoints(row, work, mark)
    archives(case, work, usual)
    names(row, work, random.Random(seed))


def pickles(case: Callable[..., None], work: Path, run: Path, usual: tuple[object, ...], mark: Path) -> None:
    evil = pickle.dumps(Evil(mark))
    (work / "a.pth").write_bytes(evil)
    torch.save({"state_dict": Evil(mark)}, work / "b.pth")
    torch.save({"weight": torch.ones(2), "x": Evil(mark)}, work / "c.pt")
    shutil.copy(work / "a.pth", work / "d.safetensors")
    for name in ("a.pth", "b.pth", "c.pt", "d.safetensors"):
        case(f"--init {name}", *usual, "--init", work / name)
    np.save(work / "o.npy", np.array([Evil(mark)], dtype=object), allow_pickle=True)
    np.savez(work / "o.npz", labels=np.array([Evil(mark)], dtype=object), logits=np.zeros((1, 2)), allow_pickle=True)
    (work / "p.npy").write_bytes(evil)
    (work / "p.npz").write_bytes(evil)
    (work / "p.parquet").write_bytes(evil)
    for name in ("o.npy", "p.npy", "o.npz", "p.npz", "p.parquet"):
        case(f"analyze {name}", "analyze", work / name, "--scores", work / "o.npy")
        case(
            f"features {name}",
            "train",
            f"features:{work / name}",
            "--epochs",
            "1",
            "--output",
            work / "new",
            "--device",
            "cpu",
        )
    for name in ("model.safetensors", "predictions.npz", "adjustment.json", "digests.json"):
        copy = work / "stranger"
        shutil.copytree(run, copy)
        (copy / "digests.json").unlink()
        (copy / name).write_bytes(evil)
        for words in (
            ("evaluate", copy, "--device", "cpu"),
            ("analyze", copy),
            ("report", copy, "--output", work / "new" / "p.html"),
        ):
            case(f"{words[0]}, {name} is a pickle", *words)
        shutil.rmtree(copy)


def configurations(case: Callable[..., None], work: Path, run: Path, usual: tuple[object, ...], mark: Path) -> None:
    (work / "evilmod.py").write_text(f"import os\nos.system('touch {mark}')\nclass Evil: pass\n")
    sys.path.insert(0, str(work))
    try:
        texts = {
            "method": "method: evilmod:Evil", "tag": f"seed: !!python/object/apply:os.system ['touch {mark}']",
            "tag 2": "x: !!python/name:os.system", "method in a list": "method: [evilmod:Evil]", "base": "method: evilmod.sub:Evil",
            "model": "model: {model: 'hf-hub:evil/model'}", "model 2": "model: {model: 'local-dir:/tmp/x'}", "init": "model: {init: evilmod.py}",
            "trackers": "trackers: [evilmod]", "transform": "transform: evilmod:Evil", "dataset": "data: {dataset: 'parquet:evilmod.py'}",
        }  # fmt: skip
        for name, text in texts.items():
            (work / "c.yaml").write_text(text)
            case(f"--config, {name}", "train", "--config", work / "c.yaml", *usual[1:])
        copy = work / "stranger"
        for file, change in {
            "config.yaml": {"method": "evilmod:Evil"},
            "results.json": {"method": "evilmod:Evil", "car": {"preset": "x"}},
        }.items():
            shutil.copytree(run, copy)
            (copy / "digests.json").unlink()
            content = yaml.safe_load((copy / file).read_text()) | change
            (copy / file).write_text(json.dumps(content))
            for words in (("evaluate", copy), ("report", copy, "--output", work / "new" / "p.html"), ("predict", copy, copy / "x.png"),
                          ("export", copy, "--output", work / "new" / "m.pt2"), ("train", *FLAGS, "--output", copy, "--resume"),
                          ("train", *FLAGS, "--method", "crt", "--stage1", copy, "--output", work / "new")):  # fmt: skip
                case(f"{words[0]}, {file} of a stranger", *words)
            shutil.rmtree(copy)
    finally:
        sys.path.remove(str(work))
        sys.modules.pop("evilmod", None)


def paths(case: Callable[..., None], work: Path, run: Path, usual: tuple[object, ...]) -> None:
    outside = work / "outside.txt"
    outside.write_text("mine")
    for name in ("config.yaml", "manifest.json", "results.json", "predictions.npz", "model.safetensors", "metrics.jsonl", "digests.json",
                 "../run/config.yaml", "checkpoints/x.html", "CONFIG.YAML"):  # fmt: skip
        case(f"report --output RUN/{name}", "report", run, "--output", run / name)
        case(f"analyze --output RUN/{name}", "analyze", run, "--output", run / name)
    for stem in ("manifest", "results", "digests"):
        case(f"export --output RUN/{stem}.pt2", "export", run, "--output", run / f"{stem}.pt2")
    for target in ("/dev/null", "/dev/full", "/proc/self/mem", str(run)):
        case(f"report --output {target}", "report", run, "--output", target)
    os.symlink(outside, work / "link.html")
    case("report into a link", "report", run, "--output", work / "link.html")
    os.mkfifo(work / "pipe.html")
    case("report into a pipe", "report", run, "--output", work / "pipe.html")
    case("--config is a pipe", "train", "--config", work / "pipe.html", *usual[1:])
    case("--adjust is a pipe", "evaluate", run, "--adjust", work / "pipe.html")
    case("analyze a pipe", "analyze", work / "pipe.html")
    case("analyze a device", "analyze", "/dev/zero")
    for planted in ("metrics.jsonl", "checkpoints", "config.yaml", "results.json"):
        folder = work / "planted"
        folder.mkdir()
        os.symlink(outside, folder / planted)
        case(f"a planted link {planted}", *usual[:-1], folder)
        shutil.rmtree(folder)
    proj = work / "proj"
    (proj / "checkpoints" / "step-00010000").mkdir(parents=True)
    (proj / "checkpoints" / "step-00010000" / "weights.bin").write_text("mine")
    case("a folder of somebody", *usual[:-1], proj)
    case("a folder of somebody, --resume", *usual[:-1], proj, "--resume")
    for path in ("../../etc/passwd", "/etc/passwd", "a/../../outside.txt"):
        (work / "list.txt").write_text(f"{path} 0\n" * 4 + f"{path} 1\n" * 4)
        case(f"a list with {path}", "prepare", f"list:{work / 'list.txt'}", "--output", work / "new")


def checkpoints(row: Row, work: Path, mark: Path) -> None:
    """A stranger's checkpoint whose digests are right."""
    contents = {"pickle": Evil(mark), "empty": {}, "list": [1], "text": "x", "other fields": {"learner": 1, "progress": 2, "optimizer": 3},
                "other shapes": {"learner": {"a": torch.ones(3)}, "progress": {"stage": 7}, "optimizer": {}}}  # fmt: skip
    for name, content in contents.items():
        output = work / "resumed"
        try:
            train(settings(output, checkpoint_every=1), reporter=StopAt(steps=4))
        except Stop:
            pass
        newest = sorted((output / "checkpoints").iterdir())[-1]
        torch.save(content, newest / "state.pt")
        known = json.loads((newest / "digests.json").read_text())
        known["files"]["state.pt"] = hashlib.sha256((newest / "state.pt").read_bytes()).hexdigest()
        (newest / "digests.json").write_text(json.dumps(known))
        fault = "is taken"
        try:
            train(settings(output, checkpoint_every=1), resume=True)
        except ValueError as error:
            fault = None if "is no checkpoint of this run" in str(error) else str(error)
        except Exception as error:
            fault = f"raises {type(error).__name__}: {error}"
        row.add(f"checkpoint, {name}", "runs code" if mark.exists() else fault)
        mark.unlink(missing_ok=True)
        shutil.rmtree(output)


def archives(case: Callable[..., None], work: Path, usual: tuple[object, ...]) -> None:
    """CIFAR archives that lead out of their folder, and an .npz that claims terabytes."""
    root = work / "cifar"
    root.mkdir()
    with tarfile.open(root / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name in ("../outside.txt", "/tmp/outside-of-attack.txt", "cifar-100-python/train"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"evil"))
    case("a tar that leads out", "prepare", "cifar100-lt", "--root", root, "--output", work / "new")
    header = (
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 2), }".ljust(127)
        + b"\n"
    )
    (work / "big.npy").write_bytes(header)
    with zipfile.ZipFile(work / "big.npz", "w") as archive:
        archive.writestr("labels.npy", header)
        archive.writestr("logits.npy", header)
    case("an .npz of terabytes", "analyze", work / "big.npz")
    case("an .npy of terabytes", "analyze", work / "big.npy", "--scores", work / "big.npy")
    with zipfile.ZipFile(work / "locked.npz", "w") as archive:
        archive.writestr("labels.npy", b"x")
        archive.filelist[0].flag_bits |= 1
    case("an encrypted .npz", "analyze", work / "locked.npz")


def names(row: Row, work: Path, draws: random.Random) -> None:
    """Class names in every output: no cell is a formula, no code reaches the terminal, no markup is live."""
    labels = [name.replace("/", "-").replace("\x00", "") for name in NAMES]
    rows = [(name, name) for name in labels] + [(name, draws.choice(labels)) for name in labels]
    np.savez(
        work / "names.npz", labels=np.array([one for one, _ in rows]), predicted=np.array([two for _, two in rows])
    )
    for ending in (".csv", ".md", ".tex", ".json", ".html"):
        answer = command("analyze", work / "names.npz", "--output", work / f"out{ending}", "--top", "50")
        fault = answer.fault or (f"exit code {answer.code}: {answer.err}" if answer.code else None)
        if any(code in answer.out + answer.err for code in ("\x1b", "\x9b", "\u202e", "\x07")):
            fault = fault or "a code reaches the terminal"
        text = (work / f"out{ending}").read_text() if not fault else ""
        if ending == ".csv":
            import csv

            for cells in csv.reader(io.StringIO(text)):
                live = [cell for cell in cells if cell.lstrip()[:1] in ("=", "+", "@", "-") and not is_number(cell)]
                fault = fault or (f"a live cell {live[0]!r}" if live else None)
        if ending == ".md" and ("<img" in text.replace("\\<img", "") or "<script" in text.replace("\\<script", "")):
            fault = fault or "live markup"
        if ending == ".tex" and "\\input{" in text:
            fault = fault or "a live command"
        if ending not in {".json", ".html"} and "\x1b" in text:
            fault = fault or "an escape in the file"
        row.add(f"names in {ending}", fault)
    photos = make_photos(work / "named", draws, classes="ab")
    (photos / "a").rename(photos / "\x1b]0;x\x07=1+1")
    answer = command("prepare", photos, "--output", work / "new")
    row.add(
        "names of folders",
        answer.fault or ("a code reaches the terminal" if "\x1b" in answer.out + answer.err else None),
    )
    answer = command("prepare", work / "no\x1b[2Jthing")
    row.add(
        "a path with a code",
        answer.fault or ("a code reaches the terminal" if "\x1b" in answer.out + answer.err else None),
    )
    answer = command("train", "--no\x1b[2Jthing")
    row.add(
        "a flag with a code",
        answer.fault or ("a code reaches the terminal" if "\x1b" in answer.out + answer.err else None),
    )


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def snapshot(work: Path) -> dict[str, str]:
    """Every file but those that a command may write."""
    skip = (work / "new", work / "cache")
    found = {}
    for path in work.rglob("*"):
        if (
            path.is_file()
            and not path.is_symlink()
            and not any(path.is_relative_to(one) for one in skip)
            and ".lock" not in path.name
        ):
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
