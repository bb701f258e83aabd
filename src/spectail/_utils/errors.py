"""Errors that code acts on by their kind, never by their wording."""

from __future__ import annotations

from .plain_text import visible


class MissingData(FileNotFoundError):
    """The files of a data set are not there. Nothing is wrong with those that are."""


class MissingWeights(ValueError):
    """Pretrained weights could not be fetched. They may be given as a file."""


LONGEST = 1_000


def one_line(error: BaseException) -> str:
    """What went wrong, without line breaks and not too long; of a file, its name and the reason."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    return visible(text if len(text) <= LONGEST else f"{text[: LONGEST - 100]} ... {text[-90:]}")


def first_line(error: object) -> str:
    """The first line of what a library says, without a full stop, to stand inside a sentence of ours."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
