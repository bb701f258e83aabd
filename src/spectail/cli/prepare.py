"""`spectail prepare DATASET`: find or build a data set, check it, write its manifest and a plot of its classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from ..data.config import DataConfig
from ..data.datasets import load
from ..data.manifest import Manifest
from ..report import class_counts
from .arguments import read_flags
from .console import ConsoleReporter, make_console
from .outputs import check_folder, check_output


@dataclass(frozen=True)
class Prepare(DataConfig):
    """Find or build a data set, check it, and write manifest.json and class_counts.png."""

    dataset: tyro.conf.Positional[str] = "glyphs-lt"
    """A name from `spectail list datasets`, or the path of a folder of class folders, of a list, or of a .parquet, .npz
    or .npy file."""
    output: Path | None = None
    """Folder for the manifest and the plot. Default: prepared/ and the name of the set."""
    expect: str | None = None
    """Identity that the data must have, for example the one a colleague got."""
    overwrite: bool = False
    """Replace the manifest of other data in the output folder."""
    json: bool = False
    """Print the manifest as JSON instead of tables."""
    quiet: bool = False
    """Print only where the manifest is and its identity."""


def run(arguments: list[str]) -> None:
    config = read_flags(Prepare, "spectail prepare", arguments)
    if config.output is not None:
        check_folder(config.output)
    console = make_console(stderr=config.json)
    reporter = ConsoleReporter(console, quiet=config.quiet or config.json)
    manifest = load(config, track=reporter.track).manifest
    if config.expect is not None and not (len(config.expect) >= 8 and manifest.identity.startswith(config.expect)):
        raise ValueError(
            f"the data has identity {manifest.identity}, expected {config.expect!r} (at least 8 characters of it); "
            "nothing was written."
        )
    folder = config.output if config.output is not None else Path("prepared") / name_of(manifest)
    check_folder(folder)
    path = folder / "manifest.json"
    check_output(path)
    check_output(folder / "class_counts.png")
    again = path.exists() and not config.overwrite
    if again:
        try:
            Manifest.load(path).require_same(manifest, str(path))
        except ValueError as error:
            raise ValueError(f"{error} --overwrite replaces it; --output puts the new one elsewhere.") from None
    if not again or manifest.by_content or not Manifest.load(path).by_content:  # never replace proof by less
        manifest.save(path)
    class_counts.save(folder / "class_counts.png", manifest.counts, config.groups, name_of(manifest))
    if config.json:
        print(path.read_text(encoding="utf-8"), end="")
    elif not config.quiet:
        show(manifest, console)
    done = "the same as before" if again else "written"
    if not manifest.by_content:
        done += "; it goes by file names only, --check full proves the content"
    console.print(f"identity {manifest.identity}  {path} {done}", soft_wrap=True)


def name_of(manifest: Manifest) -> str:
    """A short name for the set and what makes it special: `cifar100-lt-if100`."""
    rule = manifest.rule
    parts = [manifest.dataset.replace(":", "-")]
    if "imbalance" in rule:
        parts.append(f"if{rule['imbalance']:g}")
    if rule["profile"] in ("step", "given"):
        parts.append(rule["profile"])
    if rule.get("selection") == "first-n":
        parts.append("first-n")
    if rule.get("seed"):
        parts.append(f"seed{rule['seed']}")
    if manifest.options.get("num_classes"):
        parts.append(f"{manifest.options['num_classes']}-classes")
    if "val" in manifest.splits:
        parts.append("val")
    return "-".join(parts)


def show(manifest: Manifest, console: Console) -> None:
    """The set on a screen: splits, groups, plot, and what a reader should know."""
    counts, statistics = manifest.counts, manifest.statistics
    splits = Table("split", "images", "classes", "largest", "smallest", title=name_of(manifest), title_justify="left")
    for name, split in manifest.splits.items():
        present = [count for count in split.counts if count]
        splits.add_row(name, f"{split.images:,}", f"{len(present):,}", f"{max(present):,}", f"{min(present):,}")
    console.print(splits)
    groups = Table(f"group ({manifest.groups['convention']})", "classes", "images", "share of images")
    for group, classes in manifest.groups["classes"].items():
        images = manifest.groups["images"][group]
        groups.add_row(group, f"{classes:,}", f"{images:,}", f"{images / counts.total:.1%}")
    console.print(groups)
    console.print(class_counts.text(counts, manifest.groups["convention"], console.width))
    console.print(f"imbalance factor {statistics['imbalance_factor']:g}, Gini {statistics['gini']:.3f}")
    if manifest.ranks:
        console.print(f"rank hash {manifest.ranks} ({rule_of(manifest)})", soft_wrap=True)
    for line in [*manifest.notes, *findings(manifest)]:
        console.print(f"note: {line}", soft_wrap=True)


def rule_of(manifest: Manifest) -> str:
    rule = manifest.rule
    selection = f"ldam-seed{rule['seed']}" if rule["selection"] == "ldam" else rule["selection"]
    return f"{rule['profile']}, {selection}"


def findings(manifest: Manifest) -> list[str]:
    """What the checks of the images found, a sentence each."""
    sentences = manifest.left_out()
    for where, entry in (manifest.checks.get("duplicates") or {}).items():
        if entry["images"]:
            examples = f": {', '.join(entry['examples'])}" if entry.get("examples") else ""
            sentences.append(f"{entry['images']:,} identical images in {where}{examples}")
    if manifest.checks.get("duplicates") is None:
        sentences.append(f"images read: {manifest.checks['read']}; --check full also looks for duplicates")
    capped = manifest.rule.get("capped")
    if capped:
        sentences.append(f"{len(capped):,} classes have fewer images than the rule asks and keep all they have")
    untested = sum(not count for count in manifest.splits["test"].counts)
    if untested:
        sentences.append(f"{untested:,} classes have no test image; their accuracy will be empty, not 0")
    return sentences
