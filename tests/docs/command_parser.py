"""Reads a command line with the real parser of its command, and runs nothing."""

from spectail.cli import arguments as flags
from spectail.cli import main as cli
from spectail.cli.compare import flags_of
from spectail.cli.train import parse


class Parsed(Exception):
    """Stops a command once its arguments are read."""


def check_command(arguments, monkeypatch):
    """Raises if `spectail ARGUMENTS` would not be understood."""
    name, *rest = arguments
    assert name in cli.COMMANDS, f"there is no command {name}"
    if name == "train":
        return parse(rest)[0]
    module, kept = cli.import_module(f".{cli.COMMANDS[name][0]}", "spectail.cli"), {}
    if name == "doctor":  # has no options
        assert not rest
        return None

    def stopped(parser):
        def read(*positional, **options):
            kept["result"] = parser(*positional, **options)
            raise Parsed

        return read

    with monkeypatch.context() as patch:
        parser = "read_own_flags" if name == "compare" else "read_flags"
        patch.setattr(module, parser, stopped(getattr(flags, parser)))
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
