"""Tables and figures of README, results page and cost page, from docs/evidence and benchmarks/results.

    python docs/make_results.py              # write them again
    python docs/make_results.py --check      # exit code 1 if a page differs from its evidence

The tables of the cost page are those that `benchmarks/car_step.py` prints. A file of evidence is what `spectail
experiment table NAME --format csv` writes: every cell, every seed. A table stands between two marks, ``<!-- table NAME
-->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spectail.experiments.cells import METHODS
from spectail.experiments.figures import sweeps, trade_off, worst_bars
from spectail.experiments.grids import TAUS
from spectail.experiments.measures import TITLES
from spectail.experiments.tables import Figure, Row, from_csv, shown
from spectail.report.figures import save

DOCS = Path(__file__).parent
BENCHMARKS = DOCS.parent / "benchmarks"
PAGES = (DOCS.parent / "README.md", DOCS / "results.md", DOCS / "results-archive.md", DOCS / "cost.md")
GROUPS = ("overall", "head", "medium", "tail", "worst_test", "zero_classes", "bottom_10pct", "ece")
LINES = (
    "CE",
    *(f"Balanced Softmax, tau {tau:g}" for tau in TAUS),
    *(f"car-balanced, tau {tau:g}" for tau in (0.25, 0.5, 0.75, 1.0, 1.25)),
)
MARKED_CELLS = ("Balanced Softmax, tau 1.375", "car-balanced, tau 0.75")
CURVE = (*GROUPS, "gain_same_tail", "gain_same_bottom_10pct", "gain_best_tail")
VALIDATION = ("val_balanced", "val_head", "val_medium", "val_tail")
MARKED = re.compile(r"<!-- table ([a-z0-9-]+) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """What a table shows of a file of evidence."""

    evidence: str
    metrics: tuple[str, ...] = GROUPS
    labels: tuple[str, ...] = ()
    """These rows, in this order; all of them if none is named."""
    imbalance: float | None = None
    best: int = 0
    """Only so many rows, the best by the first metric."""
    seeds: tuple[int, ...] = ()
    """Only these seeds, and only rows that have them all."""
    names: tuple[str, ...] = ()
    """What to call the rows of ``labels``."""


AT_THE_END = ("overall", "head", "medium", "tail", "worst_test", "bottom_10pct", "bottom_20pct", "ece",
              *(f"above_same_tail_{what}" for what in ("overall", "bottom_10pct", "bottom_20pct")))  # fmt: skip
CHOSEN = ("CE", "CAR, alpha 0.5", "CAR class-wise, alpha 10", "Balanced Softmax, tau 1", "car-balanced, alpha 1",
          "car-worst, alpha 3")  # fmt: skip
NAMES = ("cross entropy", "CAR, as in the paper", "CAR class-wise", "Balanced Softmax", "`car-balanced`", "`car-worst`")
TABLES = {
    "readme": Part("probe", ("overall", "head", "medium", "tail", "worst_test", "bottom_10pct"), CHOSEN, names=NAMES),
    "probe": Part("probe", (*AT_THE_END, "above_same_tail_worst_test"), CHOSEN, names=NAMES),
    "scratch": Part("scratch", (*AT_THE_END, "worst_train", "late_gain")),
    "resnet": Part("resnet", (*AT_THE_END[:8], "worst_train", "late_gain")),
    "fine-tuned": Part("fine-tuned", (*AT_THE_END, "above_same_tail_worst_test", "late_gain")),
    "tuning": Part("tuning", (*AT_THE_END[:10], "above_same_tail_worst_test", "late_gain")),
    "decay": Part(
        "decay",
        (
            "overall",
            "tail",
            "bottom_10pct",
            "bottom_20pct",
            *(f"above_same_tail_{what}" for what in ("overall", "bottom_10pct", "bottom_20pct")),
        ),
    ),
    "combinations-100": Part("combinations", imbalance=100.0),
    "rivals-again": Part("rivals-again", imbalance=100.0),
    "rivals-again-50": Part("rivals-again", imbalance=50.0),
    "rivals-again-200": Part("rivals-again", imbalance=200.0),
    "combinations-50": Part("combinations", imbalance=50.0),
    "combinations-200": Part("combinations", imbalance=200.0),
    "worst-class": Part("worst-class", ("worst_train", "worst_test", "worst_ratio", "overall"), imbalance=100.0),
    "ablations": Part("ablations"),
    "sweeps": Part("sweeps", VALIDATION),
    "search-first": Part("search", VALIDATION, seeds=(0, 1, 2), best=12),
    "search-last": Part("search", VALIDATION, seeds=(0, 1, 2, 3, 4), best=9),
    "search-glyphs": Part("search-glyphs", VALIDATION),
    "trade-off": Part("trade-off", CURVE, imbalance=100.0),
    "trade-off-50": Part("trade-off", CURVE, LINES, imbalance=50.0),
    "trade-off-200": Part("trade-off", CURVE, LINES, imbalance=200.0),
    "selection-50": Part("selection", VALIDATION, imbalance=50.0, best=6),
    "selection-200": Part("selection", VALIDATION, imbalance=200.0, best=6),
    "trade-off-glyphs": Part("trade-off-glyphs", CURVE),
    "trade-off-resnet": Part("trade-off-resnet", (*GROUPS, "gain_same_tail", "gain_best_tail")),
}
BARS = (*METHODS, "Balanced Softmax", "CAR class-wise", "car-balanced")
PROBE = "CIFAR-100-LT, imbalance factor {:g}, linear head on frozen features, 12 epochs"
DRAWN = {
    "probe": (
        "probe",
        100.0,
        "CIFAR-100-LT, imbalance factor {:g}, linear head on frozen features, trained to the end",
    ),
    "scratch": ("scratch", 100.0, "glyphs-lt, imbalance factor {:g}, small CNN from scratch, 45 epochs"),
    "fine-tuned": (
        "fine-tuned",
        100.0,
        "CIFAR-100-LT, imbalance factor {:g}, EfficientNet-Lite0 fine-tuned at 64 x 64, 12 epochs",
    ),
    "trade-off": ("trade-off", 100.0, PROBE),
    "trade-off-50": ("trade-off", 50.0, PROBE),
    "trade-off-200": ("trade-off", 200.0, PROBE),
    "trade-off-glyphs": (
        "trade-off-glyphs",
        100.0,
        "glyphs-lt, imbalance factor {:g}, small CNN from scratch, 14 epochs",
    ),
    "trade-off-resnet": (
        "trade-off-resnet",
        100.0,
        "CIFAR-100-LT, imbalance factor {:g}, ResNet-20 from scratch, 12 epochs",
    ),
}


def rows_of(evidence: str) -> list[Row]:
    path = DOCS / "evidence" / f"{evidence}.csv"
    return [row for row in from_csv(path.read_text(encoding="utf-8")) if row.seeds]


def as_markdown(part: Part) -> str:
    rows = [row for row in rows_of(part.evidence) if part.imbalance in (None, row.cell.imbalance)]
    if part.labels:
        named = {row.cell.label: row for row in rows}
        rows = [named[label] for label in part.labels]
    if part.seeds:
        rows = [only(row, part.seeds) for row in rows if set(part.seeds) <= set(row.seeds)]
    if part.best:
        rows = sorted(rows, key=lambda row: -(figure_of(row, part.metrics[0]).mean or 0.0))[: part.best]
    titles = [TITLES.get(metric, metric.replace("val_", "val ")) for metric in part.metrics]
    lines = [["method", *titles, "seeds"], ["---"] + ["---:"] * (len(titles) + 1)]
    names = part.names or [row.cell.label for row in rows]
    lines += [[name, *(shown(figure_of(row, metric)) for metric in part.metrics), str(len(row.seeds))]
              for name, row in zip(names, rows, strict=True)]  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def only(row: Row, seeds: Sequence[int]) -> Row:
    """A row as if only these seeds had been run."""
    places = [row.seeds.index(seed) for seed in seeds]
    figures = tuple(replace(one, values=tuple(one.values[place] for place in places)) for one in row.figures
                    if len(one.values) == len(row.seeds))  # fmt: skip
    return replace(row, seeds=tuple(seeds), figures=figures)


def figure_of(row: Row, metric: str) -> Figure:
    return next((figure for figure in row.figures if figure.metric == metric), Figure(metric, (), None))


WATCHED = ("1", "4", "12", "24")
"""Epochs of a head whose training confusion is shown."""


def confusion_table() -> str:
    """The soft error of rare classes on the training set along a training, by weight decay and method."""
    with (DOCS / "evidence" / "curves" / "training-confusion.csv").open(encoding="utf-8") as file:
        found = {(line["weight decay"], line["method"], line["epoch"]): line for line in csv.DictReader(file)}
    heads = dict.fromkeys((decay, method) for decay, method, _ in found)
    lines = [["weight decay", "method", *(f"tail, epoch {epoch}" for epoch in WATCHED), "head, epoch 24"]]
    lines += [["---:", "---"] + ["---:"] * (len(WATCHED) + 1)]
    for head in heads:
        cells = [f"{float(found[*head, epoch]['tail']):.2f}" for epoch in WATCHED]
        lines += [[*head, *cells, f"{float(found[*head, WATCHED[-1]]['head']):.2f}"]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cost_table(name: str) -> str:
    """A table of what a step costs, as the benchmark prints it."""
    sys.path.append(str(BENCHMARKS))
    import car_step  # noqa: PLC0415

    found = json.loads((BENCHMARKS / "results" / "car_step.json").read_text(encoding="utf-8"))
    if name == "cost-step":
        return car_step.table([car_step.without_fixed(row) for row in found["sizes"]])
    if name == "cost-fixed":
        return car_step.fixed_table(found["sizes"])
    return {"cost-memory": car_step.memory_table, "cost-growth": car_step.growth_table}[name](found[name[5:]])


def filled(text: str) -> str:
    """A page with its tables written again."""

    def write(mark: re.Match[str]) -> str:
        name = mark[1]
        if name == "training-confusion":
            table = confusion_table()
        else:
            table = cost_table(name) if name.startswith("cost-") else as_markdown(TABLES[name])
        return f"<!-- table {name} -->\n{table}\n<!-- end -->"

    return MARKED.sub(write, text)


def draw() -> None:
    for name, (evidence, factor, title) in DRAWN.items():
        rows = [row for row in rows_of(evidence) if row.cell.imbalance == factor]
        seeds = max(len(row.seeds) for row in rows)
        bars = "95 % intervals of the mean" if seeds > 2 else "bars from one to the other"
        words = f"{title.format(factor)}, " + (f"{seeds} seeds, {bars}" if seeds > 1 else "one seed")
        marked = MARKED_CELLS if name == "trade-off" else ()  # chosen there
        save(trade_off(rows, words, marked), DOCS / "figures" / f"{name}.png")
    bars = [row for row in rows_of("worst-class") if row.cell.imbalance == 100.0 and row.cell.label in BARS]
    save(worst_bars(bars, f"{PROBE.format(100)}, 5 seeds, 95 % intervals"), DOCS / "figures" / "worst-class.png")
    title = "CIFAR-100-LT, imbalance factor 100, linear head, three cuts of validation data, 95 % intervals of the mean"
    save(sweeps(rows_of("sweeps"), title), DOCS / "figures" / "sweeps.png")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Tables and figures from the evidence.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    stale = [path for path, text in pages.items() if filled(text) != text]
    if check:
        for path in stale:
            print(f"{path.name} differs from its evidence: python docs/make_results.py", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.write_text(filled(pages[path]), encoding="utf-8")
    draw()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
