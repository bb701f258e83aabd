"""CAR with Hugging Face Accelerate: accumulation, several processes and mixed precision come from the Accelerator.

Run it twice: the second time it goes on where the first one stopped.

python examples/with_accelerate.py
torchrun --standalone --nproc-per-node 2 examples/with_accelerate.py

With GPUs `accelerate launch --num-processes 2` starts the same job; without one it starts a single process.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from baseline import cross_entropy, figures
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spectail import CARLoss
from spectail.data import load
from spectail.metrics import Metrics

EPOCHS = 12
CHECKPOINT = Path("runs/with_accelerate")


def tensors(images) -> TensorDataset:
    """Flat pixels in [-1, 1], and labels."""
    return TensorDataset(torch.tensor(images.pixels).flatten(1) / 127.5 - 1, torch.tensor(images.labels))


def main() -> None:
    set_seed(0)
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    accelerator = Accelerator(cpu=not gpu, gradient_accumulation_steps=2)  # untold, processes on CPUs do not join
    data = load("glyphs-lt", num_classes=10, max_per_class=100, imbalance=50)
    model = nn.Sequential(nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, len(data.counts)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(tensors(data.train), batch_size=16, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = CARLoss.balanced(data.counts).to(accelerator.device)  # it has no parameters, so it is not prepared
    accelerator.register_for_checkpointing(criterion)  # its history is in every save_state()
    if CHECKPOINT.exists():
        accelerator.load_state(str(CHECKPOINT))

    for epoch in range(EPOCHS):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = criterion(model(inputs), labels)
                accelerator.backward(loss)  # divides by gradient_accumulation_steps
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: spectral norm {float(criterion.parts['car']):.3f}")
    accelerator.save_state(str(CHECKPOINT))

    metrics = Metrics(data.counts)
    inputs, labels = tensors(data.test).tensors
    with torch.no_grad():
        metrics.update(accelerator.unwrap_model(model)(inputs.to(accelerator.device)).cpu(), labels)
    if accelerator.is_main_process:
        print(cross_entropy(data, EPOCHS))
        print("CARLoss.balanced:", figures(metrics.compute()))
    accelerator.end_training()


if __name__ == "__main__":
    main()
