"""CAR with Hugging Face's Trainer: a ViT from its configuration, and two micro-batches per step.

The loss goes to the Trainer twice: as compute_loss_func, which weights the micro-batches rightly, and as a callback,
which puts its history into the checkpoints. `python examples/with_huggingface.py --resume` trains as long again.
"""

import sys

import spectail.integrations  # noqa: F401 - first: makes torchvision load beside a CPU-only torch

# isort: split
import torch
from baseline import cross_entropy
from torch.utils.data import Dataset
from transformers import Trainer, TrainerState, TrainingArguments, ViTConfig, ViTForImageClassification
from transformers.trainer_utils import get_last_checkpoint

from spectail import CARLoss
from spectail.data import load
from spectail.integrations.huggingface import GroupMetrics, LossFunction

EPOCHS, FOLDER = 40, "runs/with_huggingface"


class Glyphs(Dataset):
    """Items as the Trainer wants them."""

    def __init__(self, images) -> None:
        self.pixels = torch.tensor(images.pixels).permute(0, 3, 1, 2) / 127.5 - 1
        self.labels = torch.tensor(images.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.pixels[index], "labels": self.labels[index]}


def main() -> None:
    torch.manual_seed(0)
    data = load("glyphs-lt", num_classes=10, max_per_class=100, imbalance=50)
    last = get_last_checkpoint(FOLDER) if "--resume" in sys.argv else None
    done = TrainerState.load_from_json(f"{last}/trainer_state.json").epoch if last else 0
    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=48, intermediate_size=96,
        num_hidden_layers=2, num_attention_heads=3, num_labels=len(data.counts),
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=FOLDER,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=200,
        gradient_accumulation_steps=2,
        num_train_epochs=done + EPOCHS,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    model = ViTForImageClassification.from_pretrained(last) if last else ViTForImageClassification(config)
    loss = LossFunction(CARLoss.balanced(data.counts))
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Glyphs(data.train),
        eval_dataset=Glyphs(data.test),
        compute_loss_func=loss,
        callbacks=[loss],
        compute_metrics=GroupMetrics(data.counts),
    )
    trainer.train(resume_from_checkpoint=last)
    found = trainer.evaluate()
    print(cross_entropy(data, round(done) + EPOCHS, ViTForImageClassification(config), lr=2e-3))
    shown = f"overall {found['eval_overall']:.1f} %, tail {found['eval_tail']:.1f} %"
    print(f"CARLoss.balanced: {shown}, worst class {found['eval_worst']:.1f} %")


if __name__ == "__main__":
    main()
