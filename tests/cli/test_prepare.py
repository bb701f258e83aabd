"""`spectail prepare` as a user meets it: what it prints, what it writes, and that nothing is ever left half-written."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from data.builders import class_folders, folder_of_three, noise, write_image, write_parquet
from forked import PYTHON
from PIL import Image

import spectail
from spectail.cli.main import main
from spectail.data import Manifest, load


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache") / "spectail"
    monkeypatch.setenv("SPECTAIL_CACHE", str(folder))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)
    return folder


@pytest.fixture
def three(tmp_path):
    folder_of_three(tmp_path / "three")
    return tmp_path / "three"


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def process(python, *arguments, **kwargs):
    return subprocess.run(
        [python, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, **kwargs
    )


def leftovers(folder):
    """Temporary files and folders, which begin with a dot."""
    return list(folder.rglob(".*"))


# the command itself


def test_help_is_fast_and_does_not_import_torch():
    code = (
        "import sys; from spectail.cli.main import main; code = main(['--help']); "
        "heavy = {'torch', 'numpy', 'matplotlib', 'pyarrow', 'PIL', 'rich'} & set(sys.modules); "
        "print('heavy:', sorted(heavy)); sys.exit(code)"
    )
    start = time.perf_counter()
    done = process(sys.executable, "-c", code)
    assert time.perf_counter() - start < 3
    assert (done.returncode, done.stderr) == (0, "")
    assert "heavy: []" in done.stdout
    assert "prepare" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["-h"], ["help"]])
def test_usage(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert out.startswith("usage: spectail COMMAND")


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"spectail {spectail.__version__}\n", "")


def test_unknown_command(capsys):
    code, out, err = run(capsys, "prepair", "x")
    assert (code, out) == (2, "")
    assert "unknown command 'prepair'; did you mean 'prepare'" in err
    assert "unknown command 'zzz'; choose from train, fit, compare" in run(capsys, "zzz")[2]


def test_list(capsys):
    code, out, _ = run(capsys, "list", "datasets")
    assert code == 0
    for name in ("cifar100-lt", "imagenet-lt-exp", "inat2018", "folder:PATH", "parquet:PATH"):
        assert name in out


def test_help_of_prepare_names_every_option(capsys):
    with pytest.raises(SystemExit) as end:
        main(["prepare", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    for option in (
        "--root",
        "--imbalance",
        "--strict",
        "--expect",
        "--overwrite",
        "--json",
        "--quiet",
        "--output",
    ):
        assert option in out


def test_an_unknown_option_is_refused(capsys, three):
    with pytest.raises(SystemExit) as end:
        main(["prepare", f"folder:{three}", "--imbalence", "3"])
    assert end.value.code == 2
    assert "--imbal" in capsys.readouterr().err


# a good run


def test_prepare(capsys, tmp_path, three):
    out_folder = tmp_path / "out"
    code, out, err = run(capsys, "prepare", f"folder:{three}", "--output", out_folder, "--imbalance", 2)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in out_folder.iterdir()) == ["class_counts.png", "manifest.json"]
    manifest = Manifest.load(out_folder / "manifest.json")
    assert manifest.identity == load(f"folder:{three}", imbalance=2).manifest.identity
    rows = {line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
            for line in out.splitlines() if line.count("│") >= 5}  # fmt: skip
    assert rows["train"] == ["14", "3", "7", "3"]  # images, classes, largest, smallest: 7, 4, 3
    assert rows["test"] == ["6", "3", "2", "2"]
    assert rows["head"] == ["0", "0", "0.0%"]
    assert rows["tail"] == ["3", "14", "100.0%"]
    assert f"identity {manifest.identity}" in out
    assert f"{out_folder / 'manifest.json'} written" in out
    assert f"rank hash {manifest.ranks} (exponential, ldam-seed0)" in out
    with Image.open(out_folder / "class_counts.png") as picture:
        assert min(picture.size) > 300
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 20  # not one flat colour


def test_default_output(capsys, tmp_path, three, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "prepare", f"folder:{three}", "--quiet")[0] == 0
    assert run(capsys, "prepare", f"folder:{three}", "--imbalance", 2, "--data-seed", 3, "--quiet")[0] == 0
    assert (tmp_path / "prepared/folder-three/manifest.json").is_file()
    assert (tmp_path / "prepared/folder-three-if2-seed3/class_counts.png").is_file()


def test_again_and_other_data(capsys, tmp_path, three):
    command = ["prepare", f"folder:{three}", "--output", tmp_path / "out"]
    first = run(capsys, *command)
    again = run(capsys, *command)
    assert again[0] == 0
    assert "manifest.json the same as before" in again[1]
    assert first[1].replace("written", "the same as before").splitlines()[-1] == again[1].splitlines()[-1]
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    code, out, err = run(capsys, *command, "--imbalance", 2)
    assert code == 1
    assert "identity" not in out
    assert err.count("\n") == 1
    assert "the data differs from what" in err
    assert "images per class (19 images in all, then 14)" in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert run(capsys, *command, "--imbalance", 2, "--overwrite")[0] == 0
    assert Manifest.load(tmp_path / "out" / "manifest.json").counts.tolist() == [7, 4, 3]


def test_files_are_replaced_whole_and_never_written_over(capsys, tmp_path, three):
    """A second name of the old file shows whether its bytes were touched."""
    command = ["prepare", f"folder:{three}", "--output", tmp_path / "out", "--quiet", "--overwrite"]
    run(capsys, *command)
    before = {}
    for path in (tmp_path / "out").iterdir():
        os.link(path, tmp_path / path.name)
        before[path.name] = path.read_bytes()
    run(capsys, *command, "--imbalance", 2)
    for name, content in before.items():
        assert (tmp_path / name).read_bytes() == content
        assert (tmp_path / "out" / name).read_bytes() != content


def test_expect(capsys, tmp_path, three):
    identity = load(f"folder:{three}").manifest.identity
    command = ["prepare", f"folder:{three}", "--output", tmp_path / "out", "--quiet", "--expect"]
    for wrong in ("0" * 16, identity[:7], identity + "0", "", identity[::-1]):
        code, _, err = run(capsys, *command, wrong)
        assert code == 1
        assert identity in err
        assert "nothing was written" in err
        assert not (tmp_path / "out").exists()
    for right in (identity, identity[:8]):
        assert run(capsys, *command, right)[0] == 0
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_json(capsys, tmp_path, three):
    code, out, _ = run(capsys, "prepare", f"folder:{three}", "--output", tmp_path / "out", "--json")
    content = json.loads(out)
    assert code == 0
    assert content == json.loads((tmp_path / "out/manifest.json").read_text())
    assert content["splits"]["train"]["counts"] == [10, 6, 3]
    assert content["classes"] == ["ant", "bee", "cow"]


def test_quiet(capsys, tmp_path, three):
    code, out, err = run(capsys, "prepare", f"folder:{three}", "--output", tmp_path / "out", "--quiet")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert out.startswith("identity ")


def test_names_with_brackets_are_printed_whole(capsys, tmp_path):
    """They mean something to the library that prints."""
    folder_of_three(tmp_path / "birds [red]")
    out_folder = tmp_path / "out [bold] [" / "x]"
    code, out, _ = run(capsys, "prepare", f"folder:{tmp_path / 'birds [red]'}", "--output", out_folder)
    assert code == 0
    assert str(out_folder / "manifest.json") in out
    assert "folder-birds [red]" in out


def test_what_the_checks_found_is_said(capsys, tmp_path, three):
    (three / "test/cow/000.png").write_bytes((three / "train/ant/000.png").read_bytes())
    (three / "train/ant/001.png").write_bytes(b"broken")
    for file in (three / "test/bee").iterdir():
        file.unlink()
    (three / "test/bee").rmdir()
    code, out, _ = run(capsys, "prepare", f"folder:{three}", "--output", tmp_path / "out")
    assert code == 0
    assert "note: left out: ant/001.png" in out
    assert "1 identical images in train and test: cow/000.png (train: ant/000.png)" in out
    assert "1 classes have no test image" in out


# bad input


def touch_output(tmp_path):
    (tmp_path / "out").write_text("a file")


BAD = {
    "no data": (["folder:nowhere"], None, "nowhere does not exist"),
    "unknown set": (["cifar20-lt"], None, "did you mean 'cifar"),
    "no path": (["list:"], None, "needs a path"),
    "no root": (["tiny-imagenet-lt"], None, "needs --root"),
    "wrong root": (["imagenet-lt", "--root", "nowhere"], None, "--root nowhere does not exist"),
    "option": (["folder:three", "--num-classes", "3"], None, "--num-classes means nothing"),
    "imbalance": (["folder:three", "--imbalance", "0.01"], None, "Did you mean 100"),
    "impossible": (["folder:three", "--imbalance", "1000"], None, "with no image"),
    "groups": (["folder:three", "--groups", "ranges"], None, "'ranges' convention exists for"),
    "val": (["folder:three", "--val-per-class", "5"], None, "leaves class"),
    "output is a file": (["folder:three"], touch_output, "out"),
    "list": (["list:bad.txt"], lambda p: (p / "bad.txt").write_text("x.png 0\nnothing\n"), r"bad\.txt line 2"),
    "overflow": (["list:bad.txt"], lambda p: (p / "bad.txt").write_text("x.png 0\ny.png " + "9" * 30), r"bad\.txt"),
    "far apart": (["list:bad.txt"], lambda p: (p / "bad.txt").write_text("x.png 0\ny.png " + "9" * 17), r"bad\.txt"),
    "parquet": (
        ["parquet:bad.parquet"],
        lambda p: (p / "bad.parquet").write_text("PAR1 no"),
        "cannot be read as parquet",
    ),
    "broken": (
        ["folder:three", "--strict"],
        lambda p: (p / "three/train/ant/000.png").write_bytes(b"no"),
        r"ant/000\.png",
    ),
    "all large broken": (
        ["parquet:big.parquet", "--in-memory", "no"],
        lambda p: write_parquet(p / "big.parquet", [b"no"] * 12, [0, 1] * 6),
        "cannot be read",
    ),
    "manifest": (
        ["folder:three"],
        lambda p: ((p / "out").mkdir(), (p / "out/manifest.json").write_text("{")),
        "cannot be read as a manifest",
    ),
    "manifest null": (
        ["folder:three"],
        lambda p: ((p / "out").mkdir(), (p / "out/manifest.json").write_text("null")),
        "cannot be read as a manifest",
    ),
}


@pytest.mark.parametrize(("arguments", "make", "message"), BAD.values(), ids=list(BAD))
def test_bad_input(capsys, tmp_path, three, cache, monkeypatch, arguments, make, message):
    monkeypatch.chdir(tmp_path)
    if make:
        make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run(capsys, "prepare", *arguments, "--output", "out")
    assert code == 1
    assert err.startswith("spectail prepare: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "Errno" not in err
    assert re.search(message, err), err
    assert sorted(tmp_path.rglob("*")) == before
    assert leftovers(cache) == []


def test_a_real_process_says_one_sentence(tmp_path):
    done = process(PYTHON, "-m", "spectail", "prepare", "folder:nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "spectail prepare: folder:nowhere: nowhere does not exist; expected one folder per class in it.\n"
    )


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("SPECTAIL_DEBUG", "1")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        main(["prepare", "folder:nowhere"])


def test_interrupted(capsys, tmp_path, three, cache, monkeypatch):
    """Ctrl-C while the picture is drawn: the temporary file vanishes."""
    from matplotlib.figure import Figure

    def stop(self, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", stop)
    code, _, err = run(capsys, "prepare", f"folder:{three}", "--output", tmp_path / "out")
    assert code == 130
    assert "stopped" in err
    assert leftovers(tmp_path / "out") == leftovers(cache) == []


COMMAND = """
import os, sys
from spectail.cli.main import main
print(os.getpid(), flush=True)
sys.exit(main(sys.argv[1:]))
"""


def start(arguments, kill_after=None):
    """The exit status of the command in a process of its own, and how long it took."""
    begun = time.perf_counter()
    process = subprocess.Popen([PYTHON, "-c", COMMAND, *map(str, arguments)], stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    if kill_after is not None:
        time.sleep(kill_after)
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(child, signal.SIGKILL)
    process.communicate(timeout=120)
    return process.returncode, time.perf_counter() - begun


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_kill_in_the_middle(tmp_path, cache, capsys, kind):
    """Whatever the moment: no half-written manifest, and the next run succeeds with the right data."""
    if kind == "folder":
        array = noise(1, 48)[0]
        for k in range(1000):
            array[0, 0] = k % 256, k // 256, 0
            write_image(tmp_path / f"data/train/{'ab'[k % 2]}/{k}.png", array)
        class_folders(tmp_path / "data/test", {"a": 2, "b": 2}, side=48)
    else:
        pictures = noise(100, 100)
        write_parquet(tmp_path / "data/train.parquet", pictures, [0, 1] * 50, row_group_size=20)
        write_parquet(tmp_path / "data/test.parquet", pictures[:10], [0, 1] * 5)
    out = tmp_path / "out"
    command = ["prepare", f"{kind}:{tmp_path / 'data'}", "--output", out, "--overwrite", "--quiet"]
    status, whole = start(command)
    assert status == 0
    wanted = Manifest.load(out / "manifest.json").identity
    killed = 0
    for part in np.random.default_rng(1).permutation([0.2, 0.5, 0.8]):
        for path in [*cache.rglob("*"), *out.rglob("*")]:
            if path.is_file():
                path.unlink()
        killed += start(command, kill_after=whole * part)[0] == -signal.SIGKILL
        if (out / "manifest.json").exists():
            assert Manifest.load(out / "manifest.json").identity == wanted
        if (out / "class_counts.png").exists():
            with Image.open(out / "class_counts.png") as picture:
                picture.load()
        assert run(capsys, *command)[0] == 0
        assert Manifest.load(out / "manifest.json").identity == wanted
    assert killed >= 1  # a busy machine shifts the moments


def test_two_at_once(tmp_path, three):
    command = [
        PYTHON,
        "-m",
        "spectail",
        "prepare",
        f"folder:{three}",
        "--output",
        str(tmp_path / "out"),
        "--quiet",
    ]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], results
    assert len({out.split()[1] for out, _ in results}) == 1
    assert [err for _, err in results] == ["", ""]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["class_counts.png", "manifest.json"]
