"""A LightningModule, and a logger that keeps what it is given."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset
from toys import COUNTS, MICRO, criterion, network, sgd

import spectail.integrations  # noqa: F401 - before lightning

import lightning as L  # isort: skip
from lightning.pytorch.loggers import Logger  # isort: skip


class Module(L.LightningModule):
    def __init__(self, dtype=torch.float64, preset="paper"):
        super().__init__()
        self.model, self.criterion = network(dtype), criterion(preset)

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        return self.criterion(self.model(inputs), labels)

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        return {"logits": self.model(inputs), "target": labels}

    def configure_optimizers(self):
        return sgd(self.model)


class Kept(Logger):
    """Every figure with its step."""

    def __init__(self):
        super().__init__()
        self.rows = []

    name = version = "kept"

    def log_hyperparams(self, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def of(self, name):
        return [row[name] for _, row in self.rows if name in row]


def loader(inputs, labels, size=MICRO):
    return DataLoader(TensorDataset(inputs, labels), size)


def trainer(parts=1, callbacks=(), logger=None, **options):
    return L.Trainer(
        accelerator="cpu", accumulate_grad_batches=parts, callbacks=list(callbacks), logger=logger or False,
        log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
        **{"devices": 1, "max_epochs": 1, "enable_checkpointing": False, **options},
    )  # fmt: skip


__all__ = ["COUNTS", "Kept", "Module", "loader", "trainer"]
