"""`spectail train`: one run."""

from __future__ import annotations

import json

from .train_flags import parse


def run(arguments: list[str]) -> None:
    config, printing = parse(arguments)
    # the flags are read, and help is shown, without the engine
    from ..report.run_record import ended_run, label  # noqa: PLC0415
    from ..training.loop import train  # noqa: PLC0415
    from ..training.signals import Interrupted  # noqa: PLC0415
    from .console import ConsoleReporter, make_console, show_results  # noqa: PLC0415

    console = make_console(stderr=printing.json)
    reporter = ConsoleReporter(console, quiet=printing.quiet or printing.json)
    try:
        results = train(config, resume=printing.resume, reporter=reporter)
    except Interrupted as message:
        console.print(f"spectail train: {message}")
        raise SystemExit(130) from None
    if not reporter.is_main:
        return
    if printing.json:
        print(json.dumps(results, indent=1))
    else:
        show_results(console, {label(results): [results]})
        console.print(f"results in {config.output}", soft_wrap=True)
    if printing.report:
        from .report import report_or_say  # noqa: PLC0415 - matplotlib is slow to import, and a run may not need it

        def say(text: str) -> None:
            if not printing.json:
                console.print(text, soft_wrap=True)

        report_or_say(lambda: [ended_run(config, results)], config.output / "report.html", say)
