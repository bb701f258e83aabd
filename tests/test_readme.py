"""The blocks of the README and the Python of docs/data.md run as printed, and tables name everything there is."""

import inspect
import re
import shlex
import shutil
import tomllib
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
OPTIONS = ROOT / "docs" / "options.md"
DATA = ROOT / "docs" / "data.md"


def run_snippets(page):
    """All Python blocks of a page, in order, in one namespace of their own."""
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 2
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), namespace)
    return namespace


def first_column(page):
    """What stands in code quotes at the beginning of a table's rows."""
    return set(re.findall(r"^\| `([^`]+)`", page.read_text(encoding="utf-8"), re.MULTILINE))


def test_snippets_run_as_printed(capsys):
    text = README.read_text(encoding="utf-8")
    assert run_snippets(README)["loss"].requires_grad
    printed = capsys.readouterr().out.splitlines()
    assert re.findall(r"^print\(.*\)  # (.*)$", text, re.MULTILINE) == printed
    assert len(text.splitlines()) <= 150


def test_commands_run_as_printed(tmp_path, monkeypatch):
    """In the folder of somebody with photos, a new photo and a file of predictions, and without a network."""
    from data.builders import class_folders

    from spectail.cli.main import main
    from spectail.experiments import driver
    from spectail.fit import backbone, crossfit, networks

    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "photos", {"ant": 24, "bee": 12, "cow": 6}, side=32)
    shutil.copy(next((tmp_path / "photos" / "bee").iterdir()), "new.jpg")
    Path("predictions.csv").write_text("label,prediction\n" + "cat,cat\n" * 9 + "cat,dog\n" + "dog,dog\n" * 4)
    monkeypatch.setattr(driver, "make_engine", lambda *_: crossfit.Here())  # heads are trained here, for a few steps
    monkeypatch.setattr(crossfit.cross_fit, "__kwdefaults__", crossfit.cross_fit.__kwdefaults__ | {"ladder": (10, 20)})
    monkeypatch.setitem(networks.SCRATCH["optim"], "epochs", 2)
    monkeypatch.setattr(backbone, "answers", lambda name: False)
    monkeypatch.setattr(backbone, "is_cached", lambda name: False)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    commands = [content.splitlines() for language, content in blocks if not language]
    lines = [shlex.split(line, comments=True) for block in commands for line in block]
    assert {words[0] for words in lines} == {"spectail", "pip"}
    for words in lines:
        assert words[0] == "pip" or main(words[1:]) == 0, words
    assert Path("report.html").exists()
    assert Path("runs/fit-photos-balanced/report.html").exists()


def test_extras_of_the_readme_exist():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    assert first_column(README) - {"car-balanced", "car-worst"} == extras - {"dev", "docs"}


def test_options_table_names_every_option():
    from spectail import CAR

    assert {name for name in first_column(OPTIONS) if name.isidentifier()} == set(inspect.signature(CAR).parameters) - {
        "class_counts"
    }


def test_snippets_of_the_data_page_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    namespace = run_snippets(DATA)
    assert namespace["train"].in_memory
    printed = capsys.readouterr().out
    for line in re.findall(r"^print\(.*\)  +# ([\[{(\d].*)$", DATA.read_text(encoding="utf-8"), re.MULTILINE):
        assert line in printed


def test_data_page_names_everything():
    from spectail.counts import CONVENTIONS
    from spectail.data.catalog import ENTRIES, OWN
    from spectail.data.longtail import PROFILES, SELECTIONS
    from spectail.data.manifest import Manifest
    from spectail.data.samplers import SAMPLERS
    from spectail.data.transforms import PRESETS

    named = first_column(DATA)
    assert named >= {entry.name for entry in [*ENTRIES, *OWN]}
    assert named >= {*PROFILES, *SELECTIONS, *CONVENTIONS, *SAMPLERS, *PRESETS}
    assert named >= {"identity", *(field.name for field in fields(Manifest))} - {"format"}


def test_data_page_names_every_option_of_prepare():
    from spectail.cli.prepare import Prepare

    text = DATA.read_text(encoding="utf-8")
    flags = {f"--{field.name.replace('_', '-')}" for field in fields(Prepare) if field.name != "dataset"}
    assert {flag for flag in flags if flag not in text} == set()


def test_links_lead_somewhere():
    pages = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-")
            for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        for target in re.findall(r"\]\(([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            assert target.startswith("https://") or (page.parent / path).exists(), target
            assert path or anchor in headings, target


def test_snippets_of_the_theory_page_run_as_printed():
    run_snippets(ROOT / "docs" / "theory.md")
