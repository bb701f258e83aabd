"""`spectail report RUN...`: an HTML report of one run, or of several side by side."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from ..diagnosis.analysis import analyse
from ..diagnosis.comparison import compare
from ..report import curves
from ..report.figures import check_format
from ..report.page import write_report
from ..report.run_record import RunRecord, read_run, run_names
from ..report.seeds import group_runs, study
from .arguments import read_flags
from .console import make_console
from .outputs import check_output

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
    records = [read_run(folder) for folder in options.runs]
    if options.curves is not None:
        curves.save_curves(curves.find_panels(records), options.curves)
    make_report(records, path)
    console = make_console()
    console.print(f"report in {path}", soft_wrap=True)
    if options.curves is not None:
        console.print(f"curves in {options.curves}", soft_wrap=True)
    if options.open:
        webbrowser.open(path.resolve().as_uri())


def make_report(records: list[RunRecord], path: Path) -> None:
    """Analyse finished runs and write the page. Where methods were run with several seeds, these are put together."""
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
        write_report(analyses, path, runs=records, study=study(analyses, records, groups))
        return
    write_report(analyses, path, comparison=compare(analyses) if len(analyses) > 1 else None, runs=records)


def report_or_say(runs: Callable[[], list[RunRecord]], path: Path, say: Callable[[str], None]) -> None:
    """The report of runs that have just ended: if it cannot be written, the runs are none the worse."""
    try:
        make_report(runs(), path)
        say(f"report in {path}")
    except (ValueError, OSError) as error:
        say(f"no report: {error}")
