"""What cross entropy reaches on the same images: the line that the examples print above their own result."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spectail.metrics import Metrics


def as_tensors(images) -> tuple[Tensor, Tensor]:
    """Pixels in [-1, 1], (N, 3, 32, 32), and labels."""
    return torch.tensor(images.pixels).permute(0, 3, 1, 2) / 127.5 - 1, torch.tensor(images.labels)


def cross_entropy(data, epochs: int, model: nn.Module | None = None, lr: float = 1e-3) -> str:
    """Train a network by cross entropy in batches of 32 and say how good it is."""
    torch.manual_seed(0)
    inputs, labels = as_tensors(data.train)
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, len(data.counts)))
    model = hidden if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def logits(images: Tensor) -> Tensor:
        found = model(images)
        return getattr(found, "logits", found)  # Hugging Face wraps them

    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(logits(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    test, truth = as_tensors(data.test)
    metrics = Metrics(data.counts)
    with torch.no_grad():
        metrics.update(logits(test), truth)
    return "cross entropy: " + figures(metrics.compute())


def figures(found) -> str:
    return f"overall {found['overall']:.1f} %, tail {found['tail']:.1f} %, worst class {found['worst_test']:.1f} %"
