"""`spectail train`: one run."""

from __future__ import annotations

import json

from ..report.labels import label
from ..training.loop import train
from ..training.signals import Interrupted
from .console import ConsoleReporter, make_console, show_results
from .train_flags import parse

FLAGS = ("--resume", "--quiet", "--json", "--no-report")
DESCRIPTION = """Train a method on a data set.

  --resume             go on with the run in --output
  --quiet              print the result only
  --json               print results.json
  --no-report          write no report.html"""


def run(arguments: list[str]) -> None:
    own = {flag for flag in FLAGS if flag in arguments}
    rest = [argument for argument in arguments if argument not in own]
    config = parse(rest, "spectail train", DESCRIPTION)
    console = make_console(stderr="--json" in own)
    reporter = ConsoleReporter(console, quiet=bool(own & {"--quiet", "--json"}))
    try:
        results = train(config, resume="--resume" in own, reporter=reporter)
    except Interrupted as message:
        console.print(f"spectail train: {message}")
        raise SystemExit(130) from None
    if not reporter.is_main:
        return
    if "--json" in own:
        print(json.dumps(results, indent=1))
    else:
        show_results(console, {label(results): [results]})
        console.print(f"results in {config.output}", soft_wrap=True)
    if "--no-report" not in own:
        from .report import report_or_say  # noqa: PLC0415 - matplotlib is slow to import, and a run may not need it

        def say(text: str) -> None:
            if "--json" not in own:
                console.print(text, soft_wrap=True)

        report_or_say([config.output], config.output / "report.html", say)
