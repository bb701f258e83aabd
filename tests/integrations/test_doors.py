"""Who imports what: nothing without being asked, and one sentence when a framework is missing or does not work."""

import sysconfig
from pathlib import Path

import pytest
from jobs import launch

import spectail

SOURCE = Path(spectail.__file__).parents[1]
FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics", "transformers", "timm")
ASK = """
import sys
import spectail
from spectail import CAR, CARLoss, ClassCounts, functional
import spectail.losses, spectail.metrics
print("early:", [name for name in sys.modules if name.startswith("spectail.integrations")])
import spectail.integrations
for room in ("huggingface", "lightning", "torchmetrics", "timm"):
    try:
        __import__(f"spectail.integrations.{room}")
    except ImportError as error:
        print(f"{room}: {error}")
    else:
        print(f"{room}: imported")
print("frameworks:", sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[1:])))
"""


def ask(*places):
    """-S: nothing but these places and the standard library is on the path."""
    path = ":".join(map(str, (SOURCE, *places)))
    printed = launch("-S", "-c", ASK, *FRAMEWORKS, seconds=300, PYTHONPATH=path)
    return dict(line.split(": ", 1) for line in printed.splitlines() if ": " in line)


@pytest.fixture
def bare(tmp_path):
    """The installed packages without the frameworks."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(FRAMEWORKS) and not path.name.startswith("_") and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


def distribution(folder, name, version):
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_missing_framework_is_one_sentence_with_the_extra(bare):
    said = ask(bare)
    names = {"huggingface": "transformers", "lightning": "lightning", "torchmetrics": "torchmetrics", "timm": "timm"}
    for room, package in names.items():
        assert said[room].startswith(f"{package} is not installed; it comes with pip install ")
        assert said[room].endswith("[integrations]'")
    assert said["early"] == "[]"
    assert said["frameworks"] == "[]"


def test_a_version_that_does_not_work_is_said_and_not_imported(bare, tmp_path):
    old = tmp_path / "old"
    for name, version in (
        ("transformers", "4.46.3"),
        ("lightning", "2.6.3"),
        ("torchmetrics", "0.11.4"),
        ("timm", "1.0.29"),
    ):
        distribution(old, name, version)
        (old / f"{name}.py").write_text("raise SystemExit('it was imported')")
    said = ask(old, bare)
    assert said["huggingface"].startswith("transformers 4.46.3 is too old: ")
    assert said["huggingface"].endswith("needs 4.49 or newer; pip install --upgrade transformers")
    assert said["lightning"].startswith("lightning 2.6.3 is not used: that release was published by an attacker")
    assert said["torchmetrics"].startswith("torchmetrics 0.11.4 is too old: ")
    assert said["timm"].startswith("timm 1.0.29 is too old: the place for the state of a loss in its checkpoints ")
    assert said["timm"].endswith("needs 1.0.30 or newer; pip install --upgrade timm")
    assert said["frameworks"] == "[]"


def test_timm_without_what_its_version_promises_is_not_used(bare, tmp_path):
    other = tmp_path / "other"
    distribution(other, "timm", "1.0.31")
    (other / "timm").mkdir()
    (other / "timm" / "__init__.py").write_text("")
    (other / "timm" / "task.py").write_text("class ClassificationTask: ...\n")
    said = ask(other, bare)["timm"]
    assert said.startswith("timm 1.0.31 is not used: its checkpoints have no place for the state of a loss; pip")
    assert said.endswith("timm==1.0.30")
