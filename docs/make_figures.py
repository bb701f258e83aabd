"""Draws the figures of docs/car-explained.md from a computed example: `python docs/make_figures.py`.

Six Gaussian clusters in the plane, in three pairs of a frequent class and a rare neighbour. Everything shown is
computed here; nothing was chosen after looking at CAR's results. Takes about twenty seconds of one core.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectail import CAR, CARLoss, ClassCounts
from spectail import functional as SF
from spectail.spectral import top_singular

mpl.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

FOLDER = Path(__file__).parent / "figures"
NAMES = ["A", "B", "C", "a", "b", "c"]  # a small letter is the rare neighbour of the capital one
COUNTS = ClassCounts([300, 200, 120, 12, 8, 5], NAMES)
COLOURS = ["#0f766e", "#b45309", "#4338ca", "#2dd4bf", "#fbbf24", "#a5b4fc"]
METHODS = {"cross entropy": None, "CAR": CARLoss, "CAR, class-wise": CARLoss.classwise}
BATCH, STEPS, SEEDS, TEST = 32, 600, 5, 400
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150}


def draw_points(counts: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Points and labels. A rare class lies beside its neighbour, so the two overlap."""
    angle = 2 * torch.pi * torch.arange(3) / 3 + torch.pi / 2
    centre = 2.6 * torch.stack([angle.cos(), angle.sin()], 1)
    beside = torch.stack([-angle.sin(), angle.cos()], 1)
    means = torch.cat([centre, centre + 1.5 * beside])
    labels = torch.arange(len(NAMES)).repeat_interleave(counts)
    generator = torch.Generator().manual_seed(seed)
    return means[labels] + 0.75 * torch.randn(len(labels), 2, generator=generator), labels


def train(points: Tensor, labels: Tensor, criterion: object, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, len(NAMES)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
    for _ in range(STEPS):
        batch = torch.randint(len(labels), (BATCH,))
        loss = (criterion or F.cross_entropy)(model(points[batch]), labels[batch])  # type: ignore[operator]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def confusion_of(model: nn.Module, seed: int) -> Tensor:
    """On a balanced test set."""
    points, labels = draw_points(torch.full((len(NAMES),), TEST), seed + 1000)
    with torch.no_grad():
        return SF.confusion(model(points).argmax(1), labels, len(NAMES))


def show_matrix(axes: Axes, matrix: Tensor, title: str, digits: int = 0, scale: float = 100) -> None:
    axes.imshow(matrix, cmap="Oranges", vmin=0, vmax=max(float(matrix.max()), 1e-9))
    for row in range(len(NAMES)):
        for column in range(len(NAMES)):
            value = scale * float(matrix[row, column])
            text = f"{value:.{digits}f}" if value >= 0.5 * 10**-digits else ""
            dark = matrix[row, column] > 0.6 * matrix.max()
            axes.text(column, row, text, ha="center", va="center", size=9, color="white" if dark else "black")
    axes.set_xticks(range(len(NAMES)), NAMES)
    axes.set_yticks(range(len(NAMES)), NAMES)
    axes.set_xlabel("true class")
    axes.set_ylabel("predicted class")
    axes.set_title(title, size=11)


def figure_problem(model: nn.Module, points: Tensor, labels: Tensor, confusion: Tensor) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.6), layout="constrained")
    grid = torch.stack(torch.meshgrid(torch.linspace(-5, 5, 240), torch.linspace(-4, 6, 240), indexing="xy"), -1)
    with torch.no_grad():
        region = model(grid.view(-1, 2)).argmax(1).view(240, 240)
    left.imshow(region, origin="lower", extent=(-5, 5, -4, 6), cmap=ListedColormap(COLOURS), alpha=0.25, vmin=0, vmax=5)
    for label in range(len(NAMES)):
        mine = points[labels == label]
        left.scatter(*mine.T, s=7 if label < 3 else 22, color=COLOURS[label], edgecolor="black",
                     linewidth=0.2 if label < 3 else 0.7, label=f"{NAMES[label]}: {len(mine)}")  # fmt: skip
    left.set(xticks=[], yticks=[], title="training points, and who wins where")
    left.title.set_size(11)
    left.set(xlim=(-5, 5), ylim=(-4, 6))
    left.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0), ncol=3, handletextpad=0.1, columnspacing=0.8,
                frameon=False)  # fmt: skip
    show_matrix(right, confusion, "confusion on test points, %")
    save(figure, "car_problem")


def figure_surrogate() -> dict[str, float]:
    """What one sample of class 0 adds to the entry of its only rival, against its lead."""
    lead = torch.linspace(-6, 6, 241)
    figure, axes = plt.subplots(figsize=(6.2, 3.1), layout="constrained")
    axes.plot(lead, (lead < 0).float(), color="black", linewidth=1, label="counted error: 1 if the rival wins")
    curves = {}
    for gamma, competitors, colour in (
        (0.0, "all", "#0f766e"),
        (2.0, "all", "#b45309"),
        (2.0, "non-target", "#4338ca"),
    ):
        values = torch.stack([
            SF.soft_confusion(torch.tensor([[float(one), 0.0]]), torch.tensor([0]), gamma, competitors)[1, 0]
            for one in lead
        ])  # fmt: skip
        axes.plot(lead, values, color=colour, linewidth=2, label=f'gamma {gamma:g}, competitors="{competitors}"')
        curves[f"gamma {gamma:g} {competitors}"] = float(values[160])  # at a lead of 2
    axes.set_xlabel("lead of the true class over its rival, in logits")
    axes.set_ylabel("confusion counted")
    axes.legend(fontsize=9, frameon=False)
    save(figure, "car_surrogate")
    return curves


def figure_direction(confusion: Tensor) -> dict[str, object]:
    weights = SF.class_weights(COUNTS)
    sigma, left_vector, right_vector = top_singular(confusion * weights)
    figure, (first, second) = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained", width_ratios=(1, 1.15))
    show_matrix(first, confusion * weights, "confusion times Lambda", digits=2, scale=1)
    place = torch.arange(len(NAMES))
    second.bar(place - 0.2, right_vector.abs(), 0.4, color="#4338ca", label="v: true classes that suffer")
    second.bar(place + 0.2, left_vector.abs(), 0.4, color="#b45309", label="u: classes that take them")
    second.set_xticks(place, NAMES)
    second.set_ylim(0, 1.25)
    second.set_title(f"top singular vectors, sigma = {float(sigma):.2f}", size=11)
    second.legend(fontsize=8, frameon=False, loc="upper center", ncol=1)
    save(figure, "car_direction")
    return {"sigma": float(sigma), "left": left_vector.abs().tolist(), "right": right_vector.abs().tolist()}


def figure_history(model: nn.Module, points: Tensor, labels: Tensor) -> dict[str, float]:
    """The running error of the rarest class under both averages, batch after batch, with the model held fixed."""
    with torch.no_grad():
        logits = model(points)
    true = float(SF.soft_confusion(logits, labels).sum(0)[-1])
    figure, axes = plt.subplots(figsize=(6.2, 3.1), layout="constrained")
    means = {"true": true}
    for ema, colour in (("batch", "#b45309"), ("class", "#0f766e")):
        torch.manual_seed(0)
        car = CAR(COUNTS, beta=0.9, ema=ema)
        values = []
        for _ in range(600):
            batch = torch.randint(len(labels), (BATCH,))
            car(logits[batch].clone().requires_grad_(), labels[batch])
            values.append(float(car.confusion.sum(0)[-1]))
        axes.plot(values, color=colour, linewidth=1.3, label=f'ema="{ema}"')
        means[ema] = sum(values[200:]) / len(values[200:])
    axes.axhline(true, color="black", linewidth=1, linestyle="--", label="whole training set")
    axes.set_xlabel("batches of 32")
    axes.set_ylabel(f"soft error of class {NAMES[-1]}")
    axes.set_ylim(0, None)
    axes.legend(fontsize=9, frameon=False, ncol=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    save(figure, "car_history")
    return means


def figure_training(accuracy: dict[str, Tensor]) -> None:
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    place = torch.arange(len(NAMES))
    for number, (name, colour) in enumerate(zip(accuracy, ("#9ca3af", "#b45309", "#0f766e"), strict=True)):
        found = 100 * accuracy[name]
        axes.bar(place + 0.27 * (number - 1), found.mean(0), 0.26, yerr=found.std(0), color=colour, label=name,
                 error_kw={"linewidth": 0.8})  # fmt: skip
    axes.set_xticks(place, [f"{name}\n{count}" for name, count in zip(NAMES, COUNTS.counts.tolist(), strict=True)])
    axes.set_xlabel("class, and its training points")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 105)
    axes.legend(fontsize=9, frameon=False, ncol=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    save(figure, "car_training")


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.png", metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    accuracy = {name: [] for name in METHODS}
    norms: dict[str, list[float]] = {name: [] for name in METHODS}
    first = {}
    for seed in range(SEEDS):
        points, labels = draw_points(COUNTS.counts, seed)
        for name, make in METHODS.items():
            model = train(points, labels, make and make(COUNTS), seed)
            confusion = confusion_of(model, seed)
            accuracy[name].append(1 - SF.class_errors(confusion))
            norms[name].append(float(top_singular(confusion * SF.class_weights(COUNTS))[0]))
            if seed == 0 and make is None:
                first = {"model": model, "points": points, "labels": labels, "confusion": confusion}
    found = {name: torch.stack(values) for name, values in accuracy.items()}
    with plt.rc_context(STYLE):
        figure_problem(**first)
        numbers = {
            "lead_of_2": figure_surrogate(),
            "direction": figure_direction(first["confusion"]),
            "history": figure_history(first["model"], first["points"], first["labels"]),
        }
        figure_training(found)
    for name, values in found.items():
        numbers[name] = {
            "balanced": 100 * float(values.mean()), "worst": 100 * float(values.min(1).values.mean()),
            "per_class": (100 * values.mean(0)).tolist(), "spectral_norm": sum(norms[name]) / SEEDS,
        }  # fmt: skip
    numbers["confusion"] = (100 * first["confusion"]).tolist()
    numbers["weights"] = SF.class_weights(COUNTS).tolist()
    rounded = json.loads(json.dumps(numbers), parse_float=lambda text: round(float(text), 3))
    (FOLDER / "car_numbers.json").write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rounded, indent=1))


if __name__ == "__main__":
    main()
