"""`spectail doctor`: what it says of this installation, and of installations that lack something."""

import email
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import spectail
from spectail._utils.versions import pip_install
from spectail.cli import doctor
from spectail.cli.main import main

SOURCE = Path(spectail.__file__).parents[1]
TORCHVISION_NOTES = doctor.torchvision_notes
CORE = {"spectail": spectail.__version__, "torch": "2.13.0+cpu", "numpy": "2.4.6", "packaging": "26.3"}
METADATA = """Metadata-Version: 2.4
Name: spectail
Version: 0.1.0
Requires-Dist: numpy>=1.26
Requires-Dist: torch>=2.4
Requires-Dist: jinja2>=3.1; extra == 'dev'
Requires-Dist: types-pyyaml; extra == 'dev'
Requires-Dist: matplotlib>=3.8; extra == 'docs'
Requires-Dist: mkdocs<2,>=1.6; extra == 'docs'
Requires-Dist: mkdocstrings[python]>=1.0; extra == 'docs'
Requires-Dist: ray>=2.50; extra == 'cluster'
Requires-Dist: tyro>=0.9; extra == 'cluster'
Requires-Dist: lightning!=2.6.2,!=2.6.3,>=2.0; extra == 'integrations'
Requires-Dist: torchmetrics>=1.4; extra == 'integrations'
Requires-Dist: timm>=1.0.30; extra == 'integrations'
Requires-Dist: timm>=1.0; extra == 'integrations'
Requires-Dist: jinja2>=3.1; extra == 'report'
Requires-Dist: matplotlib>=3.8; extra == 'report'
Requires-Dist: torchvision>=0.19; extra == 'train'
Requires-Dist: tyro>=0.9; extra == 'train'
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def installation(monkeypatch):
    """Pretends that exactly these packages are installed, and that spectail's metadata are those above."""

    def pretend(metadata=METADATA, **packages):
        known = CORE | {name.replace("_", "-"): number for name, number in packages.items()}

        monkeypatch.setattr(doctor, "installed", known.get)
        monkeypatch.setattr(doctor, "metadata", lambda name: email.message_from_string(metadata))
        monkeypatch.setattr(doctor, "torchvision_notes", lambda broken: [])

    return pretend


def ask(capsys, *arguments):
    """Exit code, standard output, standard error."""
    return main(["doctor", *arguments]), *capsys.readouterr()


def rows(printed):
    """Text by label, lines that belong together joined."""
    found, label = {}, None
    for line in printed.splitlines():
        label = line[:21].strip() or label
        found[label] = f"{found.get(label, '')} {line[21:]}".strip()
    return found


def joined(text):
    return " ".join(text.split())


# this installation


def test_it_names_what_is_installed_here(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # what torch says of GPUs has a test of its own
    code, printed, warned = ask(capsys)
    assert (code, warned) == (0, "")
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    said = {line[:21].strip(): line[21:] for line in lines if line[:21].strip()}
    assert said["spectail"].startswith(spectail.__version__)
    assert said["Python"].startswith(platform.python_version())
    assert said["torch"].startswith(torch.__version__)
    assert said["numpy"] == np.__version__
    assert said["cpu"].startswith(f"{torch.get_num_threads()} threads of torch (")
    assert lines[-2] == "The core works."
    assert "bug report" in lines[-1]
    assert f"timm {importlib.metadata.version('timm')}" in joined(printed)


def test_a_note_tells_of_operators_that_do_not_load(capsys):
    """By what torch itself knows of the operators, not by what the module that declares them says."""
    import spectail._utils.torchvision_ops

    del spectail._utils.torchvision_ops
    _, printed, _ = ask(capsys)
    try:
        torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
        works = True
    except NotImplementedError:
        works = False
    assert ("Note: the compiled operators of torchvision" in printed and "This is handled" in printed) != works
    assert rows(printed)["training, commands"].startswith("ready: ")


def test_torchvision_that_does_not_import_spoils_training_only(capsys, installation, monkeypatch):
    installation(torchvision="0.28.0", tyro="1.0")
    monkeypatch.setattr(doctor, "torchvision_notes", TORCHVISION_NOTES)
    real = doctor.import_module

    def broken(name):
        if name == "torchvision":
            raise OSError(f"{Path.home()}/_C.so: undefined symbol")
        return real(name)

    monkeypatch.setattr(doctor, "import_module", broken)
    code, printed, _ = ask(capsys)
    assert code == 0
    assert "The core works.\n" in printed
    expected = "training, commands not ready: torchvision 0.28.0 does not import: ~/_C.so: undefined symbol, tyro 1.0"
    assert expected in joined(printed)
    assert "This is handled" not in joined(printed)


# packages and features


def test_missing_packages_are_named_with_the_command_that_brings_them(capsys, installation):
    installation(jinja2="3.1.6")
    code, printed, _ = ask(capsys)
    assert code == 0  # an extra may be missing
    assert "\nThe core works.\n" in printed
    expected = {
        "training, commands": ("train", "torchvision missing, tyro missing"),
        "report page": ("report", "jinja2 3.1.6, matplotlib missing"),
        "several machines": ("cluster", "ray missing, tyro missing"),
        "integrations": ("integrations", "lightning missing, torchmetrics missing, timm missing"),
        "documentation": ("docs", "matplotlib missing, mkdocs missing, mkdocstrings missing"),
        "development": ("dev", "types-pyyaml missing"),  # jinja2 works and was named above
    }
    found = rows(printed)
    assert {name: found[name] for name in expected} == {
        name: f"not ready: {packages} {pip_install(extra, upgrade=True)}"
        for name, (extra, packages) in expected.items()
    }


def test_the_page_shows_versions_and_commands(capsys, installation):
    installation(
        jinja2="3.1.6", mkdocs="2.1", mkdocstrings="0.9", matplotlib="3.8", torchvision="0.19.1", tyro="1.0rc1",
        lightning="2.6.3", torchmetrics="1.4", timm="1.0.9",
    )  # fmt: skip
    _, printed, _ = ask(capsys)
    assert "training, commands   ready: torchvision 0.19.1, tyro 1.0rc1\n" in printed
    assert "report page          ready: jinja2 3.1.6, matplotlib 3.8\n" in printed
    assert "several machines     not ready: ray missing\n" in printed
    assert f"                     {pip_install('cluster', upgrade=True)}\n" in printed
    assert "mkdocs 2.1 not <2,>=1.6, mkdocstrings 0.9 not >=1.0" in joined(printed)
    integrations = "lightning 2.6.3 not !=2.6.2,!=2.6.3,>=2.0, torchmetrics 1.4, timm 1.0.9 not >=1.0.30"
    assert f"integrations not ready: {integrations} pip install" in joined(printed)


def test_what_the_metadata_of_this_project_ask_for_is_there(capsys):
    """The environment of the tests has the extra dev, so each of its packages must be found to fit."""
    found = rows(ask(capsys)[1])
    assert all(found[name].startswith("ready: ") for name in ("training, commands", "report page", "development"))


def test_metadata_without_an_extra_are_older_than_the_code(capsys, installation):
    installation(metadata="\n".join(METADATA.splitlines()[:5]), spectail="0.0.9")
    code, printed, _ = ask(capsys)
    assert code == 0
    assert printed.startswith(f"spectail             {spectail.__version__} (its metadata: 0.0.9)\n")
    assert "documentation not ready: spectail must be installed again: its metadata do not name" in joined(printed)
    assert max(map(len, printed.splitlines())) <= 80


# devices


def test_gpus_are_tried(capsys, installation, monkeypatch):
    installation()
    cards = [SimpleNamespace(name="Card A", total_memory=85e9, major=9, minor=0),
             SimpleNamespace(name="Card B", total_memory=16e9, major=7, minor=5)]  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    monkeypatch.setattr("torch.utils.collect_env.get_nvidia_driver_version", lambda run: "580.95")
    real = doctor.take_step

    def take_step(device):
        if device == "cuda:1":
            raise RuntimeError("no kernel image is available for execution on the device")
        real("cpu")

    monkeypatch.setattr(doctor, "take_step", take_step)
    code, printed, _ = ask(capsys)
    assert code == 0  # the core works, on the CPU and on one of the cards
    assert "cuda:0               Card A, 85.0 GB, capability 9.0, driver 580.95\n" in printed
    assert "Card B, 16.0 GB, capability 7.5, driver 580.95; a step of CAR FAILS: no kernel image" in joined(printed)


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
    assert "The core does not work: pip install --upgrade torch numpy\n" in printed
    words = {"raises": "FAILS: ~/lib.so: wrong symbol", "zero": "FAILS: the gradient is zero or not finite"}
    assert words[fault] in joined(printed)


# the cache


def test_the_cache_is_measured(capsys, installation, monkeypatch, tmp_path):
    installation()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rows(ask(capsys)[1])["cache"].startswith("~/cache, not made yet, can be written, ")
    (tmp_path / "cache/below").mkdir(parents=True)
    (tmp_path / "cache/a").write_bytes(bytes(1_000_000))
    (tmp_path / "cache/below/b").write_bytes(bytes(2_500_000))
    _, printed, _ = ask(capsys)
    assert "cache                ~/cache, 3.5 MB, can be written, " in printed
    assert str(tmp_path) not in printed
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "file" / "inside"))
    assert "CANNOT BE written" in ask(capsys)[1]


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


@pytest.mark.parametrize("arguments", [["--json"], ["core"], ["--verbose", "core"]])
def test_other_options_are_refused_in_one_sentence(capsys, arguments):
    code, printed, warned = ask(capsys, *arguments)
    assert (code, printed) == (1, "")
    assert warned == f"spectail doctor: expected no option but --help; got {arguments[0]!r}.\n"


def test_help(capsys):
    code, printed, _ = ask(capsys, "--help")
    assert code == 0
    assert printed.startswith("usage: spectail doctor\n")


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
    assert "The core does not work: pip install --upgrade torch numpy\n" in done.stdout
    assert "training, commands   ready" in done.stdout


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
    assert "training, commands   not ready: packaging missing\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_torch_without_numpy_is_not_enough(tmp_path):
    done = bare(tmp_path, numpy="raise ModuleNotFoundError('No module named numpy', name='numpy')")
    assert done.returncode == 1, done.stderr
    assert re.search(r"^torch +[\d.]+", done.stdout, re.MULTILINE)
    assert re.search(r"^numpy .*does not import: No module named numpy$", done.stdout, re.MULTILINE)
    assert "The core does not work: pip install --upgrade torch numpy\n" in done.stdout
