"""Errors that code acts on by their kind, never by their wording."""

from __future__ import annotations


class MissingData(FileNotFoundError):
    """The files of a data set are not there. Nothing is wrong with those that are."""


class MissingWeights(ValueError):
    """Pretrained weights could not be fetched. They may be given as a file."""


def one_line(error: Exception) -> str:
    """What went wrong, without line breaks; of a file, its name and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: object) -> str:
    """The first line of what a library says, without a full stop, to stand inside a sentence of ours."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
