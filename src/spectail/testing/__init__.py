"""Checks that every method must pass: ours, and those of others.

    import pytest
    from spectail.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_method(check, tmp_path):
        check("my_package.my_method:MyMethod", tmp_path)

or ``python -m spectail.testing my_package.my_method:MyMethod``. A check trains on a handful of rendered characters with
a network of two layers, which takes about a second, and raises AssertionError with a sentence if something is wrong.
``check_two_processes``, which starts processes, and ``check_resume_compiled``, which compiles a network for every part
of a run, take longer and are not among ``CHECKS``; the command runs them too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..methods.registry import METHODS
from .checks import (
    check_backbone,
    check_car,
    check_extreme_logits,
    check_inference,
    check_resume,
    check_state,
    check_trains,
)
from .hardware import check_bf16, check_compiled, check_resume_compiled
from .processes import check_two_processes
from .runs import TinyNetwork, begun, register_network, settings

Check = Callable[[str, Path], None]
CHECKS: tuple[Check, ...] = (
    check_trains, check_extreme_logits, check_resume, check_state, check_car, check_inference, check_backbone,
    check_bf16, check_compiled,
)  # fmt: skip

__all__ = [
    "CHECKS",
    "Check",
    "TinyNetwork",
    "begun",
    "check_backbone",
    "check_bf16",
    "check_car",
    "check_compiled",
    "check_extreme_logits",
    "check_inference",
    "check_resume",
    "check_resume_compiled",
    "check_state",
    "check_trains",
    "check_two_processes",
    "main",
    "register_network",
    "settings",
]


USAGE = """usage: python -m spectail.testing [METHOD ...]

Run every check on the methods that are named, by default on all that are registered. A method of your own is written
package.module:Class. The exit code is 1 if a check fails."""


def main(names: list[str]) -> int:
    """Run all checks on the named methods, by default on all that are registered."""
    if {"-h", "--help"} & set(names):
        print(USAGE)
        return 0
    failed = 0
    for name in names or METHODS:
        for check in (*CHECKS, check_resume_compiled, check_two_processes):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(name, Path(folder))
                    print(f"{name}: {check.__name__} passed")
                except AssertionError as error:
                    failed += 1
                    print(f"{name}: {check.__name__} FAILED: {error}")
    return 1 if failed else 0
