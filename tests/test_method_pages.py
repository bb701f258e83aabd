"""Every method has a page in docs/methods that names its options with their defaults, and whose commands can be run."""

import dataclasses
import inspect
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("tyro")

from spectail import CAR, ClassCounts
from spectail.car import PRESETS
from spectail.cli.arguments import flags_of
from spectail.cli.evaluate import Evaluate
from spectail.cli.train import Train, parse
from spectail.methods.registry import METHODS
from spectail.training.config import CARConfig

FOLDER = Path(__file__).parent.parent / "docs" / "methods"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
SECTIONS = [
    "Formula",
    "Options",
    "Schedule and stages",
    "What we do differently, and why",
    "Pitfalls",
    "Commands",
    "Reference",
]
each_method = pytest.mark.parametrize("name", METHODS)
each_page = pytest.mark.parametrize("page", PAGES)


@cache
def text(page):
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


def rows(page):
    """Cells of all rows of tables that begin with something in code quotes or a link."""
    lines = [line for line in text(page).splitlines() if line.startswith(("| `", "| [`"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def commands(page):
    """Arguments of every `spectail train` command, continuation lines joined."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text(page), re.DOTALL | re.MULTILINE)
    blocks = [block for kind, block in found if not kind]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [tuple(shlex.split(line)[2:]) for line in lines if line.startswith("spectail train")]


@cache
def configuration(arguments):
    return parse(list(arguments))[0]


def flag(name):
    return "--" + name.replace("_", "-")


def same(cell, default):
    """Whether a cell of the table says this default."""
    if default is None:
        return cell == "unset"
    if isinstance(default, bool):
        return cell == ("on" if default else "off")
    if isinstance(default, float):
        return re.fullmatch(r"[\d.e-]+", cell) is not None and float(cell) == default
    return cell == str(default)


def default_of(field):
    return field.default_factory() if field.default is dataclasses.MISSING else field.default


def anchors(path):
    """Targets of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_method
def test_every_method_has_a_page_with_all_sections(name):
    assert f"(`{name}`)" in text(name).splitlines()[0]
    assert re.findall(r"^## (.*)$", text(name), re.MULTILINE) == SECTIONS
    assert len(text(name).splitlines()) <= 120


@each_method
def test_the_table_names_every_option_with_its_default(name):
    table = {cells[0].strip("`"): cells for cells in rows(name)}
    fields = dataclasses.fields(METHODS[name].load().options)
    known = {flag(field.name) for field in fields}
    assert {option for option in table if not option.startswith("--car.")} == known
    for field in fields:
        _, default, source, meaning = table[flag(field.name)]
        assert same(default, default_of(field)), (field.name, default, default_of(field))
        assert source, f"{field.name}: where does the default come from?"
        assert meaning


def test_the_page_of_car_names_its_options_with_the_values_they_have():
    table = {cells[0].strip("`"): cells[1] for cells in rows("car")}
    alpha, changes, _ = PRESETS[CARConfig.preset]
    values = {key: entry.default for key, entry in inspect.signature(CAR).parameters.items()} | changes
    values["alpha"] = alpha
    fields = [field for field in dataclasses.fields(CARConfig) if field.name != "enabled"]  # that is --car
    assert {option for option in table if option.startswith("--car.")} == {flag(f"car.{one.name}") for one in fields}
    for field in fields:
        default = field.default if field.default is not None else values.get(field.name)
        assert same(table[flag(f"car.{field.name}")], default), field.name


def test_presets_of_car_have_the_weights_the_page_says():
    said = next(cells[3] for cells in rows("car") if cells[0] == "`--car.alpha`")
    others = [f"{PRESETS[name].alpha:g} in `{name}`" for name in ("classwise", "balanced", "worst", "reference")]
    assert ", ".join(others) in said


@pytest.mark.parametrize("preset", ["balanced", "worst"])
def test_pages_of_car_with_balanced_softmax_name_what_their_preset_changes(preset):
    alpha, changes, _ = PRESETS[preset]
    for option, value in ({"alpha": alpha} | changes).items():
        value = f"{value:g}" if isinstance(value, float) else value
        assert f"{flag(f'car.{option}')} {value}" in text(f"car-{preset}"), option


@each_method
def test_lengths_of_stage_two_are_those_of_the_code(name):
    said = re.search(r"unset: ([\d,]+) (?:epochs|steps) for ([\d,]+) of stage one", text(name))
    length = getattr(METHODS[name].load(), "length", None)
    assert (said is None) == (length is None)
    if said is not None:
        assert tuple(int(number.replace(",", "")) for number in said.groups()) == length


@each_method
def test_settings_that_a_method_insists_on_are_said(name):
    optim = METHODS[name].load().required_settings.get("optim", {})
    said = re.search(r"sets SGD, learning rate ([\d.]+) and decay ([\de-]+)", text(name))
    assert (said is None) == (not optim)
    if said is not None:
        found = {"optimizer": "sgd", "lr": float(said[1]), "weight_decay": float(said[2])}
        assert found == optim


@each_page
def test_commands_parse_and_their_options_are_accepted(page):
    for arguments in commands(page):
        config = configuration(arguments)
        method = METHODS[config.method].load()(ClassCounts([9, 4, 2]), config.options, epochs=config.optim.epochs)
        assert method.make_head(method.head or "linear", 4) is not None
        stages = [stage.name for stage in method.stages()]
        assert set(config.car.stages or ()) <= set(stages)


@each_method
def test_each_page_has_the_commands_a_reader_looks_for(name):
    found = [configuration(arguments) for arguments in commands(name)]
    own = [config for config in found if config.method == name]
    assert any(config.data.dataset == "glyphs-lt" for config in own)
    cifar = [config for config in own if config.data.dataset == "cifar100-lt"]
    assert any(str(config.data.root) == "$CIFAR100" and config.model.model == "resnet32" for config in cifar)
    assert any(config.car.enabled for config in found)


@cache
def known_flags():
    of_training = [flags_of(Train, Train(options=entry.load().options)) for entry in METHODS.values()]
    return {name for flags in [*of_training, flags_of(Evaluate)] for flag in flags for name in flag.name.split(", ")}


@each_page
def test_flags_in_the_text_exist(page):
    prose = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)
    named = {one for quoted in re.findall(r"`([^`]+)`", prose) for one in re.findall(r"--[a-z][\w.-]*", quoted)}
    assert named
    assert named - {"--car."} <= known_flags()  # the rest of `--car.*`


def test_the_index_says_what_the_registry_says():
    found = {}
    for cells in rows("README"):
        link = re.fullmatch(r"\[`([\w-]+)`\]\(([\w-]+)\.md\)", cells[0])
        assert link, cells[0]
        assert link[1] == link[2]
        found[link[1]] = cells[1:]
    assert list(found) == list(METHODS)
    for name, (summary, kind, needs, when) in found.items():
        about = METHODS[name].about()
        assert (summary, kind, needs) == (METHODS[name].summary, about.kind, about.needs)
        assert when


@each_page
def test_links_resolve(page):
    links = re.findall(r"\]\(([^)]+)\)", text(page))
    for link in links:
        assert not link.startswith("http"), "these pages need no network"
        place, _, anchor = link.partition("#")
        target = (FOLDER / place).resolve() if place else FOLDER / f"{page}.md"
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_there_is_no_page_without_a_method():
    assert set(PAGES) - {"README"} == set(METHODS)
