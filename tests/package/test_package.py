"""What is shipped: wheel and sdist of a clean copy of the project, and the wheel where there is nothing but the core.

The environment is empty but for spectail, torch, numpy and what these require themselves; they are linked, not copied.
"""

import email
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="wheels are built with hatchling, which comes with the extra dev")
pytest.importorskip("pip", reason="wheels are built and installed by pip")

import spectail

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INFO = f"spectail-{spectail.__version__}.dist-info"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
BUILD = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
MOST_SECONDS = 0.2  # to import the core, beyond torch and numpy


def run(*arguments, cwd, code=0):
    """A process that sees nothing of this one's paths and settings; standard output and standard error."""
    hidden = ("PYTHON", "PIP_", "SPECTAIL", "COVERAGE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {"OMP_NUM_THREADS": "1", "SPECTAIL_CACHE": str(cwd / "cache")}
    done = subprocess.run(
        [*map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


# what belongs to the project


def project_files():
    """As a fresh clone has them, with files that are new; an unpacked sdist holds nothing else anyway."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        if listed.returncode == 0:
            return sorted(name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())
    ignored = [".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split())]
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return sorted(
        path.as_posix()
        for path in found
        if not any(fnmatch.fnmatch(part, rule) for part in path.parts for rule in ignored)
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The clean copy."""
    folder = tmp_path_factory.mktemp("tree") / "spectail"
    for name in project_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def package_files(folder):
    """What must be installed, by its name in the wheel, with its content."""
    source = folder / "src"
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}


# what is built


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    expected = package_files(tree)  # read before anything is built there
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, *BUILD, "--wheel-dir", folder, tree, cwd=folder)
    (found,) = folder.iterdir()
    assert package_files(tree) == expected, "building changed the sources"
    return found


@pytest.fixture(scope="module")
def sdist(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    code = "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"  # as every builder calls it
    run(sys.executable, "-c", code, folder, cwd=tree)
    (found,) = folder.iterdir()
    return found


def content(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.message_from_bytes(content(wheel)[f"{INFO}/METADATA"])


def requirements(metadata):
    """Names of packages by extra, the core under None."""
    found = {}
    for line in metadata.get_all("Requires-Dist"):
        extra = re.search(r"extra == ['\"](.+?)['\"]", line)
        found.setdefault(extra and extra[1], set()).add(plain(re.match(r"[\w.-]+", line)[0]))
    return found


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_wheel_holds_every_file_of_the_package_and_no_other(tree, wheel):
    assert wheel.name == f"spectail-{spectail.__version__}-py3-none-any.whl"
    found, expected = content(wheel), package_files(tree)
    about = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert found.keys() == expected.keys() | about
    assert {name: found[name] for name in expected} == expected
    assert not [name for name in found if re.search(r"(^|/)(tests?|__pycache__|\..*)(/|$)|\.pyc$", name)]


def test_data_files_are_in_the_wheel(wheel):
    """Named one kind each, so that a rule that loses them in the sources too is noticed."""
    names = content(wheel).keys()
    for name in ("py.typed", "experiments/published.csv", "report/templates/page.html", "report/templates/style.css"):
        assert f"spectail/{name}" in names
    kinds = {Path(name).suffix for name in names if name.startswith("spectail/report/templates/")}
    assert kinds == {".html", ".js", ".css"}
    assert b"spectail = spectail.cli.main:main" in content(wheel)[f"{INFO}/entry_points.txt"]


def test_metadata_are_complete(metadata, wheel):
    assert metadata["Name"] == "spectail"
    assert metadata["Version"] == spectail.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert content(wheel)[f"{INFO}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert metadata["Summary"] == PROJECT["description"]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    body = metadata.get_payload(decode=True).decode("utf-8")
    assert body.strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_the_core_requires_torch_and_numpy_only(metadata):
    asked = requirements(metadata)
    assert asked[None] == {"torch", "numpy"}
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert asked["train"] >= {"torchvision", "timm", "tyro", "rich", "accelerate"}
    assert asked["cluster"] >= asked["train"] | asked["report"] | {"ray"}


def test_integrations_and_metadata_ask_for_the_same_versions(metadata):
    from spectail._utils.versions import FRAMEWORKS

    lines = [line for line in metadata.get_all("Requires-Dist") if re.search("extra == .integrations", line)]
    limits = {re.match(r"[\w.-]+", line)[0]: set(re.findall(r"(>=|!=)([\d.]+)", line)) for line in lines}
    for needs in FRAMEWORKS.values():
        assert limits[needs.packages[0]] == {(">=", needs.least), *(("!=", one) for one in needs.refused)}


def test_sdist_holds_the_whole_project(tree, sdist):
    """Enough to build, test and document: what a clone has."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert names == expected | {"PKG-INFO"}
    assert names >= {"pyproject.toml", "Makefile", "constraints.txt", "conftest.py", "README.md", "LICENSE"}


def test_the_sdist_makes_the_same_wheel(wheel, sdist, tmp_path):
    run(*PIP, *BUILD, "--wheel-dir", tmp_path / "again", sdist, cwd=tmp_path)
    (again,) = (tmp_path / "again").iterdir()
    assert again.name == wheel.name
    assert content(again) == content(wheel)


# what is installed


def closure(*names):
    """Distributions of packages and of what they require, as far as this platform has them."""
    found, waiting = {}, list(names)
    while waiting:
        name = plain(waiting.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            assert name not in names, name
            continue  # for another platform or another Python
        lines = [line for line in found[name].requires or () if not re.search(r"\bextra\s*==", line)]
        waiting += [re.match(r"[\w.-]+", line)[0] for line in lines]
    return found


class Environment:
    """A virtual environment with spectail and its core dependencies; ``present`` names all that is there."""

    def __init__(self, folder, wheel):
        self.folder = folder
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        linked, core = folder / "core", closure("torch", "numpy")
        linked.mkdir()
        for one in core.values():
            for top in {file.parts[0] for file in one.files} - {"..", "__pycache__"}:
                if not (linked / top).exists():
                    (linked / top).symlink_to(one.locate_file(top))
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = Path(self.python("-c", code)[0].strip())
        assert site.is_relative_to(folder)
        (site / "core.pth").write_text(f"{linked}\n")
        before = {path.name for path in site.iterdir()}
        run(*PIP, "--python", self.bin / "python", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
        assert {path.name for path in site.iterdir()} - before == {"spectail", INFO}
        self.present = {*core, "spectail"}

    def python(self, *arguments, code=0):
        return run(self.bin / "python", "-W", "error", *arguments, cwd=self.folder, code=code)

    def spectail(self, *arguments, code=0):
        return run(self.bin / "spectail", *arguments, cwd=self.folder, code=code)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("environment").resolve(), wheel)


def test_the_loss_works_in_an_empty_environment(environment):
    printed, _ = environment.python("-c", """
import importlib.util, pathlib, sys
import spectail
from spectail import CAR, CARLoss, ClassCounts

assert pathlib.Path(spectail.__file__).is_relative_to(sys.prefix), spectail.__file__
assert not any(map(importlib.util.find_spec, ("torchvision", "timm", "tyro", "rich", "matplotlib", "pytest")))
import torch

labels = torch.tensor([0] * 8 + [1] * 4 + [2] * 2)
criterion = CARLoss(ClassCounts.from_targets(labels))
logits = torch.randn(14, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
loss = criterion(logits, labels)
loss.backward()
assert isinstance(criterion.car, CAR) and logits.grad.abs().sum() > 0
plain = torch.nn.functional.cross_entropy(logits, labels)
print(bool(loss.detach() > plain.detach() > 0), bool(criterion.car.last.spectral_norm > 0))
""")  # fmt: skip
    assert printed == "True True\n"


def test_the_doctor_finds_the_core_working_and_the_extras_missing(environment, metadata):
    from spectail.cli.doctor import EXTRAS

    printed, warned = environment.spectail("doctor")
    assert warned == ""
    assert max(map(len, printed.splitlines())) <= 80
    said = dict(re.findall(r"^(\S.{20})(.*(?:\n {21}.*)*)", printed, re.MULTILINE))
    said = {label.strip(): " ".join(text.split()) for label, text in said.items()}
    for extra in requirements(metadata).keys() - {None}:
        assert f"pip install --upgrade 'spectail[{extra}]'" in printed
    for name in EXTRAS.values():
        assert re.match(r"not ready: packaging missing pip install", said[name])  # without it, none is complete
    assert "The core works.\n" in printed


def test_commands_that_need_an_extra_say_so_in_one_sentence(environment, metadata):
    assert "usage: spectail COMMAND" in environment.spectail("--help")[0]
    assert environment.spectail("--version")[0] == f"spectail {spectail.__version__}\n"
    printed, warned = environment.spectail("train", code=1)
    assert printed == ""
    assert re.fullmatch(r"spectail train needs the package '\w+': pip install 'spectail\[train\]'\n", warned)

    said = json.loads(environment.python("-c", """
import contextlib, io, json
from spectail.cli.main import COMMANDS, main

said = {}
for name in COMMANDS.keys() - {"doctor"}:
    with contextlib.redirect_stderr(io.StringIO()) as text:
        said[name] = [main([name]), text.getvalue()]
print(json.dumps(said))
""")[0])  # fmt: skip
    homes, asked = packages_distributions(), requirements(metadata)
    for name, (code, sentence) in said.items():
        found = re.fullmatch(rf"spectail {name} needs the package '(.*)': pip install 'spectail\[(.*)\]'\n", sentence)
        assert code == 1, name
        assert found, sentence
        assert set(map(plain, homes[found[1]])) & asked[found[2]], f"{found[2]} does not bring {found[1]}"


def test_the_core_is_imported_quickly(environment):
    """The best of several: what else the machine does can only add to it."""
    code = """
import time, numpy, torch
start = time.perf_counter()
import spectail
spectail.CAR, spectail.CARLoss, spectail.functional.soft_confusion, spectail.spectral.top_singular
print(time.perf_counter() - start)
"""
    seconds = [float(environment.python("-c", code)[0]) for _ in range(3)]
    assert min(seconds) < MOST_SECONDS, seconds
