"""`spectail doctor`: versions, devices, and what is missing for which feature. Runs even where torch does not.

Only torch, numpy and torchvision are imported, as importing everything takes half a minute: of the other packages the
metadata tell whether they are installed in a version that works.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import textwrap
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

from .. import __version__

USAGE = """usage: spectail doctor [--json]

Versions, devices, the cache folder, and what is missing for which feature. The
exit code is 0 if the core works, whatever is missing for the rest, and else 1.

  --json      print the same as JSON
"""
LAST = "Please paste all of this into a bug report. Your home folder is written as ~."
HANDLED = (
    "the compiled operators of torchvision were built for another torch and do not load. This is handled: spectail "
    "declares them and does without."
)
EXTRAS = {"train": "training, commands", "report": "report page", "cluster": "several machines",
          "integrations": "integrations", "docs": "documentation", "dev": "development"}  # fmt: skip
WIDTH, LABEL = 80, 21


def run(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    for argument in arguments:  # the parser of the other commands may not be installed
        if argument != "--json":
            raise ValueError(f"expected no option but --json or --help; got {argument!r}.")
    report = examine()
    print(json.dumps(report, indent=1) if arguments else render(report))
    return 0 if report["core_works"] else 1


def examine() -> dict[str, Any]:
    """All that is known of this installation, as text under the labels of the page."""
    with warnings.catch_warnings(record=True) as caught:  # torch only warns of a driver that is too old
        warnings.simplefilter("always")
        broken = {name: problem for name in ("torch", "numpy") if (problem := import_problem(name))}
        core_works = not broken and not step_problem("cpu")
        devices, notes = ({}, []) if broken else (find_devices(), torchvision_notes(broken))
    own, where = installed("spectail"), ", in a virtual environment" * (sys.prefix != sys.base_prefix)
    other = f" (its metadata: {own or 'none, it is not installed'})" * (own != __version__)
    core = {name: ", ".join(filter(None, [installed(name), broken.get(name)])) for name in ("torch", "numpy")}
    return {
        "core_works": core_works,
        "environment": {
            "spectail": __version__ + other,
            "Python": f"{platform.python_version()} ({platform.python_implementation()}){where}",
            "platform": platform.platform(),
            **core,
            **devices,
            "cache": describe_cache(),
        },
        "features": find_features(broken),
        "notes": list(dict.fromkeys([*notes, *(first_line(warning.message) for warning in caught)])),
    }


def render(report: dict[str, Any]) -> str:
    """The report on a screen of 80 columns."""
    lines = [line for label, text in report["environment"].items() for line in row(label, text)] + [""]
    for name, feature in report["features"].items():
        lines += row(name, f"{'ready' if feature['ready'] else 'not ready'}: {feature['packages']}".removesuffix(": "))
        lines += row("", feature["fix"] or "")
    for note in report["notes"]:
        lines += ["", *textwrap.wrap(f"Note: {note}", WIDTH, break_on_hyphens=False)]
    failure = "The core does not work: pip install --upgrade torch numpy"
    return "\n".join([*lines, "", "The core works." if report["core_works"] else failure, LAST])


def row(label: str, text: str) -> list[str]:
    """A label, and text beside it on as many lines as it needs."""
    indent = " " * LABEL
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{label:{LABEL}}", subsequent_indent=indent, break_on_hyphens=False
    )


def installed(name: str) -> str | None:
    """The version of a package, if it is there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def import_problem(name: str) -> str:
    """Why a package cannot be imported; nothing if it can be."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == name else f"does not import: {first_line(error)}"
    except Exception as error:  # libraries that do not load raise almost anything
        return f"does not import: {first_line(error)}"
    return ""


def first_line(message: object) -> str:
    """The first line of a message, without a user's name in paths."""
    return with_tilde(next(iter(str(message).strip().splitlines()), type(message).__name__))


def with_tilde(text: str) -> str:
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def find_devices() -> dict[str, str]:
    """CPU and GPUs, each with a step of the loss tried on it: a build without kernels for a GPU fails only then."""
    import torch  # noqa: PLC0415 - known to import by now
    from torch.utils import collect_env  # noqa: PLC0415

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    build = f"ROCm {torch.version.hip}" if torch.version.hip else build
    capability = torch.backends.cpu.get_cpu_capability()
    devices = {"cpu": f"{torch.get_num_threads()} threads of torch ({build}), capability {capability}"}
    if torch.cuda.is_available():
        driver = collect_env.get_nvidia_driver_version(collect_env.run)  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            about = f"{card.name}, {card.total_memory / 1e9:.1f} GB, capability {card.major}.{card.minor}"
            devices[f"cuda:{index}"] = about + (f", driver {driver}" if driver else "")
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    for name in devices:
        if problem := step_problem(name):
            devices[name] += f"; a step of CAR FAILS: {problem}"
    return devices


def step_problem(device: str) -> str:
    """Why a step of CARLoss does not work on a device; nothing if it does."""
    try:
        import numpy as np  # noqa: PLC0415
        import torch  # noqa: PLC0415

        from ..car_loss import CARLoss  # noqa: PLC0415

        counts = torch.from_numpy(np.array([4, 2, 1])).tolist()  # fails where numpy and torch do not fit
        logits = torch.arange(12.0, device=device).view(4, 3).cos().requires_grad_()
        CARLoss(counts).to(device)(logits, torch.tensor([0, 0, 1, 2], device=device)).backward()
        if logits.grad is None or not logits.grad.isfinite().all() or not logits.grad.any():
            return "the gradient is zero or not finite"
    except Exception as error:  # whatever it is, it belongs into the report
        return first_line(error)
    return ""


def torchvision_notes(broken: dict[str, str]) -> list[str]:
    """Imports torchvision as spectail does. Operators that do not load are no fault, so they are a note."""
    if installed("torchvision") is None:
        return []
    from .._utils import torchvision_ops  # noqa: PLC0415 - declares what is missing, if anything is

    if problem := import_problem("torchvision"):
        broken["torchvision"] = problem
        return []
    return [HANDLED] if torchvision_ops._declared is not None else []


def describe_cache() -> str:
    try:
        folder: Path = import_module("spectail._utils.files").cache_folder().absolute()
        above = next(path for path in (folder, *folder.parents) if os.path.exists(path))
        free = shutil.disk_usage(above).free / 1e9
        size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    except (ImportError, RuntimeError, OSError) as error:  # numpy is missing, or the user has no home
        return f"not found ({first_line(error)})"
    writable = "can be" if above.is_dir() and os.access(above, os.W_OK | os.X_OK) else "CANNOT BE"
    filled = f"{size:,.1f} MB" if folder.is_dir() else "not made yet"
    return f"{with_tilde(str(folder))}, {filled}, {writable} written, {free:,.1f} GB free"


def find_features(broken: dict[str, str]) -> dict[str, dict[str, Any]]:
    """For each extra whether it is complete, its packages, and the command that brings what is missing."""
    features: dict[str, dict[str, Any]] = {}
    shown: set[str] = set()
    for extra, name in EXTRAS.items():
        packages = required(extra, broken) if installed("packaging") else {"packaging": "missing"}  # all bring it
        ready = not any(packages.values())
        named = [f"{one} {problem}".strip() for one, problem in packages.items() if problem or one not in shown]
        shown |= packages.keys()  # a package that works is named once
        fix = None if ready else f"pip install --upgrade 'spectail[{extra}]'"
        features[name] = {"ready": ready, "packages": ", ".join(named), "fix": fix}
    return features


def required(extra: str, broken: dict[str, str]) -> dict[str, str]:
    """What is wrong with each package of an extra, by spectail's own metadata; nothing if it works."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - every extra brings it, the core does not

    try:
        lines = metadata("spectail").get_all("Requires-Dist") or []
    except PackageNotFoundError:  # a source tree on the path, not an installation
        lines = []
    packages: dict[str, str] = {}
    for wanted in map(Requirement, lines):
        number = installed(wanted.name)
        if wanted.marker is None or not wanted.marker.evaluate({"extra": extra}) or wanted.name == "spectail":
            continue  # of the core, of another extra, or an extra of ours in this one, whose packages are listed too
        if number is None:
            packages[wanted.name] = "missing"
        else:
            fits, label = wanted.specifier.contains(number, prereleases=True), f"{wanted.name} {number}"
            problem = broken.get(wanted.name, "" if fits else f"not {wanted.specifier}")
            packages[label] = packages.get(label) or problem  # one package may be asked for twice
    return packages or {"spectail": "must be installed again: its metadata do not name this extra"}
