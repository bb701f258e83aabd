"""Heads on features that lie in memory: what a run trains on a frozen backbone, without its folder and its loaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._core.distributed import working_alone
from ..counts import ClassCounts
from ..data.batch import Batch
from ..data.samplers import DeferredSampler, LongTailSampler
from ..methods.base import Method, Step, Stream
from ..methods.registry import find_method
from ..models.classifier import Classifier
from .build import make_head, make_method
from .car_term import make_car_term
from .config import TrainConfig
from .optim import make_optimizer, rate


@dataclass(frozen=True)
class Head:
    """A head after its training, and the method that trained it."""

    model: Classifier
    method: Method
    steps: int

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """As inference uses them."""
        inference: nn.Module = self.method.inference(self.model).eval()
        return torch.cat([inference(part) for part in torch.split(features, 8192)])

    @torch.no_grad()
    @working_alone()
    def loss(self, features: Tensor, labels: Tensor) -> float:
        """The method's own loss, without CAR."""
        self.model.eval()
        batch = Batch(features, labels, torch.arange(len(labels)))
        return float(self.method.loss(self.model, {"main": batch}, Step(self.method.stages()[0])).loss)


def trains_on_arrays(name: str) -> bool:
    """Whether a method is one loss on one stream of batches, so that `train_head` can carry it out."""
    kind = find_method(name).load()
    method = kind(ClassCounts([2, 1]), kind.options, epochs=1)
    stages = method.stages()
    plain = len(stages) == 1 and set(method.streams(stages[0])) == {"main"}
    return plain and not method.needs_images


@working_alone()
def train_head(
    features: Tensor, labels: NDArray[np.int64], names: Sequence[str], config: TrainConfig, steps: int
) -> Head:
    """Train the head of a run for so many steps, rounded to whole epochs; ``config`` says everything else.

    It is the loop of a run for a method of one stage: same order of samplers, optimiser, schedule and CAR. Where there
    are several ranks, each trains the same head by itself.
    """
    counts = ClassCounts(np.bincount(labels, minlength=len(names)), names)
    batch = min(config.optim.batch_size, len(labels))
    per_epoch = steps_per_epoch(len(labels), config)
    epochs = max(1, round(steps / per_epoch))
    config = replace(config, optim=replace(config.optim, epochs=epochs))
    generator = torch.Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers are none of our business
        torch.manual_seed(config.seed)
        method = make_method(config, counts)
        model = method.build(nn.Identity(), make_head(config, method, features.shape[1]))
        model, method = model.to(features.device), method.to(features.device)
        stage = method.stages()[0]
        sampler = _sampler(labels, method.streams(stage)["main"], len(names), config.seed, epochs)
        term = make_car_term(config, counts, find_method(config.method))
        if term is not None:
            term.to(features.device)
        known = torch.from_numpy(labels).to(features.device)
        step = Step(stage, 0, epochs, 0, epochs * per_epoch, None, generator, torch.from_numpy(labels))
        method.begin_stage(model, step, resumed=False)
        step.optimizer = make_optimizer(
            nn.ModuleList([model, method]), config.optim, method.undecayed(model), fused=True
        )
        model.train()
        for epoch in range(epochs):
            step.epoch = epoch
            method.begin_epoch(step)
            method.to(features.device)
            for places in torch.split(torch.from_numpy(sampler.order(epoch)), batch):
                for group in step.optimizer.param_groups:
                    group["lr"] = config.optim.lr * rate(config.optim, step.index, step.steps, per_epoch)
                outcome = method.loss(model, {"main": Batch(features[places], known[places], places)}, step)
                term_loss = term(outcome, step) if term is not None else None
                total = outcome.loss if term_loss is None else outcome.loss + term_loss
                total.backward()
                step.optimizer.step()
                step.optimizer.zero_grad()
                step.index += 1
                method.after_step(model, step)
    return Head(model, method, step.steps)


def steps_per_epoch(images: int, config: TrainConfig) -> int:
    return -(-images // min(config.optim.batch_size, images))


def _sampler(
    labels: NDArray[np.int64], stream: Stream, classes: int, seed: int, epochs: int
) -> LongTailSampler | DeferredSampler:
    def make(how: str) -> LongTailSampler:
        return LongTailSampler(labels, how, seed=seed, epochs=epochs, exponent=stream.exponent, num_classes=classes)

    first = make(stream.kind)
    return first if stream.then is None else DeferredSampler(first, make(stream.then), stream.switch)
