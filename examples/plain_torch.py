"""CAR in a plain loop: one import, one line changed, and the state of the loss in the checkpoint.

Run it twice: the second time it goes on where the first one stopped.

    python examples/plain_torch.py
"""

from pathlib import Path

import torch
from baseline import cross_entropy, figures
from torch import nn

from spectail import CARLoss
from spectail.data import load
from spectail.metrics import Metrics

EPOCHS, BATCH, PARTS = 12, 32, 2  # one optimizer step per BATCH images, computed in PARTS micro-batches
CHECKPOINT = Path("runs/plain_torch.pt")


def as_tensors(images) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat pixels in [-1, 1], and labels."""
    return torch.tensor(images.pixels).flatten(1) / 127.5 - 1, torch.tensor(images.labels)


def main() -> None:
    torch.manual_seed(0)
    data = load("glyphs-lt", num_classes=10, max_per_class=100, imbalance=50)  # characters drawn from fonts
    inputs, labels = as_tensors(data.train)
    model = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, len(data.counts)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = CARLoss.balanced(data.counts)  # was: nn.CrossEntropyLoss()
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        for name, part in (("model", model), ("optimizer", optimizer), ("criterion", criterion)):
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["random"])
        first = saved["epoch"] + 1

    for epoch in range(first, first + EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH):
            for part in batch.chunk(PARTS):
                loss = criterion(model(inputs[part]), labels[part])
                (loss * len(part) / len(batch)).backward()  # CAR is a mean over its batch, like cross entropy
            optimizer.step()
            optimizer.zero_grad()
        parts = {name: round(float(value), 3) for name, value in criterion.parts.items()}
        print(f"epoch {epoch}: {parts}")

    CHECKPOINT.parent.mkdir(exist_ok=True)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "criterion": criterion.state_dict()}
    torch.save({**states, "epoch": epoch, "random": torch.get_rng_state()}, CHECKPOINT)

    metrics = Metrics(data.counts)
    test, truth = as_tensors(data.test)
    with torch.no_grad():
        metrics.update(model(test), truth)
    print(cross_entropy(data, epoch + 1))
    print("CARLoss.balanced:", figures(metrics.compute()))


if __name__ == "__main__":
    main()
