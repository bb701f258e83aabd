"""What one step of CAR costs: forward + backward on given logits, beside cross entropy and a plain SVD version.

Everything is measured in one run with one thread, interleaved step by step on the same logits, after the history has
been filled. The figures of interest are ratios: machines are noisy, and noise hits both sides alike.

    OMP_NUM_THREADS=1 python benchmarks/car_step.py                  the tables, the accuracy, the memory, the growth
    OMP_NUM_THREADS=1 python benchmarks/car_step.py --classes 100    one size only

The variable is for numpy, which has threads of its own.

CAR is timed by itself, and so is ``CARLoss``, which is cross entropy and CAR together: one softmax serves both there.

There are two streams of simulated logits (``stream.py``), because the cost depends on the data. Calls of torch are
counted beside the times: with few classes they are the cost. ``fixed`` is the path of an accelerator, here on a CPU:
its calls and its accuracy are of interest, its time says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from stream import STREAMS, exponential_counts, simulate
from svd_version import SVDVersion
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spectail import CAR, CARLoss
from spectail import functional as SF

MAKERS = {
    "batch": CAR,
    "class": CAR.classwise,
    "batch, fixed": partial(CAR, solver="fixed"),
    "class, fixed": partial(CAR.classwise, solver="fixed"),
}
WORST = {"worst, batch": partial(CAR, norm="worst"), "worst, class": partial(CAR.classwise, norm="worst")}
LOSSES = {  # cross entropy + CAR, as most people use it
    "batch, loss": CARLoss,
    "class, loss": CARLoss.classwise,
    "worst, loss": CARLoss.worst,
}
SURROGATE = {"batch": {}, "class": {"gamma": 2.0, "competitors": "non-target"}}
LABELS = {
    "batch": "CAR, batch EMA",
    "class": "CAR, class EMA",
    "batch, fixed": "the same, fixed path",
    "class, fixed": "the same, fixed path",
    "batch, loss": "CARLoss, batch EMA",
    "class, loss": "CARLoss, class EMA",
    "worst, batch": "norm='worst', batch EMA",
    "worst, class": "norm='worst', class EMA",
    "worst, loss": "CARLoss.worst",
    "svd": "plain SVD version",
}


class Calls(TorchDispatchMode):
    """Counts operations that reach torch's dispatcher, views among them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def timed(loss: Any, logits: Tensor, labels: Tensor) -> tuple[float, Tensor, Tensor]:
    """Milliseconds of forward + backward, the value and the gradient."""
    logits = logits.detach().requires_grad_(True)
    start = time.perf_counter()
    value = loss(logits, labels)
    value.backward()
    elapsed = time.perf_counter() - start
    assert logits.grad is not None
    return elapsed * 1e3, value.detach(), logits.grad


class Oracle:
    """The same history in float64, kept densely, with the exact norm of any step on request."""

    def __init__(self, counts: list[int], ema: str, beta: float, norm: str) -> None:
        self.ema, self.beta, self.norm = ema, beta, norm
        self.weights = SF.class_weights(counts).double()
        self.rows = torch.zeros(len(counts), len(counts), dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        present = labels.unique()
        columns = self._batch(logits.double(), labels).T[present] * self.weights[present, None]
        if self.ema == "batch":
            self.rows.mul_(self.beta)
            self.rows[present] += (1 - self.beta) * columns
        else:
            self.rows[present] = self.beta * self.rows[present] + (1 - self.beta) * columns

    def errors(self, logits: Tensor, labels: Tensor, value: Tensor, gradient: Tensor) -> tuple[float, float, float]:
        """sigma2 / sigma1, relative error of the value, relative error of the gradient."""
        sigma, second, u, v = leading(self.rows) if self.norm == "spectral" else worst(self.rows)
        exact = logits.double().detach().requires_grad_(True)
        batch = self._batch(exact, labels)
        ((1 - self.beta) * (u @ batch @ (self.weights * v))).backward()
        reference = exact.grad
        assert reference is not None
        return (
            second / sigma,
            abs(float(value) / sigma - 1),
            float((gradient - reference).norm() / reference.norm()),
        )

    def _batch(self, logits: Tensor, labels: Tensor) -> Tensor:
        return SF.soft_confusion(logits, labels, **SURROGATE[self.ema])


def worst(rows: Tensor, sharpness: float = 20.0) -> tuple[float, float, Tensor, Tensor]:
    """The same for the soft maximum of the class errors, which has no second value and weighs all rivals alike."""
    errors = rows.sum(1)
    shares = (sharpness * errors / errors.max()).softmax(0)
    return float(errors @ shares), 0.0, torch.ones_like(errors), shares


def leading(rows: Tensor) -> tuple[float, float, Tensor, Tensor]:
    """Two largest singular values and the top pair: eigh up to 1,500 classes, block power steps to 1e-12 above."""
    if len(rows) <= 1500:
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        u = vectors[:, -1]
        sigma, second = float(values[-1].sqrt()), float(values[-2].clamp_min(0).sqrt())
    else:
        basis = torch.linalg.qr(
            torch.rand(len(rows), 12, dtype=rows.dtype, generator=torch.Generator().manual_seed(0))
        )[0]
        before = 0.0
        for _ in range(2000):
            image = rows @ basis
            values, vectors = torch.linalg.eigh(image.T @ image)
            u = basis @ vectors[:, -1]
            sigma, second = float(values[-1].sqrt()), float(values[-2].clamp_min(0).sqrt())
            if abs(sigma - before) <= 1e-13 * sigma:
                break
            before = sigma
            basis = torch.linalg.qr(rows.T @ image)[0]
    u = u * u.sum().sign()
    return sigma, second, u, rows @ u / sigma


def measure(
    num_classes: int,
    batch: int,
    fill: int,
    steps: int,
    svd_steps: int = 0,
    stream: str = "families",
    names: tuple[str, ...] = ("batch", "class"),
) -> dict[str, Any]:
    """Times of all methods on the same logits, interleaved, after ``fill`` batches; then one step to count calls."""
    make_counts, draw = STREAMS[stream]
    counts = make_counts(num_classes)
    methods: dict[str, Any] = {"cross entropy": F.cross_entropy}
    methods |= {name: (MAKERS | WORST | LOSSES)[name](counts) for name in names}
    svd = SVDVersion(counts)
    times: dict[str, list[float]] = {name: [] for name in (*methods, "svd")}
    iterations: dict[str, list[int]] = {name: [] for name in names}
    for step, (logits, labels) in enumerate(draw(num_classes, batch, fill + steps)):
        for name, method in methods.items():
            ms, _, _ = timed(method, logits, labels)
            if step >= fill:
                times[name].append(ms)
                if name in iterations:
                    iterations[name].append(getattr(getattr(method, "car", method).last, "iterations", 0))
        if fill <= step < fill + svd_steps:
            times["svd"].append(timed(svd, logits, labels)[0])
    base = times["cross entropy"]
    result: dict[str, Any] = {"stream": stream, "classes": num_classes, "batch": batch, "fill": fill, "steps": steps}
    result["methods"] = {}
    for name, values in times.items():
        if values:
            result["methods"][name] = {
                "ms_min": min(values),
                "ms_median": statistics.median(values),
                "ratio_min": min(values) / min(base),
                "ratio_median": statistics.median(values) / statistics.median(base),
            }
    for name, counted in iterations.items():
        result["methods"][name]["iterations"] = statistics.mean(counted)
    for name, method in methods.items():
        with Calls() as calls:
            timed(method, logits, labels)
        result["methods"][name]["calls"] = calls.count
    return result


def accuracy(
    num_classes: int,
    batch: int,
    steps: int,
    checks: int,
    stream: str = "families",
    names: tuple[str, ...] = ("batch", "class"),
) -> dict[str, dict[str, Any]]:
    """Largest errors of value and gradient against float64 over a simulated run, with the settings that are timed.

    The gradient counts where sigma2 / sigma1 <= 0.95; closer than that the top direction itself is ill-defined.
    """
    make_counts, draw = STREAMS[stream]
    counts = make_counts(num_classes)
    result = {}
    for name in names:
        car = (MAKERS | WORST)[name](counts)
        oracle, rows = Oracle(counts, car.ema, car.beta, car.norm), []
        for step, (logits, labels) in enumerate(draw(num_classes, batch, steps)):
            _, value, gradient = timed(car, logits, labels)
            oracle.update(logits, labels)
            if step % (steps // checks) == steps // checks - 1:
                rows.append(oracle.errors(logits, labels, value, gradient))
        clear = [row for row in rows if row[0] <= 0.95]
        result[name] = {
            "checks": len(rows),
            "value_error": max(row[1] for row in rows),
            "clear_checks": len(clear),
            "clear_value_error": max((row[1] for row in clear), default=None),
            "gradient_error": max((row[2] for row in clear), default=None),
        }
    return result


def peak_memory(num_classes: int, batch: int, ema: str, steps: int) -> dict[str, float]:
    """Peak resident memory that CAR adds to a process that already runs cross entropy on the same logits, in MB."""
    command = [sys.executable, __file__, "--memory-of", ema, "--classes", str(num_classes), "--batch", str(batch)]
    done = subprocess.run([*command, "--fill", str(steps)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def memory_child(num_classes: int, batch: int, ema: str, steps: int) -> None:
    def peak() -> float:
        # Not getrusage: its maximum includes the parent's memory from before the exec.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6

    data = list(simulate(num_classes, batch, 3))
    timed(F.cross_entropy, *data[0])
    timed(MAKERS[ema](exponential_counts(200)), torch.randn(batch, 200), torch.randint(200, (batch,)))  # libraries
    before = peak()
    car = MAKERS[ema](exponential_counts(num_classes))
    for step, (logits, labels) in enumerate(simulate(num_classes, batch, steps)):
        timed(car, logits, labels)
        if step == 2:
            early = peak()
    state = sum(value.numel() * value.element_size() for value in car.state_dict().values()) / 1e6
    print(json.dumps({"extra_peak_mb": peak() - before, "after_3_steps_mb": early - before, "state_dict_mb": state}))


def without_fixed(row: dict[str, Any]) -> dict[str, Any]:
    """A size without the fixed path, whose times on a CPU say nothing."""
    return row | {"methods": {name: entry for name, entry in row["methods"].items() if "fixed" not in name}}


def fixed_table(rows: list[dict[str, Any]]) -> str:
    """Calls of the fixed path, and its largest errors over all streams and sizes."""
    lines = ["| fixed path | calls | value err | gradient err |", "|---|---|---|---|"]
    for ema in ("batch", "class"):
        entries = [row["methods"][f"{ema}, fixed"] for row in rows if f"{ema}, fixed" in row["methods"]]
        worst = [max(entry[key] for entry in entries) for key in ("value_error", "gradient_error")]
        lines.append(f"| {LABELS[ema]} | {entries[0]['calls']} | {worst[0]:.1e} | {worst[1]:.1e} |")
    return "\n".join(lines)


def memory_table(memory: dict[str, dict[str, float]]) -> str:
    lines = ["| method | extra peak memory, MB | of these in `state_dict`, MB |", "|---|---|---|"]
    for ema, entry in memory.items():
        lines.append(f"| {LABELS[ema]} | {entry['extra_peak_mb']:.0f} | {entry['state_dict_mb']:.0f} |")
    return "\n".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| stream | K | method | min ms | x CE (min) | x CE (median) | calls | iterations | value err | gradient err |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for name, entry in row["methods"].items():
            error = [
                f"{entry[key]:.1e}" if entry.get(key) is not None else "" for key in ("value_error", "gradient_error")
            ]
            steps = f"{entry['iterations']:.1f}" if "iterations" in entry else ""
            lines.append(
                f"| {row['stream']} | {row['classes']:,} | {LABELS.get(name, name)} | {entry['ms_min']:.3f} | "
                f"{entry['ratio_min']:.1f} | {entry['ratio_median']:.1f} | {entry.get('calls', '')} | {steps} | "
                f"{error[0]} | {error[1]} |"
            )
    return "\n".join(lines)


def growth_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| K | B | cross entropy ms | CAR batch ms | CAR class ms |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [f"{row['methods'][name]['ms_median']:.2f}" for name in ("cross entropy", "batch", "class")]
        lines.append(f"| {row['classes']:,} | {row['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000, 8142])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--fill", type=int, default=300, help="batches before anything is timed")
    parser.add_argument("--steps", type=int, default=100, help="batches timed")
    parser.add_argument(
        "--checks", type=int, default=40, help="steps whose value and gradient are compared with float64"
    )
    parser.add_argument("--no-growth", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "car_step.json")
    parser.add_argument("--memory-of", choices=MAKERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        memory_child(options.classes[0], options.batch, options.memory_of, options.fill)
        return
    report: dict[str, Any] = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1, "seed": 0}
    report["sizes"] = []
    print(table([]), flush=True)
    for size in options.classes:
        for stream in STREAMS:
            svd_steps = 20 if size <= 200 else 3 if size <= 2000 else 0  # at 8,142 classes one SVD takes many minutes
            names = tuple(MAKERS) if size <= 2000 else ("batch", "class")
            # the fixed path is measured apart: its reading of the whole matrix would empty the caches of the others
            entry = measure(size, options.batch, options.fill, options.steps, svd_steps, stream)
            apart = measure(size, options.batch, 40, 20, 0, stream, names[2:]) if names[2:] else None
            for others in (LOSSES, WORST):
                more = measure(size, options.batch, options.fill, options.steps, 0, stream, tuple(others))
                entry["methods"] |= {name: more["methods"][name] for name in others}
            if apart is not None:
                entry["methods"] |= {name: apart["methods"][name] for name in names[2:]}
            checked = (400, options.checks) if size <= 2000 else (30, 3)  # exact triplets are slow to get at this size
            for name, errors in accuracy(size, options.batch, *checked, stream, (*names, *WORST)).items():
                entry["methods"][name] |= errors
            report["sizes"].append(entry)
            print(table([entry]).split("\n", 2)[2], flush=True)
    if not options.no_memory:
        largest = max(options.classes)
        report["memory"] = {ema: peak_memory(largest, options.batch, ema, 60) for ema in SURROGATE}
        print(f"\nMemory at K = {largest:,}:\n" + memory_table(report["memory"]))
    if not options.no_growth:
        sizes = [(k, options.batch) for k in (50, 100, 200, 500, 1000, 2000, 4000, 8142)]
        sizes += [(1000, b) for b in (32, 64, 256, 512, 1024)]
        report["growth"] = [measure(k, b, 60, 20) for k, b in sizes]
        print("\nGrowth (median of 20 steps after 60):\n" + growth_table(report["growth"]))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    partial = options.output.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(options.output)


if __name__ == "__main__":
    main()
