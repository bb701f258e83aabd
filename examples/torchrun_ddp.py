"""CAR on several processes: every rank computes the confusion of the global batch, and nothing has to be set.

Run it twice: the second time it goes on where the first one stopped.

torchrun --standalone --nproc-per-node 2 examples/torchrun_ddp.py
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from baseline import cross_entropy, figures
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from spectail import CARLoss
from spectail.data import load
from spectail.metrics import Metrics

EPOCHS, GLOBAL_BATCH = 12, 32
CHECKPOINT = Path("runs/torchrun_ddp.pt")


def tensors(images) -> TensorDataset:
    """Flat pixels in [-1, 1], and labels."""
    return TensorDataset(torch.tensor(images.pixels).flatten(1) / 127.5 - 1, torch.tensor(images.labels))


def main() -> None:
    dist.init_process_group("nccl" if (gpu := torch.cuda.is_available()) else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(0)  # the same initial weights everywhere; DDP would see to it too

    data = load("glyphs-lt", num_classes=10, max_per_class=100, imbalance=50)
    sampler = DistributedSampler(train := tensors(data.train), seed=0)
    loader = DataLoader(train, GLOBAL_BATCH // world, sampler=sampler)
    net = nn.Sequential(nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, len(data.counts))).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = CARLoss.balanced(data.counts).to(device)  # outside of DDP: its state is equal on all ranks by itself

    parts = {"model": net, "optimizer": optimizer, "criterion": criterion}
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location=device)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first = saved["epoch"] + 1

    for epoch in range(first, first + EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = criterion(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: spectral norm {float(criterion.parts['car']):.3f}")  # of the global batch

    metrics = Metrics(data.counts).to(device)
    inputs, labels = tensors(data.test).tensors
    with torch.no_grad():
        metrics.update(net(inputs[rank::world].to(device)), labels[rank::world].to(device))
    metrics.sync()  # adds up what the ranks have seen
    if rank == 0:
        print(cross_entropy(data, epoch + 1))
        print("CARLoss.balanced:", figures(metrics.compute()), flush=True)
        CHECKPOINT.parent.mkdir(exist_ok=True)
        states = {name: part.state_dict() for name, part in parts.items()}  # those of one rank are enough
        torch.save({**states, "epoch": epoch}, CHECKPOINT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort a process that is done while Python shuts down
