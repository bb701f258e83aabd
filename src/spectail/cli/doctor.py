"""`spectail doctor`: versions, devices, and what is missing for which feature. Runs even where torch does not.

Only torch, numpy and torchvision are imported, as importing everything takes half a minute: of the other packages the
metadata tell whether they are installed in a version that works.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import metadata

from .. import __version__
from .._utils.versions import installed, pip_install

USAGE = """usage: spectail doctor

Show versions, devices and the cache folder, and what is missing for which
feature. The exit code is 0 if the core works, whatever is missing for the rest,
and 1 otherwise.
"""
HANDLED = (
    "the compiled operators of torchvision were built for another torch and do not load. This is handled: spectail "
    "declares them and does without."
)
EXTRAS = {"train": "training, commands", "report": "report page", "sklearn": "scikit-learn",
          "peft": "fine-tuning", "onnx": "ONNX export", "all": "all of these", "cluster": "several machines",
          "integrations": "integrations", "docs": "documentation", "dev": "development"}  # fmt: skip


def run(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    if arguments:  # the parser of the other commands may not be installed
        raise ValueError(f"expected no option but --help; got {arguments[0]!r}.")
    with warnings.catch_warnings(record=True) as caught:  # torch only warns of a driver that is too old
        warnings.simplefilter("always")
        broken = {name: why for name in ("torch", "numpy") if (why := problem(import_module, name))}
        core_works = not broken and not problem(take_step, "cpu")
        devices, notes = ({}, []) if broken else (find_devices(), torchvision_notes(broken))
    notes += [first_line(warning.message) for warning in caught]
    environment = [*versions(broken), *devices.items(), ("cache", describe_cache())]
    for label, text in [*environment, ("", ""), *features(broken)]:
        print_wrapped(text, f"{label:21}", " " * 21)
    for note in dict.fromkeys(notes):
        print_wrapped(f"Note: {note}", "\n")
    print("\nThe core works." if core_works else "\nThe core does not work: pip install --upgrade torch numpy")
    print("Please paste all of this into a bug report. Your home folder is written as ~.")
    return 0 if core_works else 1


def print_wrapped(text: str, first: str, later: str = "") -> None:
    """On a screen of 80 columns; versions and commands are not broken at a hyphen."""
    print(textwrap.fill(text, 80, initial_indent=first, subsequent_indent=later, break_on_hyphens=False))


def problem(action: Callable[[str], object], name: str) -> str:
    """Why something does not work, in one line; nothing if it does. Broken libraries raise almost anything."""
    try:
        action(name)
    except Exception as error:
        return first_line(error)
    return ""


def first_line(message: object) -> str:
    """The first line of a message, without a user's name in paths."""
    line, home = next(iter(str(message).strip().splitlines()), type(message).__name__), os.path.expanduser("~")
    return line.replace(home, "~") if len(home) > 1 else line


def versions(broken: dict[str, str]) -> Iterator[tuple[str, str]]:
    own, where = installed("spectail"), ", in a virtual environment" * (sys.prefix != sys.base_prefix)
    yield "spectail", __version__ + f" (its metadata: {own or 'none, it is not installed'})" * (own != __version__)
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}){where}"
    yield "platform", platform.platform()
    for name in ("torch", "numpy"):
        number, why = installed(name) or "not installed", broken.get(name)
        yield name, f"{number}, does not import: {why}" if why and installed(name) else number


def find_devices() -> dict[str, str]:
    """CPU and GPUs, each with a step of the loss tried on it: a build without kernels for a GPU fails only then."""
    import torch  # noqa: PLC0415 - known to import by now
    from torch.utils import collect_env  # noqa: PLC0415

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    build = f"ROCm {torch.version.hip}" if torch.version.hip else build
    capability = torch.backends.cpu.get_cpu_capability()
    devices = {"cpu": f"{torch.get_num_threads()} threads of torch ({build}), capability {capability}"}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        driver = collect_env.get_nvidia_driver_version(collect_env.run)  # type: ignore[no-untyped-call]
        card = torch.cuda.get_device_properties(index)
        about = f"{card.name}, {card.total_memory / 1e9:.1f} GB, capability {card.major}.{card.minor}"
        devices[f"cuda:{index}"] = about + (f", driver {driver}" if driver else "")
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    failed = {name: f"; a step of CAR FAILS: {why}" for name in devices if (why := problem(take_step, name))}
    return {name: about + failed.get(name, "") for name, about in devices.items()}


def take_step(device: str) -> None:
    """A step of CARLoss, which must give a gradient."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from ..car_loss import CARLoss  # noqa: PLC0415

    counts = torch.from_numpy(np.array([4, 2, 1])).tolist()  # fails where numpy and torch do not fit
    logits = torch.arange(12.0, device=device).view(4, 3).cos().requires_grad_()
    CARLoss(counts).to(device)(logits, torch.tensor([0, 0, 1, 2], device=device)).backward()
    if logits.grad is None or not logits.grad.isfinite().all() or not logits.grad.any():
        raise ValueError("the gradient is zero or not finite")


def torchvision_notes(broken: dict[str, str]) -> list[str]:
    """Imports torchvision as spectail does. Operators that do not load are no fault, so they are a note."""
    if installed("torchvision") is None:
        return []
    from .._utils import torchvision_ops  # noqa: PLC0415 - declares what is missing, if anything is

    if why := problem(import_module, "torchvision"):
        broken["torchvision"] = f"does not import: {why}"
        return []
    return [HANDLED] if torchvision_ops._declared is not None else []


def describe_cache() -> str:
    try:
        folder = import_module("spectail._utils.files").cache_folder().absolute()
        above = next(path for path in (folder, *folder.parents) if os.path.exists(path))
        free = shutil.disk_usage(above).free / 1e9
        size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    except (ImportError, RuntimeError, OSError) as error:  # numpy is missing, or the user has no home
        return f"not found ({first_line(error)})"
    writable = "can be" if above.is_dir() and os.access(above, os.W_OK | os.X_OK) else "CANNOT BE"
    filled = f"{size:,.1f} MB" if folder.is_dir() else "not made yet"
    return f"{first_line(folder)}, {filled}, {writable} written, {free:,.1f} GB free"


def features(broken: dict[str, str]) -> Iterator[tuple[str, str]]:
    """For each extra whether it is complete, its packages, and the command that brings what is missing."""
    shown: set[str] = set()
    for extra, name in EXTRAS.items():
        packages = required(extra, broken) if installed("packaging") else {"packaging": "missing"}  # all bring it
        named = ", ".join(f"{one} {why}".strip() for one, why in packages.items() if why or one not in shown)
        shown |= packages.keys()  # a package that works is named once
        yield name, f"{'not ready' if any(packages.values()) else 'ready'}: {named}".removesuffix(": ")
        if any(packages.values()):
            yield "", pip_install(extra, upgrade=True)


def required(extra: str, broken: dict[str, str]) -> dict[str, str]:
    """What is wrong with each package of an extra, by spectail's own metadata; nothing if it works."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - every extra brings it, the core does not

    lines = metadata("spectail").get_all("Requires-Dist") if installed("spectail") else None
    packages: dict[str, str] = {}
    for wanted in map(Requirement, lines or []):
        if wanted.marker is None or not wanted.marker.evaluate({"extra": extra}) or wanted.name == "spectail":
            continue  # of the core, of another extra, or an extra of ours in this one, whose packages are listed too
        if number := installed(wanted.name):
            fits, label = wanted.specifier.contains(number, prereleases=True), f"{wanted.name} {number}"
            why = broken.get(wanted.name, "" if fits else f"not {wanted.specifier}")
            packages[label] = packages.get(label) or why  # one package may be asked for twice
        else:
            packages[wanted.name] = "missing"
    return packages or {"spectail": "must be installed again: its metadata do not name this extra"}
