"""`spectail doctor`: what it says of this installation, and of installations that lack something."""

import email
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import spectail
from spectail.cli import doctor, packages
from spectail.cli.main import main
from spectail.integrations import versions

SOURCE = Path(spectail.__file__).parents[1]
TORCHVISION_NOTES = doctor.torchvision_notes
CORE = {"spectail": spectail.__version__, "torch": "2.13.0+cpu", "numpy": "2.4.6"}
METADATA = """Metadata-Version: 2.4
Name: spectail
Version: 0.1.0
Requires-Dist: numpy>=1.26
Requires-Dist: torch>=2.4
Provides-Extra: dev
Requires-Dist: jinja2>=3.1; extra == 'dev'
Requires-Dist: selenium>=4.20; extra == 'dev'
Requires-Dist: types-pyyaml; extra == 'dev'
Provides-Extra: docs
Requires-Dist: jinja2>=3.1; extra == 'docs'
Requires-Dist: matplotlib>=3.8; extra == 'docs'
Requires-Dist: mkdocs<2,>=1.6; extra == 'docs'
Requires-Dist: mkdocstrings[python]>=1.0; extra == 'docs'
Provides-Extra: experiments
Requires-Dist: jinja2>=3.1; extra == 'experiments'
Requires-Dist: matplotlib>=3.8; extra == 'experiments'
Requires-Dist: optuna>=4.0; extra == 'experiments'
Requires-Dist: tyro>=0.9; extra == 'experiments'
Provides-Extra: report
Requires-Dist: jinja2>=3.1; extra == 'report'
Requires-Dist: matplotlib>=3.8; extra == 'report'
Provides-Extra: train
Requires-Dist: torchvision>=0.19; extra == 'train'
Requires-Dist: tyro>=0.9; extra == 'train'
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.delenv("CHROMEDRIVER", raising=False)


@pytest.fixture
def installation(monkeypatch, tmp_path):
    """Pretends that exactly these packages are installed, and that spectail's metadata are those above."""

    def pretend(programs=(), metadata=METADATA, **versions):
        known = CORE | {name.replace("_", "-"): found for name, found in versions.items()}

        def version(name):
            if name not in known:
                raise PackageNotFoundError(name)
            return known[name]

        class Places:
            def locate_file(self, name):
                return tmp_path / name

        monkeypatch.setattr(packages, "version", version)
        monkeypatch.setattr(packages, "metadata", lambda name: email.message_from_string(metadata))
        monkeypatch.setattr(packages, "distribution", lambda name: Places())
        monkeypatch.setattr(packages.shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
        monkeypatch.setattr(doctor, "torchvision_notes", lambda broken: [])

    return pretend


def ask(capsys, *arguments):
    """Exit code, standard output, standard error."""
    return main(["doctor", *arguments]), *capsys.readouterr()


def facts(capsys):
    code, printed, _ = ask(capsys, "--json")
    found = json.loads(printed)
    found["features"] = {one["feature"]: one for one in found["features"]}
    return code, found


# this installation


def test_it_names_what_is_installed_here(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # what torch says of GPUs has a test of its own
    code, printed, warned = ask(capsys)
    assert (code, warned) == (0, "")
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"spectail {spectail.__version__}")
    said = {line[:21].strip(): line[21:] for line in lines if line[:21].strip()}
    assert said["Python"].startswith(platform.python_version())
    assert said["torch"].startswith(torch.__version__)
    assert said["numpy"] == np.__version__
    cores = len(os.sched_getaffinity(0))
    assert said["cpu"].startswith(f"{cores} cores, threads of torch {torch.get_num_threads()}, capability ")
    assert said["core"].startswith("ready: ")
    assert lines[-2] == "The core works."
    assert "bug report" in lines[-1]
    for name, feature in (("timm", "timm"), ("torchmetrics", "torchmetrics")):
        assert said[feature] == f"ready: {name} {importlib.metadata.version(name)}"


def test_a_note_tells_of_operators_that_do_not_load(capsys):
    """By what torch itself knows of the operators, not by what the module that declares them says."""
    import spectail._utils.torchvision_ops

    del spectail._utils.torchvision_ops
    _, found = facts(capsys)
    try:
        torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
        works = True
    except NotImplementedError:
        works = False
    assert any("torchvision" in note and "This is handled" in note for note in found["notes"]) != works
    assert "torchvision" not in found["broken"]


def test_torchvision_that_does_not_import_spoils_training_only(capsys, installation, monkeypatch):
    installation(torchvision="0.28.0", tyro="1.0")
    monkeypatch.setattr(doctor, "torchvision_notes", TORCHVISION_NOTES)
    real, why = doctor.import_problem, f"does not import: {doctor.tilde(str(Path.home()))}/_C.so: undefined symbol"
    monkeypatch.setattr(doctor, "import_problem", lambda name: why if name == "torchvision" else real(name))
    code, printed, _ = ask(capsys)
    assert code == 0
    assert "The core works.\n" in printed
    joined = " ".join(printed.split())
    assert "training, commands not ready: torchvision 0.28.0 does not import: ~/_C.so: undefined symbol" in joined
    assert "This is handled" not in joined
    assert "extra train lacks 1 of 2 packages" in joined


def test_the_json_holds_what_the_page_shows(capsys, installation):
    installation(tyro="1.0", torchvision="0.28.0")
    code, found = facts(capsys)
    assert code == 0
    assert found["core_works"]
    assert (found["torch"], found["numpy"]) == ("2.13.0+cpu", "2.4.6")
    assert (found["torch_build"] == "CPU only") == (not torch.version.cuda and not torch.version.hip)
    assert found["devices"][0]["car_step"] == ""
    assert found["cache"]["chosen_by"] == "SPECTAIL_CACHE"


# packages and features


def test_missing_packages_are_named_with_the_command_that_brings_them(capsys, installation):
    installation(jinja2="3.1.6")
    code, found = facts(capsys)
    assert code == 0  # an extra may be missing
    assert found["extras"] == {
        "dev": {"packages": 3, "lacks": ["selenium", "types-pyyaml"]},
        "docs": {"packages": 4, "lacks": ["matplotlib", "mkdocs", "mkdocstrings"]},
        "experiments": {"packages": 4, "lacks": ["matplotlib", "optuna", "tyro"]},
        "report": {"packages": 2, "lacks": ["matplotlib"]},
        "train": {"packages": 2, "lacks": ["torchvision", "tyro"]},
    }
    expected = {
        "training, commands": ("train", ["torchvision", "tyro"]),
        "report page": ("report", ["jinja2", "matplotlib"]),
        "several machines": ("experiments", ["optuna"]),
        "Hugging Face": ("integrations", ["transformers"]),
        "Lightning": ("integrations", ["lightning"]),
        "torchmetrics": ("integrations", ["torchmetrics"]),
        "timm": ("integrations", ["timm"]),
        "documentation": ("docs", ["mkdocs", "mkdocstrings"]),
        "browser tests": ("dev", ["selenium", "chromium", "chromedriver"]),
    }
    assert found["features"].pop("core")["state"] == "ready"
    for name, one in found["features"].items():
        extra, names = expected.pop(name)
        assert one["state"] == "not ready", name
        assert one["fix"] == f"pip install 'spectail[{extra}]'"
        assert [package["package"] for package in one["packages"]] == names
    assert not expected


def test_the_page_shows_versions_and_commands(capsys, installation):
    installation(jinja2="3.1.6", mkdocs="2.1", mkdocstrings="0.9", matplotlib="3.8", torchvision="0.19.1", tyro="1.0")
    _, printed, _ = ask(capsys)
    assert "training, commands   ready: torchvision 0.19.1, tyro 1.0\n" in printed
    assert "report page          ready: jinja2 3.1.6, matplotlib 3.8\n" in printed
    assert "several machines     not ready: missing optuna\n" in printed
    assert "                     pip install 'spectail[experiments]'\n" in printed
    joined = " ".join(printed.split())
    assert "mkdocs 2.1 too new (1.6 or newer, older than 2), mkdocstrings 0.9 too old (1.0 or newer)" in joined
    assert "extra docs           lacks 2 of 4 packages\n" in printed


@pytest.mark.parametrize("name", ["lightning", "pytorch_lightning"])
def test_a_release_that_integrations_refuse_is_refused_here(capsys, installation, name):
    installation(**{name: "2.6.3"})
    _, printed, _ = ask(capsys)
    package = name.replace("_", "-")
    joined = " ".join(printed.split())
    assert f"Lightning not ready: {package} 2.6.3 refused: that release was published by an attacker" in joined
    assert f"pip install --upgrade {package}\n" in printed


def test_integrations_too_old_are_said_to_be(capsys, installation):
    installation(transformers="4.46.3", torchmetrics="0.11.4", timm="1.0.9")
    _, found = facts(capsys)
    verdicts = {name: one["packages"][0]["verdict"] for name, one in found["features"].items() if one["packages"]}
    assert verdicts["Hugging Face"] == verdicts["torchmetrics"] == verdicts["timm"] == "too old"
    assert found["features"]["timm"]["fix"] == "pip install --upgrade timm"
    _, printed, _ = ask(capsys)
    assert "timm 1.0.9 too old (1.0.30 or newer)" in " ".join(printed.split())


def test_timm_of_the_right_version_must_save_tasks_too(capsys, installation, tmp_path):
    """As a build of one's own may not."""
    installation(timm="1.0.30")
    _, found = facts(capsys)
    assert found["features"]["timm"]["state"] == "not ready"
    verdict = found["features"]["timm"]["packages"][0]["verdict"]
    assert verdict.endswith(": its checkpoints have no place for the state of a loss")
    (tmp_path / "timm/task").mkdir(parents=True)
    (tmp_path / "timm/task/task.py").write_text("class Task:\n    def get_task_state(self): ...\n")
    _, found = facts(capsys)
    assert found["features"]["timm"]["state"] == "ready"


@pytest.mark.parametrize("number", ["0.9", "1.0.29", "1.0.30", "1.4", "2.0", "2.6.2", "2.6.4", "4.49.0", "5.1"])
def test_it_says_of_integrations_what_they_say_themselves(capsys, installation, monkeypatch, number):
    frameworks = {name: name.replace(" ", "").lower() for name in ("Hugging Face", "Lightning", "torchmetrics", "timm")}
    installation(**dict.fromkeys(["transformers", "lightning", "torchmetrics", "timm"], number))
    monkeypatch.setattr(packages, "timm_saves_tasks", lambda: True)
    monkeypatch.setattr(versions, "version", packages.version)
    _, found = facts(capsys)
    for name, module in frameworks.items():
        try:
            versions.need(*versions.FRAMEWORKS[module])
            works = True
        except ImportError:
            works = False
        assert (found["features"][name]["state"] == "ready") == works


def test_programs_are_found_on_the_path_or_by_a_variable(capsys, installation, monkeypatch):
    installation(selenium="4.51", programs=["chromium"])
    _, found = facts(capsys)
    browser = found["features"]["browser tests"]
    assert [one["verdict"] for one in browser["packages"]] == ["works", "works", "missing"]
    assert browser["fix"] == "install Chromium and its driver, or set CHROMIUM and CHROMEDRIVER"
    _, printed, _ = ask(capsys)
    assert "browser tests        not ready: selenium 4.51, chromium; missing chromedriver\n" in printed
    installation(selenium="4.51", programs=["chromium", "some-driver"])
    monkeypatch.setenv("CHROMEDRIVER", "some-driver")
    _, found = facts(capsys)
    assert found["features"]["browser tests"]["state"] == "ready"


def test_metadata_without_an_extra_are_older_than_the_code(capsys, installation):
    installation(metadata=METADATA[: METADATA.index("Provides-Extra: docs")], spectail="0.0.9")
    code, printed, _ = ask(capsys)
    assert code == 0
    assert printed.startswith(f"spectail {spectail.__version__} (its metadata: 0.0.9)\n")
    assert "documentation        unknown\n" in printed
    assert "install spectail again: this installation does not know" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy>=1.26", (("numpy", "1.26", "", ()), "")),
        ("types-pyyaml; extra == 'dev'", (("types-pyyaml", "", "", ()), "dev")),
        ('mkdocstrings[python]>=1.0; extra == "docs"', (("mkdocstrings", "1.0", "", ()), "docs")),
        ("lightning!=2.6.2,!=2.6.3,>=2.0; extra == 'a-b'", (("lightning", "2.0", "", ("2.6.2", "2.6.3")), "a-b")),
        ("a.b (>=1,<2) ; python_version < '4' and extra == 'x'", (("a.b", "1", "2", ()), "x")),
    ],
)
def test_requirements_are_read(line, expected):
    wanted, extra = packages.parse(line)
    assert (tuple(wanted)[:4], extra) == expected


def test_requirements_are_read_as_the_library_of_installers_reads_them():
    requirement = pytest.importorskip("packaging.requirements").Requirement
    lines = importlib.metadata.requires("spectail")
    assert len(lines) > 20
    for line in lines:
        wanted, extra = packages.parse(line)
        known = requirement(line)
        limits = {(">=", wanted.least), ("<", wanted.below), *(("!=", one) for one in wanted.refused)}
        assert {limit for limit in limits if limit[1]} == {(one.operator, one.version) for one in known.specifier}
        assert wanted.name == known.name
        assert known.marker is None if not extra else known.marker.evaluate({"extra": extra})


# devices


def test_gpus_are_tried(capsys, installation, monkeypatch):
    installation()
    cards = [SimpleNamespace(name="Card A", total_memory=85e9, major=9, minor=0),
             SimpleNamespace(name="Card B", total_memory=16e9, major=7, minor=5)]  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    real = doctor.step_problem
    wrong = {"cuda:1": "no kernel image is available for execution on the device"}
    monkeypatch.setattr(
        doctor, "step_problem", lambda device: real("cpu") if device == "cpu" else wrong.get(device, "")
    )
    code, printed, _ = ask(capsys)
    assert code == 0  # the core works, on the CPU and on one of the cards
    assert "cuda:0               Card A, 85.0 GB, capability 9.0, bf16 in hardware\n" in printed
    joined = " ".join(printed.split())
    assert "Card B, 16.0 GB, capability 7.5, bf16 emulated; a step of CAR FAILS: no kernel image" in joined


def test_a_warning_of_torch_becomes_a_note(capsys, installation, monkeypatch):
    installation()

    def old_driver():
        warnings.warn("CUDA initialization: the NVIDIA driver is too old\nsecond line", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", old_driver)
    code, printed, _ = ask(capsys)
    assert code == 0
    assert "Note: CUDA initialization: the NVIDIA driver is too old\n" in printed
    assert "second line" not in printed


@pytest.mark.parametrize("fault", ["raises", "zero"])
def test_a_core_that_does_not_work_is_an_error(capsys, installation, monkeypatch, fault):
    installation()

    class Broken(torch.nn.Module):
        def __init__(self, counts):
            super().__init__()

        def forward(self, logits, target):
            if fault == "raises":
                raise RuntimeError(f"{Path.home()}/lib.so: wrong symbol")
            return 0 * logits.sum()

    monkeypatch.setattr("spectail.car_loss.CARLoss", Broken)
    code, printed, _ = ask(capsys)
    assert code == 1
    assert "The core does not work.\n" in printed
    words = {"raises": "FAILS: ~/lib.so: wrong symbol", "zero": "FAILS: the gradient is zero or not finite"}
    assert words[fault] in " ".join(printed.split())


# the cache


def test_the_cache_is_measured(capsys, installation, monkeypatch, tmp_path):
    installation()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert facts(capsys)[1]["cache"]["exists"] is False
    (tmp_path / "cache/below").mkdir(parents=True)
    (tmp_path / "cache/a").write_bytes(bytes(1_000_000))
    (tmp_path / "cache/below/b").write_bytes(bytes(2_500_000))
    _, printed, _ = ask(capsys)
    assert "cache                ~/cache (SPECTAIL_CACHE), 3.5 MB, can be written, " in printed
    assert str(tmp_path) not in printed
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "file" / "inside"))
    assert facts(capsys)[1]["cache"]["writable"] is False
    monkeypatch.delenv("SPECTAIL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert facts(capsys)[1]["cache"] | {"free": 0} == {
        "folder": "~/.cache/spectail", "chosen_by": "default", "exists": False, "size": 0, "writable": True, "free": 0,
    }  # fmt: skip


def test_a_user_without_a_home_is_told(capsys, installation, monkeypatch):
    """As in a container that runs under a number: ~ leads nowhere."""
    installation()

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SPECTAIL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    code, printed, _ = ask(capsys)
    assert code == 0
    assert "cache                not found (Could not determine home directory.)\n" in printed


# arguments, and places where little works


@pytest.mark.parametrize("arguments", [["--jsn"], ["core"], ["--json", "--verbose"]])
def test_other_options_are_refused_in_one_sentence(capsys, arguments):
    code, printed, warned = ask(capsys, *arguments)
    assert (code, printed) == (1, "")
    assert warned == f"spectail doctor: expected no option but --json or --help; got {arguments[-1]!r}.\n"


def test_help(capsys):
    code, printed, _ = ask(capsys, "--help")
    assert code == 0
    assert printed.startswith("usage: spectail doctor [--json]\n")


def bare(tmp_path, **modules):
    """`python -m spectail doctor` where some modules are replaced, and those of the command line end the process."""
    modules |= dict.fromkeys(("tyro", "rich", "yaml"), "raise SystemExit(f'{__name__} was imported')")
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, SOURCE)))}
    return subprocess.run(
        [sys.executable, "-m", "spectail", "doctor"], env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_torch_that_does_not_load_is_reported(tmp_path):
    done = bare(tmp_path, torch=f"raise OSError({str(tmp_path / 'lib/libtorch.so')!r} + ': undefined symbol')")
    assert (done.returncode, done.stderr) == (1, "")
    assert "does not import: ~/lib/libtorch.so: undefined symbol" in " ".join(done.stdout.split())
    assert str(tmp_path) not in done.stdout
    assert "No feature was looked at" in done.stdout
    assert "The core does not work.\n" in done.stdout


def test_torch_and_numpy_that_are_missing_are_reported(tmp_path):
    """-S: there is nothing but the standard library and spectail's sources."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-m", "spectail", "doctor"], env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"^torch +not installed$", done.stdout, re.MULTILINE)
    assert re.search(r"^numpy +not installed$", done.stdout, re.MULTILINE)
    assert "(its metadata: none, it is not installed)" in done.stdout
    assert re.search(r"^cache +not found \(No module named 'numpy'\)$", done.stdout, re.MULTILINE)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_torch_without_numpy_is_not_enough(tmp_path):
    done = bare(tmp_path, numpy="raise ModuleNotFoundError('No module named numpy', name='numpy')")
    assert done.returncode == 1, done.stderr
    assert re.search(r"^torch +[\d.]+", done.stdout, re.MULTILINE)
    assert re.search(r"^numpy .*not installed$", done.stdout, re.MULTILINE)
    assert "core                 not ready: " in done.stdout
    assert "pip install --upgrade torch numpy\n" in done.stdout
    assert "The core does not work.\n" in done.stdout
