"""`spectail report RUN...`: an HTML report of one run, or of several side by side."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from ..diagnosis.analysis import Analysis, analyse
from ..diagnosis.comparison import Comparison, compare
from ..diagnosis.verdict import verdict
from ..report import curves
from ..report.figures import check_format
from ..report.page import write_report
from ..report.run_record import RunRecord, read_run, run_names
from ..report.seeds import SeedStudy, group_runs, interval_of, study
from .arguments import read_flags
from .console import make_console
from .outputs import check_output

SHOWN = 12  # runs that are named where a folder of them was given
MOST_LOGITS = 1 << 29  # bytes of scores kept beyond the analysis; they only help to choose example images


@dataclass(frozen=True)
class Report:
    """Write an HTML report of one run, or of several side by side: one file that opens offline in any browser."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of finished runs. The first is compared with the others; seeds of one method are put together."""
    output: Path | None = None
    """The HTML file. Default: report.html, in the folder of a single run or here."""
    curves: Path | None = None
    """Also draw accuracy against CAR's beta, r0, alpha and gamma into this .png, .svg or .pdf file."""
    open: bool = False
    """Open the report in the browser."""
    trust: tuple[str, ...] = ()
    """Methods from elsewhere, as package.module:Class, whose code may run because the folder of a run names them."""


def run(arguments: list[str]) -> None:
    options = read_flags(Report, "spectail report", arguments)
    if not options.runs:
        raise ValueError("expected the folders of one run or more; got none. See spectail report --help.")
    twice = next((folder for folder in options.runs if options.runs.count(folder) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice; expected different runs.")
    if options.curves is not None:
        check_format(options.curves, "--curves")
        check_output(options.curves, flag="--curves")
    path = options.output
    if path is None:
        path = options.runs[0] / "report.html" if len(options.runs) == 1 else Path("report.html")
    check_output(path, (".html", ".htm"), usual="report.html")
    for folder in options.runs:
        inside = runs_inside(folder)
        if inside:
            raise ValueError(_which(folder, inside))
    records = [read_run(folder) for folder in options.runs]
    if options.curves is not None:
        curves.save_curves(curves.find_panels(records), options.curves)
    found = analyse_runs(records)
    make_report(found, path)
    console = make_console()
    for line in found.verdicts:
        console.print(line, soft_wrap=True)
    console.print(f"report in {path}", soft_wrap=True)
    if options.curves is not None:
        console.print(f"curves in {options.curves}", soft_wrap=True)
    if options.open:
        webbrowser.open(path.resolve().as_uri())


def _which(folder: Path, inside: list[Path]) -> str:
    """What to type in place of a folder of runs."""
    shown = " ".join(str(path) for path in inside[:SHOWN])
    more = f" and {len(inside) - SHOWN} more" if len(inside) > SHOWN else ""
    runs = "one finished run" if len(inside) == 1 else f"{len(inside)} finished runs"
    return f"{folder} is a folder of runs; it holds {runs}. Name those to report: spectail report {shown}{more}"


@dataclass(frozen=True)
class Analysed:
    """Finished runs, each analysed, and compared where there are several."""

    records: list[RunRecord]
    analyses: list[Analysis]
    comparison: Comparison | None
    study: SeedStudy | None

    @property
    def verdicts(self) -> list[str]:
        """A line for each comparison with the first run or method."""
        if self.study is not None:
            return [f"{verdict(pair.name, pair.baseline, pair.differences, pair.clear)} ({interval_of(pair)})"
                    for pair in self.study.pairs]  # fmt: skip
        if self.comparison is not None:
            return [f"{verdict(pair.name, pair.baseline, pair.differences)} (one seed, over test images only)"
                    for pair in self.comparison.pairs]  # fmt: skip
        return []


def analyse_runs(records: list[RunRecord]) -> Analysed:
    """Analyse finished runs. Where methods were run with several seeds, these are put together."""
    groups = group_runs(records)
    repeated = len(groups) < len(records)
    names = run_names(records)
    if repeated:
        for group in groups:
            for index, seed in zip(group.places, group.seeds, strict=True):
                names[index] = f"{group.name}, seed {seed}"
    analyses = []
    for record, name in zip(records, names, strict=True):
        analysis = analyse(record.predictions(name), convention=record.config.data.groups)
        logits = analysis.predictions.logits
        if logits is not None and logits.nbytes * len(records) > MOST_LOGITS:
            analysis = replace(analysis, predictions=analysis.predictions.without_logits())
        analyses.append(analysis)
    if repeated:
        return Analysed(records, analyses, None, study(analyses, records, groups))
    return Analysed(records, analyses, compare(analyses) if len(analyses) > 1 else None, None)


def make_report(found: Analysed, path: Path) -> None:
    write_report(found.analyses, path, comparison=found.comparison, runs=found.records, study=found.study)


def report_or_say(runs: Callable[[], list[RunRecord]], path: Path | None, say: Callable[[str], None]) -> None:
    """Verdicts and report of runs that have just ended: if they cannot be had, the runs are none the worse.

    Without a path there is no report.
    """
    try:
        found = analyse_runs(runs())
        for line in found.verdicts:
            say(line)
        if path is not None:
            make_report(found, path)
            say(f"report in {path}")
    except (ValueError, OSError) as error:
        say(f"no report: {error}")


def runs_inside(folder: Path) -> list[Path]:
    """Folders of finished runs below a folder that is none itself, those of `compare` one level deeper too."""
    if (folder / "results.json").is_file() or not folder.is_dir():
        return []
    return sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/results.json")
                  if "networks" not in path.parts)  # fmt: skip
