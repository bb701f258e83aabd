"""Every block of the documentation is run or read: Python as printed, commands by their real parsers."""

import json
import re
import sys
from functools import cache

import pytest

pytest.importorskip("tyro")

import yaml
from command_parser import check_command
from page_blocks import DOCS, OTHERS, ROOT, blocks, command_lines, own_arguments

from spectail.cli.arguments import flags_of
from spectail.cli.train import Train, parse
from spectail.methods.registry import METHODS

PAGES = sorted(path.name for path in DOCS.glob("*.md"))
RUN_ELSEWHERE = {"data.md", "theory.md"}  # tests/test_readme.py and tests/theory run them
TITLE = re.compile(r'title="([\w.]+)"')
HOLDERS = ("ce", "ldam-drw", "cb", "remix")  # methods whose options the tables name


def text_of(name):
    return (DOCS / name).read_text(encoding="utf-8")


def python_blocks(name):
    return [(info, content) for info, content in blocks(DOCS / name) if "python" in info]


@pytest.mark.parametrize("name", [page for page in PAGES if page not in RUN_ELSEWHERE and python_blocks(page)])
def test_python_runs_and_prints_what_it_says(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace = {}
    for info, content in python_blocks(name):
        title, included = TITLE.search(info), re.findall(r'^--8<-- "(.*)"$', content, re.MULTILINE)
        if included:  # a whole script, run by its own tests
            assert len(included) == len(content.splitlines())
            assert all((ROOT / place).is_file() for place in included)
        elif title:  # a file of the reader's
            with (tmp_path / title[1]).open("a", encoding="utf-8") as file:
                file.write(content)
        else:
            exec(compile(content, name, "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    for line in re.findall(r"^print\(.*\)  # (.*)$", text_of(name), re.MULTILINE):
        assert line in printed, line


def test_the_second_method_of_the_page_passes_the_public_checks(tmp_path, monkeypatch):
    from spectail.testing import CHECKS

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_methods", None)
    sources = [content for info, content in python_blocks("own-method.md") if TITLE.search(info)]
    (tmp_path / "my_methods.py").write_text("".join(sources), encoding="utf-8")
    for check in CHECKS:
        check("my_methods:Mixup", tmp_path / check.__name__)
    assert set(re.findall(r"^\| `(check_\w+)`", text_of("own-method.md"), re.MULTILINE)) == {
        *(check.__name__ for check in CHECKS),
        *("check_resume_compiled", "check_two_processes"),
    }


@pytest.mark.parametrize("name", [*PAGES, "../README.md"])
def test_commands_are_understood(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = [content for info, content in python_blocks("own-method.md") if TITLE.search(info)]
    (tmp_path / "my_methods.py").write_text("".join(sources), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()  # data of the reader's own, as the pages call them
    (tmp_path / "documents.npz").touch()
    for line in command_lines(DOCS / name):
        arguments = own_arguments(line)
        if arguments is None:
            assert line.startswith(OTHERS), f"{line!r} is neither one of ours nor among those that are not checked"
        elif arguments:
            check_command(arguments, monkeypatch)


def table_rows(name):
    """Cells of every row of every table of a page."""
    lines = [line for line in text_of(name).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_flags_of_the_migration_tables_exist(monkeypatch):
    told = [code for _, here, *_ in table_rows("migration.md") for code in re.findall(r"`([^`]+)`", here)]
    for code in dict.fromkeys(told):
        if code.startswith("spectail "):
            check_command(code.split()[1:], monkeypatch)
    codes = [tuple(code.split()) for code in dict.fromkeys(told) if code.startswith("--")]
    codes = [code for code in codes if code[0] != "--config"]
    assert len(codes) > 40
    for group in apart(codes):  # a parser reads many flags as fast as one
        if not any(understood(sum(group, ()), method) for method in HOLDERS):
            for code in group:
                assert any(understood(code, method) for method in HOLDERS), " ".join(code)


def apart(codes):
    """Groups of flags of one method that no flag is in twice."""
    groups = {}
    for code in codes:
        owner = code[:2] if code[0] == "--method" else next((one for one in HOLDERS if code[0] in flags(one)), None)
        number = 0
        while {word for word in code if word.startswith("--")} - {"--method"} & {
            *sum(groups.get((owner, number), []), ())
        }:
            number += 1
        groups.setdefault((owner, number), []).append(code)
    return groups.values()


@cache
def flags(method):
    known = flags_of(Train, Train(options=METHODS[method].load().options))
    return {name for flag in known for name in flag.name.split(", ")}


@cache
def understood(arguments, method):
    if "--method" not in arguments:
        if not {arguments[0], arguments[0].replace("no-", "")} & flags(method):
            return False
        arguments = [*arguments, "--method", method]
    if "--recipe" in arguments:  # they are made for a data set
        arguments = [*arguments, "--dataset", "cifar100-lt"]
    try:
        parse(list(arguments))[0]
    except (ValueError, SystemExit):
        return False
    return True


def test_what_the_migration_page_calls_part_of_the_preset_is():
    from spectail.car import PRESETS

    alpha, options, _ = PRESETS["reference"]
    said = {}
    for _, here, *_ in table_rows("migration.md"):
        found = re.match(r"`--car\.([\w-]+) (\S+)`, part of", here)
        if found:
            said[found[1].replace("-", "_")] = yaml.safe_load(found[2])
    assert said == {"alpha": alpha, **options}


def test_names_that_the_migration_page_says_are_not_here_are_not():
    from spectail.methods import METHODS

    gone = [there for there, here, *_ in table_rows("migration.md") if here == "-"]
    words = {word.lower() for row in gone for word in re.findall(r"\w+", row)}
    assert not words & {name.lower() for name in METHODS}


def test_figures_of_the_advice_are_those_of_the_results():
    """A row of the advice names a method by a link; its figures must be those of a row of that method."""
    from spectail.experiments.cells import METHODS
    from spectail.experiments.grids import PLAIN

    labels = {name: label for label, name in (METHODS | PLAIN).items()}
    labels |= {"car-balanced": "car-balanced", "car-worst": "car-worst", "balanced-softmax": "Balanced Softmax"}
    known, header = {}, []  # overall, tail and lowest tenth by the label of the row
    for row in table_rows("results.md"):
        header = row if row[0] == "method" else header
        if {"overall", "tail", "lowest 10 %"} <= set(header) and len(row) == len(header):
            figures = {name: cell.split(" ± ")[0] for name, cell in zip(header, row, strict=True)}
            label = {"cross entropy": "ce"}.get(row[0], row[0].strip("`").lower())
            known.setdefault(tuple(figures[name] for name in ("overall", "tail", "lowest 10 %")), set()).add(label)
    seen = 0
    for row in table_rows("choosing.md"):
        methods = re.findall(r"methods/([a-z-]+)\.md", row[1]) if len(row) > 2 else []
        for triple in re.findall(r"(\d+\.\d) / (\d+\.\d) / (\d+\.\d)", " ".join(row[2:])) if methods else ():
            found = known.get(triple, set())
            assert any(name.startswith(labels[method].lower()) for name in found for method in methods), (
                row[0],
                triple,
            )
            seen += 1
    assert seen > 8


def test_counts_of_the_comparison_are_right():
    from spectail.data.catalog import ENTRIES, OWN
    from spectail.methods import METHODS

    words = {9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}
    assert f"[{len(METHODS)} names]" in text_of("comparison.md")
    assert f"[{words[len([*ENTRIES, *OWN])]} sets]" in text_of("comparison.md")


def test_figures_are_drawn_from_the_numbers_that_the_page_names():
    numbers = json.loads((DOCS / "figures" / "car_numbers.json").read_text(encoding="utf-8"))
    text = " ".join(text_of("car-explained.md").split())
    for figure in re.findall(r"\((figures/\w+\.png)\)", text):
        assert (DOCS / figure).read_bytes()[:4] == b"\x89PNG"
    for sentence in sentences(numbers):
        assert sentence in text, sentence


def sentences(numbers):
    """What docs/car-explained.md says, with the figures that docs/make_figures.py has written."""
    lead, history, direction = numbers["lead_of_2"], numbers["history"], numbers["direction"]
    names = "ABCabc"
    first, second, third = (numbers[name] for name in ("cross entropy", "CAR", "CAR, class-wise"))
    yield f"from {min(numbers['weights']):.2f} to {max(numbers['weights']):.2f}"
    yield f"sigma is {direction['sigma']:.2f}"
    top = max(range(6), key=lambda place: direction["right"][place])
    yield f"v is largest at {names[top]}"
    yield f"u at {names[max(range(6), key=lambda place: direction['left'][place])]}"
    yield f"counts {lead['gamma 0 all']:.2f} at gamma 0 and {lead['gamma 2 all']:.2f} at gamma 2"
    yield f"batch averaging holds {history['batch']:.2f} on average, class averaging {history['class']:.2f}"
    yield f"whole training set gives {history['true']:.2f}"
    for what, form in (("balanced", ".1f"), ("worst", ".1f"), ("spectral_norm", ".2f")):
        yield " | ".join(format(one[what], form) for one in (first, second, third))


def test_every_page_is_in_the_navigation_once():
    def leaves(entry):
        if isinstance(entry, str):
            return [entry]
        values = entry.values() if isinstance(entry, dict) else entry
        return [leaf for value in values for leaf in leaves(value)]

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    found = leaves(settings["nav"])
    assert sorted(found) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    assert settings["theme"]["font"] is False
    assert settings["strict"] is True


def test_pages_of_commands_are_those_of_the_code(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(DOCS))
    import make_commands

    assert make_commands.main(["--check"]) == 0, capsys.readouterr().err


def test_docstrings_become_markdown(monkeypatch):
    pytest.importorskip("griffe")
    monkeypatch.syspath_prepend(str(DOCS))
    from docstrings import translate

    found = translate(
        "One line of :func:`~spectail.functional.confusion` and :class:`CAR`, :math:`\\lambda_j`.\n\n"
        "    .. math:: R = \\lVert C \\rVert_2,\n              \\qquad K\n\n"
        "    =====  ======\n    ``a``  b c\n    =====  ======\n\n"
        "    Example:\n        >>> 1\n        1"
    )
    assert '<autoref identifier="spectail.functional.confusion" optional><code>confusion</code></autoref>' in found
    assert "`CAR`" in found
    assert found.count("data:image/svg+xml;base64,") == 2
    assert "    | ``a`` | b c |" in found
    assert "    Examples:\n        >>> 1" in found
    assert "math" not in re.sub(r'src="[^"]*"', "", found)
