"""Reads a command line with the real parser of its command, and runs nothing."""

import tyro

from spectail.cli import main as cli
from spectail.cli.compare import flags_of
from spectail.cli.train import FLAGS
from spectail.cli.train_flags import parse


class Parsed(Exception):
    """Stops a command once its arguments are read."""


def check_command(arguments, monkeypatch):
    """Raises if `spectail ARGUMENTS` would not be understood."""
    name, *rest = arguments
    assert name in cli.COMMANDS, f"there is no command {name}"
    if name == "train":
        return parse([word for word in rest if word not in FLAGS], "spectail train", "")
    if name == "doctor":
        return cli.import_module(".doctor", "spectail.cli").read(rest)
    real, kept = tyro.cli, {}

    def read(kind, **options):
        kept["found"] = real(kind, **options)
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(tyro, "cli", read)
        try:
            cli.import_module(f".{cli.COMMANDS[name][0]}", "spectail.cli").run(rest)
        except Parsed:
            pass
        else:
            raise AssertionError(f"spectail {name} read no arguments")
    if name == "compare":
        options, others = kept["found"]
        return [parse([*others, *flags_of(method)], "spectail train", "") for method in options.methods]
    return kept["found"]
