"""Is the framework there, and is it a version that works? Asked before it is imported, answered in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

EXTRA = "pip install 'spectail[integrations]'"


def need(packages: Sequence[str], least: str, reason: str, refused: Sequence[str] = (), why: str = "") -> str:
    """The version that is installed of the first of these packages that is.

    Args:
        packages: names under which the framework is distributed.
        least: the first version that works, and the ``reason``.
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
        if found in refused:
            raise ImportError(
                f"{package} {found} is not used: {why}; install another version: pip install --upgrade {package}",
                name=package,
            )
        if numbers(found) < numbers(least):
            raise ImportError(
                f"{package} {found} is too old: {reason} came with {least}; pip install --upgrade {package}",
                name=package,
            )
        return found
    raise ImportError(f"{packages[0]} is not installed; it comes with {EXTRA}", name=packages[0])


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparing.

    Example:
        >>> numbers("2.6.1+cpu"), numbers("4.50.0.dev0"), numbers("5.0rc1")
        ((2, 6, 1), (4, 50, 0), (5, 0))
    """
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
