"""What averaging does to CAR's gradient, beside the factors 1 - beta and (1 - beta)^2 of the paper's analysis.

A linear classifier on Gaussian classes with a long tail is held fixed; batches are drawn from its training set, and the
gradient of CAR is taken at every step, for both kinds of averaging. Each seed has its own classes and its own batches.

    python benchmarks/ema_stability.py             results/ema_stability.json and docs/figures/ema_stability.png
    python benchmarks/ema_stability.py --steps 100 --seeds 0        a quick look
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from stream import exponential_counts

from spectail._utils.files import write_json
from spectail.counts import ClassCounts
from spectail.functional import soft_confusion
from spectail.report.figures import BLUE, RED, save, styled
from spectail.theory import LinearProblem, Stability, ema_stability, linear_problem

HERE = Path(__file__).parent
COLOURS = {"batch": RED, "class": BLUE}
LABELS = {"batch": 'ema="batch"', "class": 'ema="class"'}
MARKERS = {"batch": "o", "class": "s"}
Curves = Callable[[Stability, str], list[float]]


def absent_gap(problem: LinearProblem, counts: ClassCounts, batch_size: int) -> float:
    """The relative CM gap that batch averaging keeps for ever, because classes absent from a batch enter as zeros."""
    whole = soft_confusion(problem.features @ problem.weight.T + problem.bias, problem.labels)
    absent = (1 - counts.frequencies) ** batch_size
    return float((whole * absent).norm() / whole.norm())


def table(runs: list[Stability]) -> list[dict[str, float | str]]:
    """Means over the seeds."""
    rows: list[dict[str, float | str]] = []
    for mode in runs[0].measured:
        for place, beta in enumerate(runs[0].betas):
            points = [run.measured[mode][place] for run in runs]
            rows.append(
                {
                    "ema": mode,
                    "beta": beta,
                    "predicted_gain": runs[0].predicted_gain[place],
                    "gain": statistics.mean(run.gain(mode)[place] for run in runs),
                    "predicted_variance": runs[0].predicted_variance[place],
                    "variance": statistics.mean(run.variance(mode)[place] for run in runs),
                    "noise": statistics.mean(point.noise for point in points),
                    "turn": statistics.mean(point.turn for point in points),
                    "aligned": statistics.mean(point.aligned for point in points),
                    "gap": statistics.mean(point.gap for point in points),
                }
            )
    return rows


@styled
def save_figure(path: Path, runs: Sequence[Stability], title: str) -> None:
    """Four panels over beta: mean of the runs as a line, their range as a band, the predictions dashed."""
    if not runs:
        raise ValueError("there is nothing to draw: pass at least one result of ema_stability.")
    first = runs[0]
    if any(run.betas != first.betas or run.measured.keys() != first.measured.keys() for run in runs):
        raise ValueError("the runs must share their betas and modes; measure them with the same settings.")
    figure = Figure(figsize=(9.5, 7.2), layout="constrained")
    panels = figure.subplots(2, 2).flat
    _panel(next(panels), runs, Stability.gain, "gradient norm, over that at β = 0", first.predicted_gain, "1 - β")
    _panel(
        next(panels), runs, Stability.variance, "gradient variance, over that at β = 0",
        first.predicted_variance, "(1 - β)²",
    )  # fmt: skip
    _panel(next(panels), runs, _noise, "variance over squared mean gradient")
    _panel(next(panels), runs, _gap, "relative CM gap")
    figure.suptitle(title, x=0.01, ha="left")
    save(figure, path)


def _panel(
    axes: Axes,
    runs: Sequence[Stability],
    curves: Curves,
    what: str,
    predicted: list[float] | None = None,
    formula: str = "",
) -> None:
    betas = runs[0].betas
    kept = [1 - beta for beta in betas]
    if predicted is not None:
        axes.plot(kept, predicted, "--", color="0.35", label=f"predicted: {formula}")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    for mode in runs[0].measured:
        values = list(zip(*(curves(run, mode) for run in runs), strict=True))
        mean = [sum(several) / len(several) for several in values]
        axes.plot(
            kept, mean, marker=MARKERS[mode], markersize=4, color=COLOURS[mode], label=f"measured: {LABELS[mode]}"
        )
        lowest, highest = [min(several) for several in values], [max(several) for several in values]
        axes.fill_between(kept, lowest, highest, color=COLOURS[mode], alpha=0.2, linewidth=0)
    if predicted is None:
        axes.set_ylim(bottom=0)
    axes.set_xscale("log")
    axes.invert_xaxis()  # more averaging to the right
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{beta:g}" for beta in betas])
    axes.set_xlabel("β (spaced by log(1 - β))")
    axes.set_title(what, loc="left", fontsize="medium")
    axes.legend()


def _noise(run: Stability, mode: str) -> list[float]:
    return [point.noise for point in run.measured[mode]]


def _gap(run: Stability, mode: str) -> list[float]:
    return [point.gap for point in run.measured[mode]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--largest", type=int, default=500, help="images in the largest class")
    parser.add_argument("--imbalance", type=float, default=50.0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=600, help="batches measured at each beta")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=HERE / "results" / "ema_stability.json")
    parser.add_argument("--figure", type=Path, default=HERE.parent / "docs" / "figures" / "ema_stability.png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    counts = ClassCounts(exponential_counts(options.classes, options.largest, options.imbalance))
    runs, accuracies, limits = [], [], []
    for seed in options.seeds:
        problem = linear_problem(counts, seed=seed)
        right = (problem.features @ problem.weight.T + problem.bias).argmax(1) == problem.labels
        accuracies.append(100 * float(right.double().mean()))
        limits.append(absent_gap(problem, counts, options.batch_size))
        runs.append(ema_stability(problem, steps=options.steps, batch_size=options.batch_size, seed=seed))
    rows = table(runs)
    print("| ema | beta | gain | 1 - beta | variance | (1 - beta)^2 | noise | turn, degrees | aligned | CM gap |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['ema']} | {row['beta']:g} | {row['gain']:.3f} | {row['predicted_gain']:.2f} | "
            f"{row['variance']:.2g} | {row['predicted_variance']:.2g} | {row['noise']:.1f} | {row['turn']:.1f} | "
            f"{row['aligned']:.2f} | {row['gap']:.2f} |"
        )
    settings = {
        "classes": options.classes, "class_counts": counts.tolist(), "batch_size": options.batch_size,
        "steps": options.steps, "seeds": options.seeds, "train_accuracy": accuracies, "absent_gap": limits,
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    write_json(options.output, {"settings": settings, "means": rows, "runs": [asdict(run) for run in runs]})
    title = f"CAR's gradient and averaging: {options.classes} classes, imbalance {options.imbalance:g}"
    title += f", batch {options.batch_size}, {len(runs)} seeds"
    save_figure(options.figure, runs, title)


if __name__ == "__main__":
    main()
