"""One stage of a run: what begins afresh with it, and what a checkpoint of it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from .._core import waits
from .._core.dtypes import widest
from ..data.batch import Batch
from ..data.loader import Loader
from ..data.samplers import DeferredSampler, LongTailSampler
from ..methods.base import MOST_EPOCHS, Method, Outcome, Stage, Step, Stream
from ..models.classifier import Classifier
from ..models.tuning import trained_part
from .average import WeightAverage
from .build import Pieces
from .car_term import CARTerm
from .config import OptimConfig, TrainConfig
from .mix import mixed, mixes_in
from .optim import layer_scales, make_optimizer, rate


class Learner(nn.Module):
    """What Accelerate wraps: however often a method runs the model in a step, gradients are averaged once."""

    def __init__(self, model: Classifier, method: Method, mix: OptimConfig | None = None) -> None:
        super().__init__()
        self.model = model
        self.method = method
        self.mix = mix

    def forward(self, batches: Mapping[str, Batch], step: Step) -> Outcome:
        if self.mix is not None:
            batches = {**batches, "main": mixed(batches["main"], step, self.mix)}
        return self.method.loss(self.model, batches, step)


class StageRun:
    """Everything that begins afresh with a stage. ``state`` of a checkpoint, if given, is put back before wrapping."""

    def __init__(
        self,
        stage: Stage,
        config: TrainConfig,
        pieces: Pieces,
        car_term: CARTerm | None,
        generator: torch.Generator,
        state: dict[str, Any] | None,
    ) -> None:
        self.config, self.pieces, self.accelerator = config, pieces, pieces.accelerator
        self.model, self.method, self.generator = pieces.model, pieces.method, generator
        self.optim = replace(config.optim, **dict(stage.optim))
        epochs = self.optim.epochs if stage.epochs is None else stage.epochs
        self.loaders = self._loaders(epochs, stage)
        self.per_epoch = -(-len(self.loaders["main"]) // self.optim.accumulation)
        if epochs * self.per_epoch < stage.least_steps:
            epochs = max(epochs, min(-(-stage.least_steps // self.per_epoch), MOST_EPOCHS))
            self.loaders = self._loaders(epochs, stage)  # some samplers follow the length of the stage
        self.main = self.loaders["main"]
        self.step = Step(stage, 0, epochs, 0, epochs * self.per_epoch, None, generator, self.main.labels)
        self.step.fetch, self.step.log = self.main.fetch, self.log
        if stage.fresh_head and state is None:
            self.model.head.reset_parameters()  # type: ignore[operator]
        self.model.freeze_backbone(stage.train == "head", drift=stage.norm == "drift")
        self.method.begin_stage(self.model, self.step, resumed=state is not None)
        learner = Learner(self.model, self.method, self.optim if mixes_in(stage, self.optim, self.method) else None)
        fused = self.accelerator.device.type == "cuda"
        scales = layer_scales(self.model.backbone, self.optim.layer_decay)
        undecayed = self.method.undecayed(self.model)
        optimizer = make_optimizer(learner, self.optim, undecayed, fused=fused, scales=scales)
        steps = self.step.steps
        self.schedule = LambdaLR(optimizer, lambda step: rate(self.optim, step, steps, self.per_epoch))
        self.car = car_term if car_term is not None and car_term.runs_in(stage) else None
        if self.car is not None:
            self.car.car.reset()
            self.car.to(self.accelerator.device)
        self.average: WeightAverage | None = None
        if self.optim.ema or self.optim.swa:
            self.average = WeightAverage(self.model, self.accelerator.device, self.optim.ema or None)
        self.averages_from = round(steps * (1 - self.optim.swa)) if self.optim.swa else 0
        self.phase = stage.name
        self.sums: dict[str, Tensor] = {}
        self.counted: dict[str, int] = {}
        """Images behind each sum."""
        self.recent = 0
        """Images of the latest micro-batch on this rank."""
        if state is not None:
            self._restore(state, learner, optimizer)
        self.learner, prepared = self.accelerator.prepare(learner, optimizer)
        # Accelerate's wrapper looks for optional packages at every step; only loss scaling needs it here
        self.optimizer = prepared if self.accelerator.scaler is not None else optimizer
        self.backward = self.accelerator.backward if self.accelerator.scaler is not None else torch.Tensor.backward
        self.step.optimizer = optimizer

    def current(self) -> Classifier:
        """The model as it stands: the average of the weights where one is kept."""
        return self.model if self.average is None or not self.average.begun else self.average.module

    def groups(self) -> Iterator[tuple[list[dict[str, Batch]], int]]:
        """The micro-batches of each optimiser step, and how many images they hold on all ranks.

        The main stream ends the epoch; the others go on for ever.
        """
        used = self.method.streams_in_use(self.step)
        others = {
            name: chain.from_iterable(repeat(loader))
            for name, loader in self.loaders.items()
            if name != "main" and (used is None or name in used)
        }
        group: list[dict[str, Batch]] = []
        images = 0
        for batch in self.main:
            group.append({"main": batch} | {name: next(stream) for name, stream in others.items()})
            images += self.main.handed
            if len(group) == self.optim.accumulation:
                yield group, images
                group, images = [], 0
        if group:
            yield group, images

    def add(self, name: str, value: Tensor, images: int) -> None:
        """Sums over the epoch, kept on the device: a mean is not worth a wait."""
        if name not in self.sums:
            self.sums[name], self.counted[name] = torch.zeros((), dtype=widest(value.device), device=value.device), 0
        self.sums[name].add_(value.detach(), alpha=images)
        self.counted[name] += images

    def log(self, name: str, value: Tensor) -> None:
        """What a method has to say about the micro-batch at hand, or about the step."""
        self.add(name, waits.sent(value, self.accelerator.device), self.recent)

    def figures(self, *, everywhere: bool = False) -> dict[str, float]:
        """Means over the images of the epoch so far; ``everywhere`` of all ranks, which must all ask."""
        figures = {"lr": float(self.optimizer.param_groups[0]["lr"])}
        names = sorted(self.sums)
        if not names:
            return figures
        values = torch.stack([self.sums[name] for name in names])
        counts = values.new_tensor([self.counted[name] for name in names])
        if everywhere and self.accelerator.num_processes > 1:
            values, counts = self.accelerator.reduce(torch.stack([values, counts]), "sum")
        return dict(zip(names, (values / counts).tolist(), strict=True)) | figures

    def waited(self) -> float:
        """Seconds that this rank has waited for batches since it was last asked."""
        seconds = sum(loader.waited for loader in self.loaders.values())
        for loader in self.loaders.values():
            loader.waited = 0.0
        return round(seconds, 2)

    def share_buffers(self) -> None:
        """Rank 0's running statistics for all: DDP hands them on only at the next training step."""
        if self.accelerator.num_processes > 1:
            for module in (self.model, self.average):
                for buffer in module.buffers() if module is not None else ():
                    torch.distributed.broadcast(buffer, 0)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        scaler = self.accelerator.scaler
        learner, average = self.accelerator.unwrap_model(self.learner).state_dict(), self.average
        base = {} if self.model.base is None else {"base": self.model.base}
        return base | {
            "learner": trained_part(self.model, learner, "model."),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "car": self.car.state_dict() if self.car is not None else None,
            "average": trained_part(self.model, average.state_dict(), "module.") if average is not None else None,
            "loaders": {name: loader.state_dict() for name, loader in self.loaders.items()},
            "generator": self.generator.get_state(),
            "index": self.step.index,
        }

    def _restore(self, state: dict[str, Any], learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        if state.get("base") != self.model.base:
            raise ValueError(
                f"the checkpoint belongs to base weights with the digest {str(state.get('base'))[:12]}, and the "
                f"backbone has {str(self.model.base)[:12]}. Resume with the weights that the run began with."
            )
        learner.load_state_dict(learner.state_dict() | state["learner"] if self.model.base else state["learner"])
        learner.to(self.accelerator.device)
        optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.car is not None:
            self.car.load_state_dict(state["car"])
        if self.average is not None:
            whole = self.average.state_dict() if self.model.base else {}
            self.average.load_state_dict(whole | state["average"])
        for name, loader in self.loaders.items():
            loader.load_state_dict(state["loaders"][name])
        self.generator.set_state(state["generator"])
        self.sums = {name: value.to(self.accelerator.device) for name, value in state["sums"].items()}
        self.counted = dict(state.get("counted", {}))  # empty for a rank that the run did not have before
        self.step.index = state["index"]

    def _loaders(self, epochs: int, stage: Stage) -> dict[str, Loader]:
        streams = self.method.streams(stage)
        return {name: self._loader(place, name, one, epochs) for place, (name, one) in enumerate(streams.items())}

    def _loader(self, place: int, name: str, stream: Stream, epochs: int) -> Loader:
        world = self.accelerator.num_processes
        data = self.pieces.splits[stream.split]
        size = stream.batch_size or self.optim.batch_size
        parts = world * self.optim.accumulation
        own_size = stream.batch_size is not None or stream.split != "train"  # not that of the main stream
        free = own_size and stream.kind != "instance" and stream.then is None  # drawn with replacement: may exceed data
        micro = max(min(size, len(data)) if stream.drop_last and not free else size, parts) // parts
        seed = self.config.seed + 1_000_003 * place  # streams of their own

        def sampler(how: str) -> LongTailSampler:
            return LongTailSampler(
                data.labels, how, seed=seed, epochs=epochs, exponent=stream.exponent, num_classes=len(data.names),
                length=max(len(data), micro * parts) if free else None,
            )  # fmt: skip

        first, inputs = sampler(stream.kind), self.pieces.inputs()
        return Loader(
            data,
            inputs,
            batch_size=micro,
            sampler=first if stream.then is None else DeferredSampler(first, sampler(stream.then), stream.switch),
            views=None if inputs is None else self.method.views(inputs, name),
            workers=self.config.workers,
            seed=seed,
            drop_last=stream.drop_last,
            images=stream.images,
            rank=self.accelerator.process_index,
            world_size=world,
            device=self.accelerator.device,
        )
