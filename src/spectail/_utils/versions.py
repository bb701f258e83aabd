"""Is the framework there, and is it a version that works? Asked before it is imported, answered in one sentence."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import NamedTuple
from urllib.parse import unquote, urlparse


class Framework(NamedTuple):
    """What an integration asks of its framework."""

    packages: tuple[str, ...]
    """Names under which it is distributed."""
    least: str
    """The first version that works, for the ``reason``."""
    reason: str
    refused: tuple[str, ...] = ()
    """Later versions that are not used, and ``why``."""
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


def installed(package: str) -> str | None:
    """The version of a package, if it is there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def pip_install(extra: str, *, upgrade: bool = False) -> str:
    """The command that brings an extra, from the folder that spectail was installed from if it was one."""
    try:
        origin = json.loads(distribution("spectail").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    folder = unquote(urlparse(origin.get("url", "")).path) if "dir_info" in origin else ""
    editable = "-e " if folder and origin["dir_info"].get("editable") else ""
    return f"pip install {'--upgrade ' if upgrade else ''}{editable}'{folder or 'spectail'}[{extra}]'"


def need(module: str) -> str:
    """The version of a module's framework. Raises ImportError if there is none, or one that does not work."""
    framework = FRAMEWORKS[module]
    for package in framework.packages:
        number = installed(package)
        if number is None:
            continue
        from packaging.version import Version  # noqa: PLC0415 - every framework brings it, spectail's core does not

        if number in framework.refused:
            problem = f"is not used: {framework.why}; install another version"
        elif Version(number) < Version(framework.least):
            problem = f"is too old: {framework.reason} needs {framework.least} or newer"
        else:
            return number
        raise ImportError(f"{package} {number} {problem}; pip install --upgrade {package}", name=package)
    name = framework.packages[0]
    raise ImportError(f"{name} is not installed; it comes with {pip_install('integrations')}", name=name)
