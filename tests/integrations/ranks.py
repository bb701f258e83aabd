"""Two ranks under torchrun, in each framework; saves the weights. See test_ranks.py.

Usage: torchrun --standalone --nproc-per-node=2 ranks.py FOLDER
"""

from __future__ import annotations

import faulthandler
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from toys import COUNTS, LR, MICRO, MOMENTUM, STEPS, criterion, network, samples, sgd, weights

PARTS = 2  # micro-batches per step
IGNORED = (5, 6, 21, 47)  # samples of the second half of a micro-batch, so of rank 1


def problem(ignored=False):
    inputs, labels = samples(STEPS * PARTS * MICRO)
    if ignored:
        labels[list(IGNORED)] = -100
    return inputs, labels


def plain(rank):
    model, loss = network(), criterion()
    wrapped, optimizer = DistributedDataParallel(model), sgd(model)
    inputs, labels = problem()
    for group in torch.arange(len(labels)).split(MICRO * PARTS):
        optimizer.zero_grad()
        for part in group.split(MICRO):
            mine = part[rank::2]
            (loss(wrapped(inputs[mine]), labels[mine]) / PARTS).backward()
        optimizer.step()
    return model, loss


def accelerated(rank):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    model, loss = network(), criterion()
    loader = DataLoader(TensorDataset(*problem()), MICRO // 2)  # a batch for each rank
    wrapped, optimizer, loader = accelerator.prepare(model, sgd(model), loader)
    for x, y in loader:
        with accelerator.accumulate(wrapped):
            accelerator.backward(loss(wrapped(x), y))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.free_memory()
    return model, loss


class Wrapped(nn.Module):
    """A model as the Trainer calls it."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, inputs):
        return {"logits": self.net(inputs)}


def hugging_face(folder, average, ignored):
    from spectail.integrations.huggingface import LossFunction

    from transformers import Trainer, TrainingArguments  # isort: skip

    model, loss = Wrapped(), LossFunction(criterion())
    arguments = TrainingArguments(
        output_dir=str(folder / "hf"), per_device_train_batch_size=MICRO // 2, gradient_accumulation_steps=PARTS,
        max_steps=STEPS, optim="sgd", optim_args=f"momentum={MOMENTUM}", learning_rate=LR, max_grad_norm=0.0,
        lr_scheduler_type="constant", train_sampling_strategy="sequential", use_cpu=True, ddp_backend="gloo",
        report_to="none", disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no", save_strategy="no",
        remove_unused_columns=False, average_tokens_across_devices=average,
    )  # fmt: skip
    data = [{"inputs": x, "labels": y} for x, y in zip(*problem(ignored), strict=True)]
    Trainer(model, arguments, train_dataset=data, compute_loss_func=loss, callbacks=[loss]).train()
    return model.net, loss.criterion


def lightning():
    from lightning_toys import Kept, Module, trainer

    from spectail.integrations.lightning import ConfusionMonitor

    broadcast = []

    class Watched(Module):
        def on_train_end(self):
            broadcast.extend(self.trainer.strategy.model.modules_buffers)

    module, log = Watched(), Kept()
    whole = TensorDataset(*problem())
    data = DataLoader(whole, MICRO // 2, sampler=DistributedSampler(whole, shuffle=False))  # Lightning's own shuffles
    options = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    trainer(PARTS, [ConfusionMonitor(singular_values=2)], log, **options).fit(module, data, data)
    return module.model, module.criterion, log, len(broadcast)


def metric(rank):
    from spectail.integrations.torchmetrics import GroupAccuracy

    scores, labels = torch.randn(40, len(COUNTS), generator=torch.Generator().manual_seed(1)), samples(40)[1]
    found = GroupAccuracy(COUNTS)
    mine = slice(0, 31) if rank == 0 else slice(31, 40)
    found.update(scores[mine], labels[mine])
    return {name: float(value) for name, value in found.compute().items()}


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(400, exit=True)
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=180))
    rank = dist.get_rank()
    results = {"plain": plain(rank), "accelerate": accelerated(rank)}
    for average in (True, False):
        for ignored in (False, True):
            results[f"hf-{average}-{ignored}"] = hugging_face(folder, average, ignored)
    *results["lightning"], log, broadcast = lightning()
    figures = {name: log.of(name)[-1] for name in ("val/worst", "val/spectral_norm")} if rank == 0 else {}
    saved = {name: {"weights": weights(model), "loss": loss.state_dict()} for name, (model, loss) in results.items()}
    torch.save({**saved, "metric": metric(rank), "log": figures, "broadcast": broadcast}, folder / f"rank{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
