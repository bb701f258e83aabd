"""Errors that code acts on by their kind, never by their wording."""

from __future__ import annotations

import errno
import sys

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


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether memory has run out, on the host or on a device. For the host torch has no kind of error of its own."""
    torch = sys.modules.get("torch")  # whoever has not imported it has none of its errors
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.cuda.OutOfMemoryError)
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def lack_of_memory(error: BaseException) -> str:
    """What to do about it, in words."""
    amount = f" ({first_line(error)})" if isinstance(error, MemoryError) and str(error) else ""
    return (
        f"there is not enough memory for this{amount}. Ask for less at a time, in training with a smaller --batch-size "
        "or --img-size or fewer --workers, or use a machine that has more; a run that has begun goes on with --resume."
    )


def first_line(error: object) -> str:
    """The first line of what a library says, without a full stop, to stand inside a sentence of ours."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
