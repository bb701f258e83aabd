"""CAR in a LightningModule. The loss is an attribute, so Lightning moves it and saves its history in every checkpoint.

python examples/with_lightning.py
"""

import spectail.integrations  # noqa: F401 - first: makes torchvision load beside a CPU-only torch

# isort: split
import lightning as L
import torch
from baseline import cross_entropy
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spectail import CARLoss, ClassCounts
from spectail.data import load
from spectail.integrations.lightning import ConfusionMonitor
from spectail.integrations.torchmetrics import GroupAccuracy


class Classifier(L.LightningModule):
    def __init__(self, counts: ClassCounts) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, len(counts)))
        self.criterion = CARLoss.balanced(counts)
        self.accuracy = GroupAccuracy(counts)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        return self.criterion(self.model(inputs), labels)  # Lightning divides it by accumulate_grad_batches

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        inputs, labels = batch
        logits = self.model(inputs)
        self.accuracy.update(logits, labels)
        return {"logits": logits, "target": labels}  # for ConfusionMonitor

    def on_validation_epoch_end(self) -> None:
        self.log_dict({f"accuracy/{name}": value.float() for name, value in self.accuracy.compute().items()})
        self.accuracy.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def loader(images, **options) -> DataLoader:
    inputs = torch.tensor(images.pixels).flatten(1) / 127.5 - 1
    return DataLoader(TensorDataset(inputs, torch.tensor(images.labels)), **options)


def main() -> None:
    L.seed_everything(0)
    data = load("glyphs-lt", num_classes=10, max_per_class=100, imbalance=50)
    trainer = L.Trainer(
        max_epochs=12,
        accumulate_grad_batches=2,
        callbacks=[ConfusionMonitor(singular_values=3), ModelCheckpoint(save_last=True)],
        logger=CSVLogger("runs", "with_lightning"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = loader(data.train, batch_size=16, shuffle=True, drop_last=True)
    trainer.fit(Classifier(data.counts), train, loader(data.test, batch_size=200))
    print(cross_entropy(data, 12))
    for name in ("car/spectral_norm", "val/overall", "val/worst", "val/worst_class", "val/singular_value_1"):
        print(f"{name}: {float(trainer.callback_metrics[name]):.3f}")


if __name__ == "__main__":
    main()
