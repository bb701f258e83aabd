"""A long-tailed toy problem in one minute: cross entropy, CAR with the paper's settings, class-wise CAR.

Forty Gaussian clusters in eight families; the clusters of a family overlap. The largest class has 200 training points,
the smallest 2. The test set is balanced. The difficulty was set by looking at cross entropy alone; CAR's settings are
the library's presets as they come.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectail import CARLoss, ClassCounts
from spectail import functional as SF
from spectail.spectral import top_singular

CLASSES, FAMILIES, DIMENSIONS = 40, 8, 32
LARGEST, IMBALANCE, TEST_POINTS = 200, 100, 100
EPOCHS, BATCH, SEEDS = 40, 64, (0, 1, 2)
COLUMNS = ("overall", "head", "medium", "tail", "worst class")

Loss = Callable[[Tensor, Tensor], Tensor]
METHODS: dict[str, Callable[[ClassCounts], Loss]] = {
    "cross entropy": lambda counts: F.cross_entropy,
    "CAR, the paper's settings": CARLoss,
    "CAR, class-wise": CARLoss.classwise,
}


def long_tail() -> ClassCounts:
    """Exponential counts, from 200 points in class 0 to 2 in class 39."""
    return ClassCounts([round(LARGEST * IMBALANCE ** (-c / (CLASSES - 1))) for c in range(CLASSES)])


def cluster_means() -> Tensor:
    """One mean per class, (K, D): class c belongs to family c mod 8, so every family has common and rare classes."""
    families = torch.randn(FAMILIES, DIMENSIONS)
    return families[torch.arange(CLASSES) % FAMILIES] + 0.5 * torch.randn(CLASSES, DIMENSIONS)


def draw(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Points around the means and their labels, ``counts[c]`` of class c."""
    labels = torch.arange(CLASSES).repeat_interleave(counts)
    return means[labels] + torch.randn(len(labels), DIMENSIONS), labels


def train(points: Tensor, labels: Tensor, criterion: Loss) -> nn.Module:
    """A two-layer network, trained with the given loss."""
    model = nn.Sequential(nn.Linear(DIMENSIONS, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH):
            loss = criterion(model(points[batch]), labels[batch])  # the same line for every method
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def run(method: str, seed: int, counts: ClassCounts) -> Tensor:
    """Train and return the confusion matrix of the test set. A seed fixes data, initial weights and batches."""
    torch.manual_seed(seed)
    means = cluster_means()
    points, labels = draw(means, counts.counts)
    test_points, test_labels = draw(means, torch.full((CLASSES,), TEST_POINTS))
    model = train(points, labels, METHODS[method](counts))
    with torch.no_grad():
        predicted = model(test_points).argmax(1)
    return SF.confusion(predicted, test_labels, CLASSES)


def scores(confusion: Tensor, counts: ClassCounts) -> Tensor:
    """Accuracies in percent, in the order of COLUMNS."""
    accuracy = 100 * (1 - SF.class_errors(confusion))
    groups = [accuracy[members].mean() for members in counts.groups().values()]
    return torch.stack([accuracy.mean(), *groups, accuracy.min()])


def explain(confusion: Tensor, counts: ClassCounts) -> None:
    """Print the five largest confusions of a model."""
    for place in confusion.flatten().topk(5).indices.tolist():
        predicted, true = divmod(place, CLASSES)
        share, points = 100 * confusion[predicted, true], counts.counts[true]
        print(f"  {counts.describe(true)} ({points} training points) is predicted as class {predicted}: {share:.0f} %")


def main() -> None:
    """Train every method on every seed and print what came out."""
    torch.set_num_threads(1)  # the matrices are too small to share
    counts = long_tail()
    groups = ", ".join(f"{len(members)} {group}" for group, members in counts.groups().items())
    print("A synthetic problem: results on it prove nothing about real data.")
    print(f"{CLASSES} classes ({groups}), {counts.total} training points, imbalance {counts.imbalance_factor:.0f}.")
    print(f"Test accuracy in %, mean and standard deviation over {len(SEEDS)} seeds:\n")
    print(f"{'':26}" + "".join(f"{name:>14}" for name in COLUMNS))
    first = {}
    for method in METHODS:
        confusions = [run(method, seed, counts) for seed in SEEDS]
        first[method] = confusions[0]
        results = torch.stack([scores(confusion, counts) for confusion in confusions])
        cells = [f"{mean:.1f} ± {spread:.1f}" for mean, spread in zip(results.mean(0), results.std(0), strict=True)]
        print(f"{method:26}" + "".join(f"{cell:>14}" for cell in cells), flush=True)

    print(f"\nLargest confusions of the class-wise model, seed {SEEDS[0]}:")
    explain(first["CAR, class-wise"], counts)
    print(f"\nWorst-class error and spectral norm of the test confusion times Lambda, seed {SEEDS[0]}:")
    for method, confusion in first.items():
        norm, _, _ = top_singular(confusion * SF.class_weights(counts))
        print(f"  {method:26} {SF.worst_class_error(confusion):.2f}   {norm:.2f}")


if __name__ == "__main__":
    main()
