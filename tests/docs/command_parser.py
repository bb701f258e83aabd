"""Reads a command line with the real parser of its command, and runs nothing."""

import tyro

from spectail.cli import arguments as flags
from spectail.cli import main as cli
from spectail.cli.compare import flags_of
from spectail.cli.train_flags import parse


class Parsed(Exception):
    """Stops a command once its arguments are read."""


def check_command(arguments, monkeypatch):
    """Raises if `spectail ARGUMENTS` would not be understood."""
    name, *rest = arguments
    assert name in cli.COMMANDS, f"there is no command {name}"
    if name == "train":
        return parse(rest)[0]
    module, kept = cli.import_module(f".{cli.COMMANDS[name][0]}", "spectail.cli"), {}
    if name == "doctor":
        return module.read(rest)

    def stopped(parser):
        def read(*positional, **options):
            kept["result"] = parser(*positional, **options)
            raise Parsed

        return read

    with monkeypatch.context() as patch:
        if hasattr(module, "read_flags"):
            patch.setattr(module, "read_flags", stopped(flags.read_flags))
        else:
            patch.setattr(tyro, "cli", stopped(tyro.cli))
        try:
            module.run(rest)
        except Parsed:
            pass
        else:
            raise AssertionError(f"spectail {name} read no arguments")
    if name == "compare":
        options, others = kept["result"]
        return [parse([*others, *flags_of(method)])[0] for method in options.methods]
    return kept["result"]
