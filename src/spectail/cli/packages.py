"""Which packages each feature needs, and which are there: read from metadata, without importing them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, metadata, version
from pathlib import Path
from typing import Any, NamedTuple

REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*?\])?\s*\(?([^;)]*)\)?(?:.*\bextra *== *['\"]([\w.-]+)['\"])?")


class Wanted(NamedTuple):
    """A package and the versions of it that are asked for."""

    name: str
    least: str = ""
    below: str = ""
    refused: tuple[str, ...] = ()
    why: str = ""
    """Those are refused."""

    def words(self) -> str:
        parts = [f"{self.least} or newer"] * bool(self.least) + [f"older than {self.below}"] * bool(self.below)
        return ", ".join(parts + [f"not {one}" for one in self.refused]) or "any version"


class Feature(NamedTuple):
    """Something that works once the packages of an extra are there."""

    name: str
    extra: str = ""
    beside: tuple[str, ...] = ()
    """Extras inside this one that have a line of their own."""
    framework: str = ""
    """Module of spectail.integrations; it says which versions work."""
    only: tuple[str, ...] = ()
    """Packages of the extra that matter here; default all."""
    programs: tuple[str, ...] = ()
    """Programs that must be found too, by these names or by variables of these names."""


FEATURES = (
    Feature("core"),
    Feature("training, commands", "train"),
    Feature("report page", "report"),
    Feature("several machines", "experiments", beside=("train", "report")),
    Feature("Hugging Face", "integrations", framework="huggingface"),
    Feature("Lightning", "integrations", framework="lightning"),
    Feature("torchmetrics", "integrations", framework="torchmetrics"),
    Feature("timm", "integrations", framework="timm"),
    Feature("documentation", "docs", beside=("report",)),
    Feature("browser tests", "dev", only=("selenium",), programs=("chromium", "chromedriver")),
)


def installed(name: str) -> str | None:
    """The version of a package, if it is there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def asked() -> dict[str, list[Wanted]]:
    """What spectail's own metadata ask for: packages by extra, those of the core under the empty name."""
    try:
        own = metadata("spectail")
    except PackageNotFoundError:  # a source tree on the path, not an installation
        return {"": [Wanted("torch"), Wanted("numpy")]}
    found: dict[str, list[Wanted]] = {"": [], **{extra: [] for extra in own.get_all("Provides-Extra") or ()}}
    for line in own.get_all("Requires-Dist") or ():
        wanted, extra = parse(line)
        if wanted.name != "spectail":  # an extra of ours inside another; its packages are listed too
            found.setdefault(extra, []).append(wanted)
    return found


def parse(line: str) -> tuple[Wanted, str]:
    """A line of ``Requires-Dist``: the package, and the extra it belongs to.

    Example:
        >>> parse("mkdocs<2,>=1.6,!=1.7.1; extra == 'docs'")
        (Wanted(name='mkdocs', least='1.6', below='2', refused=('1.7.1',), why=''), 'docs')
    """
    found = REQUIREMENT.match(line)
    name, text, extra = found.groups() if found else (line, "", "")
    limits = re.findall(r"(>=|<|!=)\s*([\w.]+)", text)
    least, below = (next((value for sign, value in limits if sign == which), "") for which in (">=", "<"))
    return Wanted(name, least, below, tuple(value for sign, value in limits if sign == "!=")), extra or ""


def look_at(wanted: Wanted, broken: Mapping[str, str]) -> dict[str, Any]:
    """A package: which version is there, and whether it works. ``broken``: packages that do not import, and why."""
    from ..integrations.versions import judge  # noqa: PLC0415 - that room imports torch

    found = installed(wanted.name)
    verdict = "missing" if found is None else judge(found, wanted.least, wanted.refused, wanted.below)
    if found is not None and wanted.name in broken:
        verdict = broken[wanted.name]
    if verdict == "refused" and wanted.why:
        verdict += f": {wanted.why}"
    return {"package": wanted.name, "found": found, "verdict": verdict, "wanted": wanted.words()}


def extras(broken: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """How many packages each extra has, and which of them are missing or do not work."""
    found: dict[str, dict[str, Any]] = {}
    for extra, wanted in asked().items():
        lacking = {one.name: None for one in wanted if look_at(one, broken)["verdict"] != "works"}  # once each
        names = {one.name for one in wanted}
        found |= {extra: {"packages": len(names), "lacks": list(lacking)}} if extra else {}
    return found


def feature(which: Feature, broken: Mapping[str, str]) -> dict[str, Any]:
    """A feature: its packages, whether it is ready, and what to do if not."""
    known = asked()
    found: dict[str, Any] = {"feature": which.name, "extra": which.extra, "packages": [], "fix": None}
    command = f"pip install 'spectail[{which.extra}]'" if which.extra else "pip install --upgrade torch numpy"
    if which.framework:
        found["packages"] = [look_at(framework(which.framework), broken)]
        if found["packages"][0]["verdict"] == "works" and which.framework == "timm" and not timm_saves_tasks():
            found["packages"][0]["verdict"] = "not used: its checkpoints have no place for the state of a loss"
        if found["packages"][0]["verdict"] != "missing":
            command = f"pip install --upgrade {found['packages'][0]['package']}"
    elif which.extra not in known:
        return found | {"state": "unknown", "fix": "install spectail again: this installation does not know the extra"}
    else:
        elsewhere = {wanted.name for extra in which.beside for wanted in known.get(extra, ())}
        own = [one for one in known[which.extra] if one.name not in elsewhere and one.name in (which.only or one.name)]
        found["packages"] = [look_at(wanted, broken) for wanted in own]
    for name in which.programs:
        place = shutil.which(os.environ.get(name.upper(), name))
        verdict = "works" if place else "missing"
        found["packages"].append({"package": name, "found": "" if place else None, "verdict": verdict, "wanted": ""})
    wrong = [one["package"] for one in found["packages"] if one["verdict"] != "works"]
    if wrong and set(wrong) <= set(which.programs):
        command = "install Chromium and its driver, or set CHROMIUM and CHROMEDRIVER"
    return found | {"state": "not ready" if wrong else "ready", "fix": command if wrong else None}


def framework(module: str) -> Wanted:
    """What a module of spectail.integrations asks for, under the name by which it is installed."""
    from ..integrations.versions import FRAMEWORKS  # noqa: PLC0415 - that room imports torch

    needs = FRAMEWORKS[module]
    name = next((name for name in needs.packages if installed(name)), needs.packages[0])
    return Wanted(name, needs.least, "", needs.refused, needs.why)


def timm_saves_tasks() -> bool:
    """Whether spectail.integrations.timm will find what it derives from; importing timm takes seconds."""
    try:
        file = Path(str(distribution("timm").locate_file("timm/task/task.py")))
        return "def get_task_state(" in file.read_text(encoding="utf-8")
    except (PackageNotFoundError, OSError):
        return False
