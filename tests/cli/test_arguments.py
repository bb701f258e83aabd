"""Help pages: what they show is what tyro parses, at 80 columns."""

import dataclasses
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from spectail.cli.arguments import flags_of, read_flags
from spectail.cli.main import main
from spectail.cli.train import EXAMPLES, Train, parse
from spectail.methods.registry import METHODS

COMMANDS = ("analyze", "evaluate", "export", "list", "predict", "prepare", "report", "train")


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    """How fast."""


@dataclass(frozen=True)
class Toy:
    """A command.

    And what it is for.
    """

    where: tyro.conf.Positional[Path]
    """A folder."""
    names: tuple[str, ...] = ("a", "b")
    """Some names."""
    kind: Literal["x", "y"] | None = None
    """One of two."""
    sure: bool | None = None
    """Said either way."""
    quick: bool = False
    """Hurry."""
    page: bool = True
    """Write a page."""
    renamed: Annotated[int, tyro.conf.arg(name="other")] = 3
    """A sentence
    on two lines."""
    inner: Inner = field(default_factory=Inner)
    flat: tyro.conf.OmitArgPrefixes[Inner] = field(default_factory=lambda: Inner(0.25))


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def page_of(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_a_page(capsys):
    with pytest.raises(SystemExit) as end:
        read_flags(Toy, "spectail toy", ["somewhere", "-h"])
    assert end.value.code == 0
    assert (
        capsys.readouterr().out
        == """usage: spectail toy WHERE [options]

A command.

And what it is for.

Arguments
  WHERE                   A folder.

Options
  --names NAME ...        Some names. (default: a b)
  --kind x|y              One of two.
  --sure True|False       Said either way.
  --quick                 Hurry.
  --page, --no-page       Write a page. (default: on)
  --other N               A sentence on two lines. (default: 3)
  --inner.rate X          How fast. (default: 0.5)
  --rate X                How fast. (default: 0.25)
"""
    )


def test_the_parser_knows_every_flag_of_the_page():
    values = {"N": "7", "X": "7", "NAME ...": "c", "x|y": "x", "True|False": "True", "": None}
    default = Toy(Path("w"))
    seen = 0
    for flag in flags_of(Toy, default):
        for name in flag.name.split(", ") if flag.name.startswith("-") else ():
            value = values[flag.placeholder]
            changed = tyro.cli(Toy, args=["w", name, *([value] if value else [])])
            unchanged = name in ("--page",)  # it is on already
            assert (changed == default) == unchanged, name
            seen += 1
    assert seen == 9


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_fit_a_terminal_and_have_a_sentence_for_every_flag(capsys, command):
    lines = page_of(capsys, command, "--help").splitlines()
    assert lines[0].startswith(f"usage: spectail {command} ")
    assert max(map(len, lines)) <= 80
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("  --"):
            sentence = line[26:] if line[24:26] == "  " else following.strip()
            assert sentence[:1] not in ("", "("), line


def test_every_option_of_training_has_a_sentence():
    pages = [flags_of(Train, Train(options=entry.load().options)) for entry in METHODS.values()]
    texts = {flag.name: flag.text for flags in pages for flag in flags}
    assert len(texts) > 150
    assert [name for name, text in texts.items() if not text.endswith(".") or text.startswith("Of ")] == []


def test_the_page_of_training_fits_two_screens_and_the_whole_one_has_everything(capsys):
    short, whole = page_of(capsys, "train", "--help"), page_of(capsys, "train", "--help", "all")
    assert len(short.splitlines()) <= 90
    names = {flag.name.split(",")[0] for flag in flags_of(Train, Train())}
    assert {name for name in names if f"  {name}" not in whole} == set()
    assert "--nesterov" not in short
    assert "--max-margin" in page_of(capsys, "train", "--method", "ldam-drw", "-h")


def test_the_examples_of_training_are_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert len(EXAMPLES) == 2
    configs = [parse(shlex.split(example)[2:])[0] for example in EXAMPLES]
    assert dataclasses.astuple(configs[0]) != dataclasses.astuple(configs[1])


def test_a_page_shows_the_settings_that_flags_would_change(capsys):
    page = page_of(capsys, "train", "--preset", "demo", "--method", "car", "--help")
    assert "(default: 11)" in page
    assert "(default: runs/glyphs-lt-small-cnn-car-seed0)" in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train --resum", "unknown option --resum; did you mean '--resume' or '--preset'? See spectail train --help."),
        ("train --epochs x", "--epochs takes a whole number; got x."),
        ("train --epochs", "--epochs takes a whole number; got nothing."),
        ("train --workers many", "--workers takes a whole number or auto; got many."),
        ("train --seed 1 --optimizer=adam --quiet", "--optimizer takes one of adamw, sgd; got adam."),
        ("train --milestones a b --quiet", "--milestones takes numbers; got a b."),
        ("train --warmup-epochs soon", "--warmup-epochs takes a number; got soon."),
        ("train --car.alpha x", "--car.alpha takes a number; got x."),
        ("train --config --epochs 3", "--config takes a path; got nothing."),
        ("train --epochs 2 --seed 1 here there", "'here' belongs to no option; see spectail train --help."),
        ("evaluate --json", "RUN takes a path; got nothing."),
        ("evaluate run --split all", "--split takes one of test, val, train; got all."),
        ("list --output x", "unknown option --output; there are none. See spectail list --help."),
        ("list methods --jsn", "unknown option --jsn; there are none. See spectail list --help."),
        ("list things", "WHAT takes one of datasets, methods, models, recipes; got things."),
    ],
)
def test_a_mistake_is_one_sentence(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as end:
        main(shlex.split(arguments))
    assert end.value.code == 2
    assert capsys.readouterr().err == f"spectail {arguments.split()[0]}: {sentence}\n"


@pytest.mark.parametrize(
    ("flags", "enabled"),
    [([], False), (["--car"], True), (["--no-car"], False), (["--car", "--no-car"], False),
     (["--car.preset", "paper"], True), (["--no-car", "--car.alpha", "1"], False)],
)  # fmt: skip
def test_any_flag_of_car_adds_it_and_no_car_takes_it_away(flags, enabled):
    assert parse(flags)[0].car.enabled is enabled


def test_car_is_not_taken_away_from_a_method_that_has_it():
    with pytest.raises(ValueError, match="--no-car: car-balanced is a method with CAR in it; choose another one"):
        parse(["--method", "car-balanced", "--no-car"])
