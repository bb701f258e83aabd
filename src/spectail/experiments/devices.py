"""What a training step costs on a GPU that is not here: operations of the network, counted, over a table of devices."""

from __future__ import annotations

from functools import cache
from typing import Literal

from .runs import Run

Device = Literal["a100", "h100", "l40s", "rtx4090"]
TFLOPS: dict[Device, dict[str, float]] = {
    "a100": {"bf16": 110.0, "tf32": 55.0, "float32": 12.0},
    "h100": {"bf16": 350.0, "tf32": 175.0, "float32": 41.0},
    "l40s": {"bf16": 128.0, "tf32": 65.0, "float32": 56.0},
    "rtx4090": {"bf16": 58.0, "tf32": 29.0, "float32": 51.0},
}
"""What training can count on, by precision: about 35 % of a data sheet's dense tensor products, 62 % of its float32."""


def image_seconds(run: Run, device: Device) -> float:
    """Time of a training step, per image."""
    return image_flops(run.sized.model, run.sized.pixels) / (1e12 * TFLOPS[device][precision_on_gpu(run)])


def precision_on_gpu(run: Run) -> str:
    """That of a run on a GPU, where auto is bf16."""
    asked: str = run.sized.base.get("optim", {}).get("precision", "auto")
    return {"auto": "bf16", "fp16": "bf16", "no": "float32"}.get(asked, asked)


@cache
def image_flops(model: str, pixels: int) -> int:
    """Floating-point operations of a training step, per image: forward and backward, two for a multiply-add.

    They are counted on tensors without memory, so that it takes no time and no GPU.

    Example:
        >>> round(image_flops("resnet20", 32) / 1e6)
        242
    """
    import torch  # noqa: PLC0415 - most plans do without
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    from ..models.build import ModelConfig, build_model  # noqa: PLC0415

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network, _ = build_model(ModelConfig(model=model, img_size=pixels), 100)
        network.train()(torch.empty(2, 3, pixels, pixels)).sum().backward()
    return int(counter.get_total_flops()) // 2
