"""`spectail COMMAND`: finds the command and reports errors in one sentence. Imports nothing heavy itself."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from importlib import import_module

from .. import __version__
from .._utils.errors import is_lack_of_memory, lack_of_memory, one_line
from .._utils.names import nearest, shown
from .._utils.plain_text import visible
from .._utils.versions import pip_install

COMMANDS = {
    "train": ("train", "train a method on a data set; with no options, the embedded set"),
    "fit": ("fit", "the best classifier for a goal, from a folder or an array"),
    "compare": ("compare", "several methods and seeds on one data set, in one table"),
    "evaluate": ("evaluate", "measure the model of a run again"),
    "report": ("report", "an HTML report of one run, or of several side by side"),
    "analyze": ("analyze", "which classes a model confuses, from any file of predictions"),
    "adjust": ("adjust", "tau, class offsets and temperature for the predictions of a model"),
    "experiment": ("experiment", "the paper's tables and figures, whole or any slice"),
    "prepare": ("prepare", "find or build a data set, check it, write its manifest"),
    "predict": ("predict", "the most likely classes of new images"),
    "export": ("export", "the model of a run as one file"),
    "list": ("list_command", "what there is: data sets, methods, models, recipes"),
    "doctor": ("doctor", "versions, devices, and what is missing for which feature"),
}
USAGE = """usage: spectail COMMAND [options]

{commands}

spectail COMMAND --help shows the options of a command, spectail --version the
version.
"""


OUR_FAULT = 70
"""The exit code where spectail itself has failed: EX_SOFTWARE of BSD's sysexits."""


def unexpected(error: Exception, arguments: list[str]) -> str:
    """Two lines for an error that nobody foresaw; its trace goes to a file."""
    files = [word for word in arguments if os.path.isfile(word)]
    about = f" with {visible(', '.join(files[:3]))}" if files else ""
    with tempfile.NamedTemporaryFile(
        "w", prefix="spectail-trace-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        file.write(f"spectail {__version__} {arguments}\n\n{''.join(traceback.format_exception(error))}")
    said = f"{type(error).__name__}: {one_line(error)}"
    return f"failed{about}: {said}\nThis is a bug: `spectail doctor` and the trace in {file.name} help us."


def note(message: Warning | str, *place: object, **more: object) -> None:
    """A warning as a line for people, without the place in the code."""
    print(f"note: {one_line(Exception(message))}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    usage = USAGE.format(commands="\n".join(f"  {name:12}{text}" for name, (_, text) in COMMANDS.items()))
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage)
        return 0
    if arguments[0] == "--version":
        print(f"spectail {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"spectail: unknown command {shown(name)}; {nearest(name, COMMANDS)}\n\n{usage}", file=sys.stderr)
        return 2
    try:
        run = import_module(f".{COMMANDS[name][0]}", __package__).run
        with warnings.catch_warnings():
            if not sys.warnoptions:  # unless the user asked for something else
                warnings.filterwarnings("once", module="spectail")
                warnings.showwarning = note
            return run(rest) or 0  # most commands return nothing
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("spectail"):
            raise
        extra = "report" if error.name == "jinja2" else "train"  # every command needs the parser that train brings
        print(f"spectail {name} needs the package {error.name!r}: {pip_install(extra)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever reads the output has enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for what Python flushes at its end
        return 1
    except Exception as error:
        if os.environ.get("SPECTAIL_DEBUG"):
            raise
        if is_lack_of_memory(error):
            said, code = lack_of_memory(error), 1
        elif isinstance(error, ValueError | OSError):
            said, code = one_line(error), 1
        elif isinstance(error, ImportError) and not (error.path or ".py").endswith(".py"):  # compiled code, not ours
            again = "Install its package again if this stays when memory is free."
            said, code = f"a library could not be loaded ({one_line(error)}). {again}", 1
        else:
            said, code = unexpected(error, rest), OUR_FAULT
        print(f"spectail {name}: {said}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print(f"spectail {name}: stopped; nothing half-written is left.", file=sys.stderr)
        return 130
