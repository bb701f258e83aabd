"""`spectail doctor`: versions, devices, and what is missing for which feature. Runs even where torch does not.

Only torch, numpy and torchvision are imported, as importing everything takes half a minute: of the other packages the
metadata tell whether they are installed in a version that works.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import textwrap
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from .. import __version__
from .packages import FEATURES, extras, feature, installed

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
WIDTH, LABEL = 80, 21


def run(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    as_json = read(arguments)
    found = examine()
    print(json.dumps(found, indent=1) if as_json else render(found))
    return 0 if found["core_works"] else 1


def read(arguments: list[str]) -> bool:
    """Whether JSON is asked for."""
    for argument in arguments:
        if argument != "--json":
            raise ValueError(f"expected no option but --json or --help; got {argument!r}.")
    return bool(arguments)


# what there is


def examine() -> dict[str, Any]:
    """All that is known of this installation, as JSON can hold it."""
    with warnings.catch_warnings(record=True) as said:  # torch only warns of a driver that is too old
        warnings.simplefilter("always")
        broken = {name: why for name in ("torch", "numpy") if (why := import_problem(name))}
        devices, notes = [cpu("torch" not in broken)], []
        if not broken:
            devices[0]["car_step"] = step_problem("cpu")
            devices += accelerators()
            notes += torchvision_notes(broken)
    known = "torch" not in broken  # what integrations need is said by modules that import it
    return {
        "spectail": __version__,
        "installed": installed("spectail"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "virtual_environment": sys.prefix != sys.base_prefix,
        "platform": platform.platform(),
        "torch": installed("torch"),
        "torch_build": build() if known else None,
        "numpy": installed("numpy"),
        "devices": devices,
        "cache": cache(),
        "extras": extras(broken) if known else {},
        "features": [feature(which, broken) for which in FEATURES] if known else [],
        "broken": broken,
        "notes": list(dict.fromkeys([*notes, *(words(warning.message) for warning in said)])),
        "core_works": not {"torch", "numpy"} & broken.keys() and not devices[0]["car_step"],
    }


def import_problem(name: str) -> str:
    """Why a package cannot be imported; nothing if it can be."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == name else f"does not import: {words(error)}"
    except Exception as error:  # libraries that do not load raise almost anything
        return f"does not import: {words(error)}"
    return ""


def words(error: object) -> str:
    """The first line of a message, without a user's name in paths."""
    return tilde(next(iter(str(error).strip().splitlines()), type(error).__name__))


def tilde(text: str) -> str:
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def build() -> str:
    import torch  # noqa: PLC0415 - known to import by now

    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"


def cpu(with_torch: bool) -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"device": "cpu", "cores": usable, "car_step": ""}
    if with_torch:
        import torch  # noqa: PLC0415

        found |= {"threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability()}
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found["bf16"] = "in hardware" if re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", flags) else "emulated"
    except OSError:
        pass  # not Linux: not known
    return found


def accelerators() -> list[dict[str, Any]]:
    """GPUs, each with a step of the loss tried on it: a build without kernels for a GPU fails only then."""
    import torch  # noqa: PLC0415

    found: list[dict[str, Any]] = []
    for place in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties, device = torch.cuda.get_device_properties(place), f"cuda:{place}"
        fast = torch.version.hip or properties.major >= 8
        found.append(
            {"device": device, "name": properties.name, "memory": properties.total_memory,
             "capability": f"{properties.major}.{properties.minor}", "bf16": "in hardware" if fast else "emulated",
             "car_step": step_problem(device)}
        )  # fmt: skip
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": "Apple GPU", "car_step": step_problem("mps")})
    return found


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
        return words(error)
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


def cache() -> dict[str, Any]:
    try:
        folder: Path = import_module("spectail._utils.files").cache_folder().absolute()
        place = next(path for path in (folder, *folder.parents) if os.path.exists(path))
        free = shutil.disk_usage(place).free
    except (ImportError, RuntimeError, OSError) as error:  # numpy is missing, or the user has no home
        return {"problem": words(error)}
    size = 0
    for where, _, files in os.walk(folder):
        for file in files:
            try:
                size += os.lstat(os.path.join(where, file)).st_size
            except OSError:
                continue  # deleted meanwhile
    return {
        "folder": tilde(str(folder)),
        "chosen_by": "SPECTAIL_CACHE" if os.environ.get("SPECTAIL_CACHE") else "default",
        "exists": folder.is_dir(),
        "size": size,
        "writable": place.is_dir() and os.access(place, os.W_OK | os.X_OK),
        "free": free,
    }


# how it is shown


def render(found: dict[str, Any]) -> str:
    """The report on a screen of 80 columns."""
    broken = found["broken"]
    title = f"spectail {found['spectail']}"
    if found["installed"] != found["spectail"]:  # metadata of another version, or none beside a source tree
        title += f" (its metadata: {found['installed'] or 'none, it is not installed'})"
    lines = [title]
    lines += row("Python", found["python"] + ", in a virtual environment" * found["virtual_environment"])
    lines += row("platform", found["platform"])
    for package in ("torch", "numpy"):
        about = [found[package], found["torch_build"] if package == "torch" else None, broken.get(package)]
        lines += row(package, ", ".join(filter(None, about)))
    for device in found["devices"]:
        lines += row(device["device"], device_words(device))
    lines += row("cache", cache_words(found["cache"]))
    if found["features"]:
        lines += ["", *(line for extra in found["extras"].items() for line in extra_lines(*extra)), ""]
        lines += [line for one in found["features"] for line in feature_lines(one)]
    else:
        lines += ["", "No feature was looked at, as all need torch: pip install --upgrade torch numpy"]
    for note in found["notes"]:
        lines += ["", *textwrap.wrap(f"Note: {note}", WIDTH, break_on_hyphens=False)]
    verdict = "The core works." if found["core_works"] else "The core does not work."
    return "\n".join([*lines, "", verdict, LAST])


def row(label: str, text: str) -> list[str]:
    """A label, and text beside it on as many lines as it needs."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{label:{LABEL}}", subsequent_indent=" " * LABEL,
        break_on_hyphens=False,
    )  # fmt: skip


def device_words(device: dict[str, Any]) -> str:
    parts = [device["name"]] if "name" in device else [f"{device['cores']} cores"]
    if "threads" in device:
        parts.append(f"threads of torch {device['threads']}")
    if "memory" in device:
        parts.append(f"{device['memory'] / 1e9:.1f} GB")
    if "capability" in device:
        parts.append(f"capability {device['capability']}")
    if "bf16" in device:
        parts.append(f"bf16 {device['bf16']}")
    return ", ".join(parts) + (f"; a step of CAR FAILS: {device['car_step']}" if device["car_step"] else "")


def cache_words(found: dict[str, Any]) -> str:
    if "problem" in found:
        return f"not found ({found['problem']})"
    size = f"{found['size'] / 1e6:,.1f} MB" if found["exists"] else "not made yet"
    write = "can be written" if found["writable"] else "CANNOT BE WRITTEN"
    chosen = " (SPECTAIL_CACHE)" * (found["chosen_by"] != "default")
    return f"{found['folder']}{chosen}, {size}, {write}, {found['free'] / 1e9:,.1f} GB free"


def extra_lines(extra: str, found: dict[str, Any]) -> list[str]:
    count = len(found["lacks"])
    return row(f"extra {extra}", f"lacks {count} of {found['packages']} packages" if count else "complete")


def feature_lines(found: dict[str, Any]) -> list[str]:
    there, missing = [], [one["package"] for one in found["packages"] if one["verdict"] == "missing"]
    for one in found["packages"]:
        if one["verdict"] != "missing":
            wrong = f" {one['verdict']} ({one['wanted']})" if one["verdict"] != "works" else ""
            there.append(" ".join(filter(None, [one["package"], one["found"]])) + wrong)
    parts = [", ".join(there), f"missing {', '.join(missing)}" if missing else ""]
    lines = row(found["feature"], ": ".join(filter(None, [found["state"], "; ".join(filter(None, parts))])))
    return lines + (row("", found["fix"]) if found["fix"] else [])
