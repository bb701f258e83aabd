"""Errors that code acts on by their kind, never by their wording, and how one process tells another of its error."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

FILE = "SPECTAIL_ERROR_FILE"
"""Environment variable: where a process that another one started writes down the error that it ends with."""


class MissingData(FileNotFoundError):
    """The files of a data set are not there. Nothing is wrong with those that are."""


class MissingWeights(ValueError):
    """Pretrained weights could not be fetched. They may be given as a file."""


KINDS: dict[str, type[Exception]] = {"MissingData": MissingData, "MissingWeights": MissingWeights}


def one_line(error: Exception) -> str:
    """What went wrong, without line breaks; of a file, its name and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def hand_over(error: Exception) -> None:
    """Write an error down for the process that started this one, if it asked. Of several ranks the first one does."""
    path = os.environ.get(FILE)
    if path:
        with suppress(OSError), open(path, "x", encoding="utf-8") as file:
            json.dump({"kind": type(error).__name__, "message": str(error)}, file)


def handed_over(path: Path) -> Exception | None:
    """The error that a process has written down; None if it ended without, such as by a signal."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return KINDS.get(content["kind"], ValueError)(content["message"])
