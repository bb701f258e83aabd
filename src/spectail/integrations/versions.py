"""Is the framework there, and is it a version that works? Asked before it is imported, answered in one sentence."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple


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

    def installed(self) -> tuple[str, str] | None:
        """The package that is there, and its version."""
        for package in self.packages:
            try:
                return package, version(package)
            except PackageNotFoundError:
                continue
        return None

    def problem(self, number: str) -> str:
        """What is wrong with a version; nothing if it works.

        Example:
            >>> FRAMEWORKS["timm"].problem("1.0.9")
            'is too old: the place for the state of a loss in its checkpoints needs 1.0.30 or newer'
            >>> FRAMEWORKS["timm"].problem("1.1.0.dev0")
            ''
        """
        from packaging.version import Version  # noqa: PLC0415 - the frameworks need it, spectail's core does not

        if number in self.refused:
            return f"is not used: {self.why}; install another version"
        if Version(number) < Version(self.least):
            return f"is too old: {self.reason} needs {self.least} or newer"
        return ""


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


def need(module: str) -> str:
    """The version of a module's framework. Raises ImportError if there is none, or one that does not work."""
    framework = FRAMEWORKS[module]
    there = framework.installed()
    if there is None:
        name = framework.packages[0]
        raise ImportError(f"{name} is not installed; it comes with pip install 'spectail[integrations]'", name=name)
    package, number = there
    if problem := framework.problem(number):
        raise ImportError(f"{package} {number} {problem}; pip install --upgrade {package}", name=package)
    from .._utils import torchvision_ops  # noqa: F401, PLC0415 - frameworks import torchvision, which may not fit torch

    return number
