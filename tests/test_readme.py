"""The Python of the README and of docs/data.md runs as printed, and their tables name everything there is."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
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


def test_snippets_run_as_printed():
    assert run_snippets(README)["loss"].requires_grad


def test_options_table_names_every_option():
    from spectail import CAR

    table = set(re.findall(r"^\| `(\w+)` \|", README.read_text(encoding="utf-8"), re.MULTILINE))
    options = set(inspect.signature(CAR).parameters) - {"class_counts"}
    assert table == options


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
