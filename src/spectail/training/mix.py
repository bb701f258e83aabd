"""Mixup and CutMix in front of any method: the images of a batch are mixed, and its labels become a MixedTarget."""

from __future__ import annotations

from .._core.distributed import rank_and_world
from ..augment.mixing import Draws, mixup, paste
from ..data.batch import Batch
from ..methods.base import Method, Stage, Step
from ..targets import MixedTarget
from .config import OptimConfig


def mixes_in(stage: Stage, optim: OptimConfig, method: Method) -> bool:
    """Whether batches of a stage are mixed: not those of a head on a frozen backbone. A method that mixes itself, or
    needs every image to have one class, is refused."""
    if not (optim.mixup or optim.cutmix):
        return False
    if not method.takes_mixed:
        flag = "--mixup" if optim.mixup else "--cutmix"
        raise ValueError(f"{flag}: {type(method).__name__} mixes images itself or needs whole labels; leave it out.")
    return stage.train == "all"


def mixed(batch: Batch, step: Step, optim: OptimConfig) -> Batch:
    """One draw for the batch: mixup or CutMix, each with a random permutation of it. With both, they take turns by
    chance."""
    draws = Draws(step.generator, rank_and_world()[0])
    cut = bool(optim.cutmix) and (not optim.mixup or draws.chance(0.5))
    share = draws.lam(optim.cutmix if cut else optim.mixup)
    partners = draws.partners(len(batch.labels), batch.labels.device)
    others = batch.images[partners]
    if cut:
        box = draws.box(share, *batch.images.shape[2:])
        images, share = paste(batch.images, others, box), box.share
    else:
        images = mixup(batch.images, others, share)
    target = MixedTarget(batch.labels, batch.labels[partners], share)
    return batch._replace(images=images, labels=target)  # type: ignore[arg-type]
