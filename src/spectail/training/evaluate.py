"""Evaluation: a model on a data set, shared out over ranks, to metrics and logits."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import nn

from ..counts import ClassCounts
from ..data.feature_set import FeatureSet
from ..data.image_set import ImageSet
from ..data.loader import Loader
from ..data.transforms import Preset
from ..metrics import Metrics


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: ImageSet | FeatureSet,
    preset: Preset | None,
    counts: ClassCounts,
    accelerator: Accelerator,
    *,
    convention: str = "count",
    workers: int | Literal["auto"] = 0,
    keep_logits: bool = False,
) -> tuple[dict[str, Any], NDArray[np.float32] | None]:
    """Metrics over all ranks, and on request the logits in the order of the data (on the main process)."""
    was_training = model.training
    model.eval()
    metrics = Metrics(counts, convention).to(accelerator.device)
    world, rank = accelerator.num_processes, accelerator.process_index
    share = data if world == 1 else data.subset(np.arange(rank, len(data), world))
    kept = []
    for batch in Loader(share, preset, batch_size=256, workers=workers, device=accelerator.device):
        with accelerator.autocast():
            logits = model(batch.images)
        metrics.update(logits.float(), batch.labels)
        if keep_logits:
            kept.append(logits.float().cpu())
    metrics.sync()
    model.train(was_training)
    if not keep_logits:
        return metrics.compute(), None
    own = torch.cat(kept).numpy()
    parts = gather_object([own]) if world > 1 else [own]
    logits_all = np.empty((len(data), own.shape[1]), dtype=np.float32)
    for rank_of_part, part in enumerate(parts):
        logits_all[rank_of_part::world] = part
    return metrics.compute(), logits_all
