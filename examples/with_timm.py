"""CAR with timm's training pieces: its task, optimizer, scheduler, Mixup with soft labels, and checkpoint saver.

python examples/with_timm.py
"""

from pathlib import Path

import spectail.integrations  # noqa: F401 - first: makes torchvision load beside a CPU-only torch

# isort: split
import timm
import torch
from baseline import cross_entropy, figures
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, CheckpointSaver, random_seed

from spectail import CARLoss
from spectail.data import load
from spectail.integrations.timm import StatefulTask
from spectail.metrics import Metrics

EPOCHS, BATCH = 100, 32
FOLDER = Path("runs/with_timm")


def as_tensors(images) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels in [-1, 1], and labels."""
    return torch.tensor(images.pixels).permute(0, 3, 1, 2) / 127.5 - 1, torch.tensor(images.labels)


def main() -> None:
    random_seed(0)
    data = load("glyphs-lt", num_classes=10, max_per_class=100, imbalance=50)
    images, labels = as_tensors(data.train)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=len(data.counts), **size)
    task = StatefulTask(model, CARLoss.balanced(data.counts))  # a ClassificationTask that saves the history of CAR
    optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=EPOCHS, warmup_t=1, warmup_lr_init=1e-4)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=len(data.counts))
    FOLDER.mkdir(parents=True, exist_ok=True)
    saver = CheckpointSaver(model, optimizer, task=task, checkpoint_dir=FOLDER, recovery_dir=FOLDER, max_history=1)

    for epoch in range(EPOCHS):
        losses = AverageMeter()
        scheduler.step(epoch)
        task.train()
        for batch in torch.randperm(len(labels) // 2 * 2).split(BATCH):  # Mixup pairs the images of a batch
            mixed, soft = mixup(images[batch], labels[batch])  # soft: (N, K) labels
            loss = task(mixed, soft)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), len(batch))
        task.eval()
        metrics = Metrics(data.counts)
        inputs, truth = as_tensors(data.test)
        with torch.no_grad():
            metrics.update(model(inputs), truth)
        found = metrics.compute()
        saver.save_checkpoint(epoch, metric=found["balanced"])
        print(f"epoch {epoch}: loss {losses.avg:.3f}, overall {found['overall']:.1f} %, tail {found['tail']:.1f} %")

    print(cross_entropy(data, EPOCHS, timm.create_model("vit_tiny_patch16_224", num_classes=10, **size), lr=2e-3))
    print("CARLoss.balanced, with Mixup:", figures(found))
    saved = torch.load(FOLDER / "last.pth.tar")
    task.load_checkpoint_state(saved["state_dict"], saved["task_state"])  # to go on, with the history of CAR
    print("loaded", FOLDER / "last.pth.tar")


if __name__ == "__main__":
    main()
