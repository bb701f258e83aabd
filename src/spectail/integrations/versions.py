"""Is the framework there, and is it a version that works? Asked before it is imported, answered in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

EXTRA = "pip install 'spectail[integrations]'"


class Framework(NamedTuple):
    """What an integration asks of its framework; the arguments of :func:`need`."""

    packages: tuple[str, ...]
    least: str
    reason: str
    refused: tuple[str, ...] = ()
    why: str = ""


FRAMEWORKS = {
    "huggingface": Framework(("transformers",), "4.49", "the scaling of compute_loss_func that this module relies on"),
    "lightning": Framework(
        ("lightning", "pytorch-lightning"),
        "2.0",
        "the callback interface that this module is written for",
        refused=("2.6.2", "2.6.3"),
        why="that release was published by an attacker and runs malware when imported (GHSA-w37p-236h-pfx3)",
    ),
    "torchmetrics": Framework(("torchmetrics",), "1.4", "the metric interface that this module is written for"),
    "timm": Framework(("timm",), "1.0.30", "the place for the state of a loss in its checkpoints"),
}


def need(packages: Sequence[str], least: str, reason: str, refused: Sequence[str] = (), why: str = "") -> str:
    """The version that is installed of the first of these packages that is.

    Args:
        packages: names under which the framework is distributed.
        least: the first version that is known to work, and the ``reason``.
        refused: later versions that do not, and ``why``.

    Example:
        >>> numbers(need(["torch"], "2.4", "what this package calls")) >= (2, 4)
        True
    """
    for package in packages:
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        verdict = judge(found, least, refused)
        if verdict == "refused":
            raise ImportError(
                f"{package} {found} is not used: {why}; install another version: pip install --upgrade {package}",
                name=package,
            )
        if verdict == "too old":
            raise ImportError(
                f"{package} {found} is too old: {reason} needs {least} or newer; pip install --upgrade {package}",
                name=package,
            )
        return found
    raise ImportError(f"{packages[0]} is not installed; it comes with {EXTRA}", name=packages[0])


def judge(found: str, least: str = "", refused: Sequence[str] = (), below: str = "") -> str:
    """``works``, ``refused``, ``too old`` or ``too new``: how a version stands to what is asked for.

    Example:
        >>> [judge(found, "2.0", refused=["2.6.3"], below="3") for found in ("2.6.4", "2.6.3", "1.9.5", "3.0")]
        ['works', 'refused', 'too old', 'too new']
    """
    if found in refused:
        return "refused"
    if numbers(found) < numbers(least):
        return "too old"
    return "too new" if below and numbers(found) >= numbers(below) else "works"


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparing.

    Example:
        >>> numbers("2.6.1+cpu"), numbers("4.50.0.dev0"), numbers("5.0rc1")
        ((2, 6, 1), (4, 50, 0), (5, 0))
    """
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
