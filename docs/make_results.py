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
import statistics
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
PAGES = (
    DOCS.parent / "README.md",
    DOCS / "results.md",
    DOCS / "results-why.md",
    DOCS / "results-archive.md",
    DOCS / "cost.md",
)
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
    without: tuple[str, ...] = ()
    """All rows but these."""
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
SCRATCH = ("CE", "Balanced Softmax", "car-balanced", "car-worst", "CAR, alpha 0.5", "CAR class-wise, alpha 10")
TRAINED_NAMES = ("cross entropy", "Balanced Softmax", "`car-balanced`", "`car-worst`", "CAR, as in the paper",
                 "CAR class-wise")  # fmt: skip
FURTHER = ("overall", "head", "medium", "tail", "worst_test", "bottom_10pct", "ece", "above_shifted_tail_overall",
           "above_shifted_tail_bottom_10pct", "late_gain")  # fmt: skip
DECAY = ("overall", "tail", "bottom_10pct", "bottom_20pct",
         *(f"above_same_tail_{what}" for what in ("overall", "bottom_10pct", "bottom_20pct")))  # fmt: skip
TABLES = {
    "readme": Part("probe", ("overall", "head", "medium", "tail", "worst_test", "bottom_10pct"), CHOSEN, names=NAMES),
    "probe": Part("probe", (*AT_THE_END, "above_same_tail_worst_test"), CHOSEN, names=NAMES),
    "scratch": Part("scratch", (*AT_THE_END, "worst_train", "late_gain"), SCRATCH, names=TRAINED_NAMES),
    "scratch-earlier": Part("scratch-earlier", (*AT_THE_END, "worst_train", "late_gain"), SCRATCH),
    "scratch-further": Part("scratch", FURTHER, without=SCRATCH[2:]),
    "scratch-long": Part("scratch-long", (*AT_THE_END, "late_gain"), SCRATCH, names=TRAINED_NAMES),
    "variants-scratch": Part("variants-scratch", FURTHER),
    "variants-resnet": Part("variants-resnet", FURTHER),
    "variants-fine-tuned": Part("variants-fine-tuned", FURTHER),
    "variants-probe": Part("variants-probe", FURTHER),
    "resnet": Part("resnet", (*AT_THE_END, "worst_train", "late_gain"), SCRATCH[:5], names=TRAINED_NAMES[:5]),
    "fine-tuned": Part(
        "fine-tuned", (*AT_THE_END, "above_same_tail_worst_test", "late_gain"), SCRATCH[:5], names=TRAINED_NAMES[:5]
    ),
    "tuning": Part("tuning", (*AT_THE_END[:10], "above_same_tail_worst_test", "late_gain")),
    "decay": Part("decay", DECAY),
    "decay-own-length": Part("decay-own-length", DECAY),
    "probe-own-length": Part("probe-own-length", (*AT_THE_END, "above_same_tail_worst_test"), CHOSEN, names=NAMES),
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


@dataclass(frozen=True)
class Drawing:
    """What a figure of a trade-off shows of a file of evidence."""

    evidence: str
    title: str
    """With a place for the imbalance factor."""
    imbalance: float = 100.0
    labels: tuple[str, ...] = ()
    """These rows only; all of them if none is named."""


TO_THE_END = "CIFAR-100-LT, imbalance factor {:g}, linear head on frozen features, trained to the end"
GLYPHS = "glyphs-lt, imbalance factor {:g}, small CNN from scratch"
DRAWN = {
    "probe": Drawing("probe", TO_THE_END),
    "scratch": Drawing("scratch", f"{GLYPHS}, 45 epochs", labels=SCRATCH),
    "fine-tuned": Drawing(
        "fine-tuned", "CIFAR-100-LT, imbalance factor {:g}, EfficientNet-Lite0 fine-tuned at 64 x 64, 12 epochs"
    ),
    "resnet": Drawing("resnet", "CIFAR-100-LT, imbalance factor {:g}, ResNet-32 from scratch, 60 epochs"),
    "trade-off": Drawing("trade-off", PROBE),
    "trade-off-50": Drawing("trade-off", PROBE, 50.0),
    "trade-off-200": Drawing("trade-off", PROBE, 200.0),
    "trade-off-glyphs": Drawing("trade-off-glyphs", f"{GLYPHS}, 14 epochs"),
    "trade-off-resnet": Drawing(
        "trade-off-resnet", "CIFAR-100-LT, imbalance factor {:g}, ResNet-20 from scratch, 12 epochs"
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
    rows = [row for row in rows if row.cell.label not in part.without]
    if part.seeds:
        rows = [only(row, part.seeds) for row in rows if set(part.seeds) <= set(row.seeds)]
    if part.best:
        rows = sorted(rows, key=lambda row: -(figure_of(row, part.metrics[0]).mean or 0.0))[: part.best]
    titles = [TITLES.get(metric, metric.replace("val_", "val ")) for metric in part.metrics]
    names = part.names or [row.cell.label for row in rows]
    lines = [[name, *(shown(figure_of(row, metric), len(row.seeds)) for metric in part.metrics), str(len(row.seeds))]
             for name, row in zip(names, rows, strict=True)]  # fmt: skip
    return markdown(["method", *titles, "seeds"], lines)


def only(row: Row, seeds: Sequence[int]) -> Row:
    """A row as if only these seeds had been run."""
    places = [row.seeds.index(seed) for seed in seeds]
    figures = tuple(replace(one, values=tuple(one.values[place] for place in places)) for one in row.figures
                    if len(one.values) == len(row.seeds))  # fmt: skip
    return replace(row, seeds=tuple(seeds), figures=figures)


def figure_of(row: Row, metric: str) -> Figure:
    return next((figure for figure in row.figures if figure.metric == metric), Figure(metric, (), None))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first columns are words and whose others are numbers."""
    marks = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, marks, *rows))


def curve_lines(name: str) -> list[dict[str, str]]:
    with (DOCS / "evidence" / "curves" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


SHOWN_DECAYS = ("", "0", "1")
"""Of linear heads, in the table along a training; networks have one decay only."""
PARTS = {"first epoch": 0.0, "a quarter": 0.25, "half": 0.5, "end": 1.0}


def confusion_table() -> str:
    """The soft error of rare classes on the training set along a training, by setting and method."""
    runs: dict[tuple[str, ...], dict[int, dict[str, str]]] = {}
    for line in curve_lines("training-confusion"):
        if line["weight decay"] in SHOWN_DECAYS:
            key = tuple(line[name] for name in ("setting", "weight decay", "method"))
            runs.setdefault(key, {})[int(line["epoch"])] = line
    rows = []
    for (setting, decay, method), epochs in runs.items():
        places = [max(1, round(share * max(epochs))) for share in PARTS.values()]
        cells = [f"{float(epochs[place]['tail']):.2f}" for place in places]
        words = f"{setting}, decay {decay}" if decay else setting
        rows.append([words, method, *cells, f"{float(epochs[places[-1]]['head']):.2f}"])
    head = ["setting", "method", *(f"tail, {part}" for part in PARTS), "head, end"]
    return markdown(head, rows, words=2)


def terms_table() -> str:
    """Of linear heads: the two terms of the bound, and what the head does on test images."""
    rows = [
        [line["weight decay"], line["method"], f"{float(line['training tail']):.2f}", f"{float(line['norm']):.1f}",
         *(f"{float(line[name]):.1f}" for name in ("tail", "overall"))]
        for line in curve_lines("bound-terms") if line["setting"] == "frozen"
    ]  # fmt: skip
    head = ["weight decay", "method", "training error of the tail", "norm of the head", "tail", "overall"]
    return markdown(head, rows, words=2)


def offsets_table() -> str:
    """What a constant for each class could give beyond a shift if test errors were known."""
    found = json.loads((BENCHMARKS / "results" / "offsets.json").read_text(encoding="utf-8"))
    rows = [[name, way, *(f"{value:.1f}" for value in figures.values())]
            for name, ways in found.items() for way, figures in ways.items()]  # fmt: skip
    return markdown(["logits of", "moved by", "overall", "tail", "lowest 10 %"], rows, words=2)


def choices_table() -> str:
    """The loss of the candidates that a linear head's features and decay are chosen from."""
    losses: dict[str, list[float]] = {}
    chosen: dict[str, int] = {}
    for line in curve_lines("head-choices"):
        losses.setdefault(line["candidate"], []).append(float(line["loss"]))
        chosen[line["candidate"]] = chosen.get(line["candidate"], 0) + int(line["chosen"])
    rows = [[name, f"{statistics.fmean(found):.3f} ± {statistics.stdev(found):.3f}", f"{chosen[name]} of {len(found)}"]
            for name, found in losses.items()]  # fmt: skip
    return markdown(["features, weight decay", "loss on held-out folds", "chosen by"], rows)


OTHERS = {
    "training-confusion": confusion_table,
    "bound-terms": terms_table,
    "offsets": offsets_table,
    "head-choices": choices_table,
}
"""Tables that are not of an experiment."""


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
        if name in OTHERS:
            table = OTHERS[name]()
        else:
            table = cost_table(name) if name.startswith("cost-") else as_markdown(TABLES[name])
        return f"<!-- table {name} -->\n{table}\n<!-- end -->"

    return MARKED.sub(write, text)


def draw() -> None:
    for name, drawing in DRAWN.items():
        rows = [row for row in rows_of(drawing.evidence) if row.cell.imbalance == drawing.imbalance]
        rows = [row for row in rows if not drawing.labels or row.cell.label in drawing.labels]
        seeds = max(len(row.seeds) for row in rows)
        bars = "95 % intervals of the mean" if seeds > 2 else "bars from one to the other"
        words = f"{drawing.title.format(drawing.imbalance)}, " + (f"{seeds} seeds, {bars}" if seeds > 1 else "one seed")
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
